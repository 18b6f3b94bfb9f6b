"""`python -m grader submit`: looks the answers through, writes the archive, says what is in it."""

from __future__ import annotations

import argparse
import datetime
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grader.commands.submit import packing
from grader.commands.submit.packing import Answer, State
from grader.judge import scoring
from grader.source.intake import receipt
from grader.source.intake.entries import ArchiveError
from grader.spec.environment import EnvironmentFault
from grader.spec.problem import PROBLEMS, ManifestError, load_problem, problem_ids


class SubmitError(ManifestError):
    """An option that cannot be used; the message names it, got and expected."""


@dataclass(frozen=True)
class Outcome:
    """What was looked through, and the archive that was written, if any."""

    answers: tuple[Answer, ...]
    archive: str | None = None
    num_files: int = 0
    num_bytes: int = 0
    code: str = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `submit`."""
    parser.add_argument(
        "--submission",
        type=Path,
        default=Path(os.path.relpath(PROBLEMS)),
        metavar="DIR",
        help="folder with pNN/<file>.py (default: problems, your own answers)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("submission.zip"),
        metavar="FILE",
        help="the archive to write (default: submission.zip)",
    )


def run(
    options: argparse.Namespace,
    show: Callable[[Callable[..., str]], None],
    render: Callable[..., str],
) -> int:
    """Write the archive unless nothing in it would be graded, `show` the report.

    Returns: 0 when all that is there is accepted, 1 when something is refused or nothing is begun.

    Raises:
        SubmitError: an option cannot be used, or the output is a file that is not ours.
        EnvironmentFault: the archive cannot be written, or not be read back.
    """
    if not options.submission.is_dir():
        got = f"got {options.submission}, which is not a folder"
        raise SubmitError(f"--submission: {got}; expected one with pNN/<file>.py in it")
    answers = packing.look_through(map(load_problem, problem_ids()), options.submission)
    if all(answer.state is State.MISSING for answer in answers):
        got = f"got {options.submission}, which holds no answer"
        raise SubmitError(f"--submission: {got}; expected files such as {answers[0].name}")
    _expect_output(options.output)
    outcome = Outcome(answers)
    if any(answer.state is State.READY for answer in answers):
        outcome = _written(answers, options.output)
    show(functools.partial(render, outcome))
    refused = any(answer.state is State.REFUSED for answer in answers)
    lost = refused or outcome.archive is None
    return scoring.EXIT_POINTS_LOST if lost else scoring.EXIT_FULL_MARKS


def _written(answers: tuple[Answer, ...], output: Path) -> Outcome:
    files = packing.files_of(answers)
    today = datetime.datetime.now(datetime.UTC).date()
    try:
        size = packing.write_archive(output, files, today)
    except OSError as error:
        raise EnvironmentFault(f"--output: cannot write {output}: {error.strerror}") from None
    except ArchiveError as error:
        raise EnvironmentFault(f"--output: {output}: {error}") from None
    return Outcome(answers, str(output), len(files), size, receipt.code(files))


def _expect_output(path: Path) -> None:
    """Refuse a place that cannot be written, and a file that is not one of ours."""
    if not path.absolute().parent.is_dir():
        raise SubmitError(f"--output: no such folder: {path.absolute().parent}")
    if path.is_dir():
        raise SubmitError(f"--output: got the folder {path}, expected a file's name")
    if os.path.lexists(path) and not packing.is_own(path):
        raise SubmitError(
            f"--output: got {path}, which exists and is no archive of `submit`;"
            " expected another name, or move it away"
        )
