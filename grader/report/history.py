"""Points over the runs of `make grade`: one JSON line per run, in the order of the runs.

Clocks may jump, so times are shown and never sorted by. No grade depends on the file: a line that
is damaged, or of a newer release, is skipped.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from grader.base.atomic_write import write_whole
from grader.report.message import causes
from grader.spec.grade_record import GradeRecord, ProblemResult, Record, Text

MOST_RUNS = 200
_MOST_BYTES = 2**20
_MOST_CAUSES = 20
_Id = Annotated[str, Field(max_length=20)]
_CauseId = Annotated[str, Field(max_length=60)]
_Points = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]


class PastRun(Record):
    """One run: its time in UTC, and the points earned and available of each graded problem.

    `causes` has the ids of the causes reported for a problem, without its prefix.
    """

    schema_version: Literal[1] = 1
    time: Annotated[str, Field(max_length=40)]
    submission: Annotated[Text, Field(max_length=1000)]
    points: Annotated[dict[_Id, tuple[_Points, _Points]], Field(max_length=50)]
    causes: Annotated[
        dict[_Id, Annotated[tuple[_CauseId, ...], Field(max_length=_MOST_CAUSES)]],
        Field(default_factory=dict, max_length=50),
    ]


def run_of(record: GradeRecord, now: datetime.datetime) -> PastRun:
    """Return the line of the history for a record; `now` has a time zone."""
    return PastRun(
        time=now.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
        submission=record.submission[:1000],
        points={p.id: (p.points.earned, p.points.available) for p in record.problems},
        causes={p.id: found for p in record.problems if (found := _causes(p))},
    )


def _causes(problem: ProblemResult) -> tuple[str, ...]:
    ids = (cause.id.removeprefix(f"{problem.id.upper()}-")[:60] for cause in causes(problem))
    return tuple(dict.fromkeys(ids))[:_MOST_CAUSES]


def read(path: Path, submission: str) -> tuple[PastRun, ...]:
    """Return the runs of one submission, oldest first; none where there is no file.

    Raises:
        OSError: the file cannot be read.
    """
    runs = map(_run_in, _lines(path))
    return tuple(run for run in runs if run is not None and run.submission == submission)


def named_last(path: Path, cause: str, among: Collection[str]) -> str | None:
    """Return the problem of `among` in which a cause was reported last; None if it never was.

    Raises:
        OSError: the file cannot be read.
    """
    for run in filter(None, map(_run_in, reversed(_lines(path)))):
        for problem, found in run.causes.items():
            if cause in found and problem in among:
                return problem
    return None


def append(path: Path, run: PastRun) -> None:
    """Add a run, and drop the oldest lines beyond `MOST_RUNS`; make the folder if needed.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [*_lines(path), run.model_dump_json()]
    write_whole(path, "".join(f"{line}\n" for line in lines[-MOST_RUNS:]))


def _lines(path: Path) -> Sequence[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _MOST_BYTES))
            text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ()
    return [line for line in text.split("\n") if line.strip()]


def _run_in(line: str) -> PastRun | None:
    try:
        return PastRun.model_validate_json(line)
    except (ValidationError, RecursionError):
        return None
