"""`python -m grader stability N`: grades N times with fresh seeds and says how it varies."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console

from grader.api import Grader
from grader.base.atomic_write import write_whole
from grader.commands.stability import view as stability
from grader.commands.stability.spread import exit_code, to_json
from grader.judge.progress import Progress
from grader.judge.request import Request
from grader.spec.environment import EnvironmentFault
from grader.spec.grade_record import GradeRecord


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what `stability` has beside the options of a grading."""
    parser.add_argument("count", type=int, metavar="N", help="how many gradings")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the table and all records as JSON"
    )


def run(
    request: Request,
    options: argparse.Namespace,
    totals: Mapping[str, int],
    console: Console,
    show: Callable[[Callable[..., str]], None],
) -> int:
    """Grade `options.count` times and `show` the table; return the exit code of `spread`.

    Ctrl-C keeps the gradings that were done. `totals` is the number of cases of each problem;
    progress goes to `console`.

    Raises:
        EnvironmentFault: --json cannot be written.
    """
    records: list[GradeRecord] = []
    whole = True
    try:
        for number in range(1, options.count + 1):
            console.print(f"grading {number} of {options.count}", highlight=False)
            seeded = dataclasses.replace(request, seed=os.urandom(8).hex())
            with Progress(console) as progress:
                progress.start(totals)
                record = Grader(seeded, progress).run()
            if record.interrupted:
                raise KeyboardInterrupt
            records.append(record)
            _keep(options.json, to_json(records, options.count))
    except KeyboardInterrupt:
        whole = False
    show(functools.partial(stability.render, records, options.count))
    return exit_code(records, whole=whole)


def _keep(path: Path | None, text: str) -> None:
    """Write what is known after each grading, so that an end by force leaves it."""
    if path is None:
        return
    try:
        write_whole(path, text)
    except OSError as error:
        raise EnvironmentFault(f"--json: cannot write {path}: {error.strerror}") from None
