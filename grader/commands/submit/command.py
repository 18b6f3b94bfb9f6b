"""`python -m grader submit`: examines the answers, writes the archive and reports its contents."""

from __future__ import annotations

import argparse
import datetime
import enum
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from grader import __version__
from grader.base import stdout
from grader.base.atomic_write import write_whole_bytes
from grader.base.regular_file import open_regular
from grader.base.text import byte_size, clean, fit, plural, styled, wrap
from grader.commands.lint.command import is_refused, lines_of
from grader.commands.options import SUBMISSION, UsageError, expect_folder, expect_place, writing
from grader.commands.submit import places
from grader.judge import scoring
from grader.source.intake import receipt, requests, zips
from grader.source.intake.archives import read
from grader.source.intake.entries import ArchiveError, first_bytes
from grader.source.steps import steps_begun
from grader.source.submission import Source, read_source
from grader.spec.environment import EnvironmentFault
from grader.spec.problem import Problem, load_problem, problem_ids


class State(enum.Enum):
    """The state of one problem's file."""

    READY = "ready"
    NOT_STARTED = "not started"
    REFUSED = "refused"
    MISSING = "missing"


@dataclass(frozen=True)
class PackedAnswer:
    """One problem's file and its state; `source` is None where there is no file."""

    problem: Problem
    state: State
    source: Source | None = None

    @property
    def name(self) -> str:
        """The file's name in a submission, pNN/<file>.py."""
        return f"{self.problem.id}/{self.problem.file}"


@dataclass(frozen=True)
class Packed:
    """The answers examined, and the archive written, if any; `done` says where it was handed in."""

    answers: tuple[PackedAnswer, ...]
    archive: str | None = None
    done: tuple[str, ...] = ()
    num_files: int = 0
    num_bytes: int = 0
    code: str = ""
    requests: tuple[str, ...] = ()


def look_at(problem: Problem, submission: Path) -> PackedAnswer:
    """Return a submission's file for a problem and its state, without running it."""
    if not os.path.lexists(submission / problem.id / problem.file):
        return PackedAnswer(problem, State.MISSING)
    source = read_source(problem, submission)
    if is_refused(source):
        return PackedAnswer(problem, State.REFUSED, source)
    begun = source.verdict is None or steps_begun(source.data.decode("utf-8-sig", "replace"))
    return PackedAnswer(problem, State.READY if begun else State.NOT_STARTED, source)


def pack(files: Mapping[str, bytes], date: datetime.date, request: bytes = b"") -> bytes:
    """Return an archive of these files and their receipt; the same files give the same bytes.

    A `request` for a regrade goes into the archive, but not into the receipt.
    """
    made = receipt.receipt_of(files, __version__, date).model_dump_json(indent=1) + "\n"
    asked = {requests.NAME: request} if request else {}
    return zips.packed({**dict(sorted(files.items())), receipt.NAME: made.encode(), **asked})


def write_archive(
    path: Path, files: Mapping[str, bytes], date: datetime.date, request: bytes = b""
) -> int:
    """Write the archive and read it back as the instructor's tools will; return its size in bytes.

    Raises:
        OSError: the archive cannot be written.
        ArchiveError: the contents read back differ.
    """
    data = pack(files, date, request)
    write_whole_bytes(path, data)
    found = read(path)
    if dict(found.files) != dict(files) or found.notes:
        raise ArchiveError("what can be read back differs from what was written; submit again")
    return len(data)


def is_own(path: Path) -> bool:
    """Whether a file is an archive that `submit` has written."""
    try:
        with open_regular(path) as file, zips.opened(file, path.name) as entries:
            data = [entry.read() for entry in entries if entry.name == receipt.NAME]
    except (OSError, ArchiveError):
        return False
    return len(data) == 1 and receipt.read_receipt(data[0]) is not None


HELP = "pack your answers into the archive to upload"
OPTIONS = {
    **SUBMISSION,
    "--output FILE=submission.zip": "the archive to write (default: submission.zip)",
    "--to PLACE": "hand it in, too: a shared folder, or a git repository's address or folder",
    "--name ID": "your id or login in the course, with --to",
}


def run(options: argparse.Namespace) -> int:
    """Write the archive unless no answer in it would be graded, and show the report.

    Returns: 0 if every file there is accepted, 1 if one is refused or none is begun.
    """
    folder, output = expect_folder(options.submission), options.output
    answers = tuple(look_at(problem, folder) for problem in map(load_problem, problem_ids()))
    if all(answer.state is State.MISSING for answer in answers):
        raise UsageError(
            f"--submission: got {folder}, which holds no answer;"
            f" expected files such as {answers[0].name}"
        )
    expect_place(output, "--output")
    if os.path.lexists(output) and not is_own(output):
        raise UsageError(
            f"--output: got {output}, which exists and is no archive of `submit`;"
            " expected another name, or move it away"
        )
    packed, request = Packed(answers), _request(folder)
    if options.name is not None and options.to is None:
        raise UsageError("--name: got it without --to, expected the place to hand in to, too")
    if options.to is not None:
        places.expect(options.to, options.name)
    states = {answer.state for answer in answers}
    if State.READY in states or (request and State.REFUSED in states):  # it may be about that
        packed = _written(answers, output, request, options.to, options.name)
    stdout.show(render, packed)
    refused = any(answer.state is State.REFUSED for answer in answers)
    lost = refused or packed.archive is None
    return scoring.EXIT_POINTS_LOST if lost else scoring.EXIT_FULL_MARKS


def _request(folder: Path) -> bytes:
    """Return the student's request for a regrade, b"" where there is none."""
    place, wrong = folder / requests.NAME, list[str]()
    if not os.path.lexists(place):
        return b""
    try:
        with open_regular(place) as file:
            data = first_bytes(file)
    except OSError as error:
        raise UsageError(f"--submission: {place} cannot be read: {error.strerror}") from None
    requests.found(data, wrong.append)
    if wrong:
        raise UsageError(f"--submission: {wrong[0]}; correct it, or move it away")
    return data


def _written(
    answers: tuple[PackedAnswer, ...], output: Path, request: bytes, to: str | None, name: str
) -> Packed:
    # All readable files, including refused ones.
    files = {a.name: a.source.data for a in answers if a.source is not None and a.source.data}
    today = datetime.datetime.now(datetime.UTC).date()
    try:
        with writing(output, "--output"):
            size = write_archive(output, files, today, request)
    except ArchiveError as error:
        raise EnvironmentFault(f"--output: {output}: {error}") from None
    asked = tuple(requests.found(request, lambda _: None)) if request else ()
    done = () if to is None else tuple(places.hand_in(to, name, output.read_bytes(), files))
    return Packed(answers, str(output), done, len(files), size, receipt.code(files), asked)


_STYLES = {State.READY: "green", State.REFUSED: "red"}


def render(packed: Packed, *, width: int = 80, color: bool = False) -> str:
    """Return the report on a submission, whether it was packed or not."""
    rows = (row for answer in packed.answers for row in _problem(answer, width))
    return styled([*rows, "-" * width, *_summary(packed, width)], width, color=color)


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
    if packed.archive is None:
        text = "nothing was written: no answer in it would be graded"
        yield from wrap(f"{text}; solve a problem, then run `make submit` again", width)
        return
    if State.REFUSED in states:
        text = "what is refused earns nothing as it is, although it is in the archive"
        yield from wrap(f"{text} where it can be read", width)
    size, files = byte_size(packed.num_bytes), plural(packed.num_files, "file")
    upload = "" if packed.done else ": upload it"
    yield from wrap(f"wrote   {clean(packed.archive)} ({files}, {size}){upload}", width)
    for line in packed.done:
        yield from wrap(clean(line, 4000), width)
    if packed.requests:
        yield from wrap(f"asks    for another look at {', '.join(packed.requests)}", width)
    yield f"receipt {packed.code}"
