"""The report of `make grade`: a page in the current folder, with the points of earlier runs.

Nobody asked for this file by name, so that nothing that keeps it from being written costs a grade
or an exit code: it is told in a note.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path

from grader.base.atomic_write import write_whole
from grader.report import history
from grader.report.html import page
from grader.spec.grade_record import GradeRecord

FILE = Path("report.html")
HISTORY = Path(".cache") / "history.jsonl"


def write(record: GradeRecord, sources: Mapping[str, bytes]) -> tuple[Path | None, list[str]]:
    """Write the page, and add the run to the history; return the page's path, and what failed.

    A grade for credit is told from its record alone: it has no history. Neither has a run that was
    interrupted, for its points are not those of the answers.
    """
    runs: tuple[history.PastRun, ...] = ()
    notes = []
    if record.mode != "official":
        try:
            if record.problems and not record.interrupted:
                now = datetime.datetime.now(datetime.UTC)
                history.append(HISTORY, history.run_of(record, now))
            runs = history.read(HISTORY, record.submission)
        except (OSError, ValueError, OverflowError) as error:
            notes.append(f"the points of this run were not kept in {HISTORY}: {_reason(error)}")
    try:
        write_whole(FILE, page.render(record, sources=sources, history=runs))
    except Exception as error:  # whatever is wrong with the page: the grade stands
        return None, [*notes, f"{FILE} was not written: {_reason(error)}"]
    return FILE, notes


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else str(error)
    return text or type(error).__name__
