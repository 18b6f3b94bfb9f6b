"""`python -m grader submit`: looks the answers through, writes the archive, says what is in it."""

from __future__ import annotations

import argparse
import datetime
import functools
import os
from collections.abc import Iterator
from pathlib import Path

from grader.base import stdout
from grader.base.text import byte_size, clean, fit, plural, styled, wrap
from grader.commands.lint.command import lines_of
from grader.commands.options import (
    SUBMISSION,
    UsageError,
    expect_folder,
    expect_place,
    writing,
)
from grader.commands.submit import packing
from grader.commands.submit.packing import Packed, PackedAnswer, State
from grader.judge import scoring
from grader.source.intake import receipt
from grader.source.intake.entries import ArchiveError
from grader.spec.environment import EnvironmentFault
from grader.spec.problem import load_problem, problem_ids

HELP = "pack your answers into the archive to upload"


OPTIONS = {
    **SUBMISSION,
    "--output FILE=submission.zip": "the archive to write (default: submission.zip)",
}


def run(options: argparse.Namespace) -> int:
    """Write the archive unless nothing in it would be graded, show the report.

    Returns: 0 when all that is there is accepted, 1 when something is refused or nothing is begun.

    Raises:
        UsageError: an option cannot be used, or the output is a file that is not ours.
        EnvironmentFault: the archive cannot be written, or not be read back.
    """
    folder, output = expect_folder(options.submission), options.output
    answers = packing.look_through(map(load_problem, problem_ids()), folder)
    if all(answer.state is State.MISSING for answer in answers):
        raise UsageError(
            f"--submission: got {folder}, which holds no answer;"
            f" expected files such as {answers[0].name}"
        )
    expect_place(output, "--output")
    if os.path.lexists(output) and not packing.is_own(output):
        raise UsageError(
            f"--output: got {output}, which exists and is no archive of `submit`;"
            " expected another name, or move it away"
        )
    packed = Packed(answers)
    if any(answer.state is State.READY for answer in answers):
        packed = _written(answers, output)
    stdout.show(functools.partial(render, packed))
    refused = any(answer.state is State.REFUSED for answer in answers)
    lost = refused or packed.archive is None
    return scoring.EXIT_POINTS_LOST if lost else scoring.EXIT_FULL_MARKS


def _written(answers: tuple[PackedAnswer, ...], output: Path) -> Packed:
    files = packing.files_of(answers)
    today = datetime.datetime.now(datetime.UTC).date()
    try:
        with writing(output, "--output"):
            size = packing.write_archive(output, files, today)
    except ArchiveError as error:
        raise EnvironmentFault(f"--output: {output}: {error}") from None
    return Packed(answers, str(output), len(files), size, receipt.code(files))


_STYLES = {State.READY: "green", State.REFUSED: "red"}


def render(packed: Packed, *, width: int = 80, color: bool = False) -> str:
    """Return the report on a submission that was, or was not, packed."""
    rows = [row for answer in packed.answers for row in _problem(answer, width)]
    rows += [("-" * width, ""), *((row, "") for row in _summary(packed, width))]
    return styled(rows, width, color=color)


def _problem(answer: PackedAnswer, width: int) -> Iterator[tuple[str, str]]:
    words = answer.state.value
    source = answer.source
    if answer.state is State.READY and source is not None and source.next_step:
        words += f", step {source.next_step} is not done"
    title = fit(f"{answer.problem.id} {answer.problem.title}", 52)
    yield f"{title}  {words}", _STYLES.get(answer.state, "")
    if answer.state is State.REFUSED and source is not None:
        for row, style in lines_of(source, width - 4):
            yield f"    {row}", style


def _summary(packed: Packed, width: int) -> Iterator[str]:
    states = [answer.state for answer in packed.answers]
    counts = [(state, states.count(state)) for state in State if state in states]
    yield ", ".join(f"{count} {state.value}" for state, count in counts)
    refused = states.count(State.REFUSED)
    if packed.archive is None:
        text = "nothing was written: no answer in it would be graded"
        yield from wrap(f"{text}; solve a problem, then run `make submit` again", width)
        return
    if refused:
        text = (
            "what is refused earns nothing as it is, although it is in the archive where it can be"
        )
        yield from wrap(f"{text} read", width)
    size, files = byte_size(packed.num_bytes), plural(packed.num_files, "file")
    yield from wrap(f"wrote   {clean(packed.archive)} ({files}, {size}): upload it", width)
    yield f"receipt {packed.code}"
