"""Writes the files of `grade`: the record, and exports for other tools, one option each."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from pathlib import Path

from grader.base.atomic_write import write_whole
from grader.report import classroom50, gradescope, history, junit, markdown
from grader.report.html import page
from grader.spec.environment import EnvironmentFault
from grader.spec.grade_record import GradeRecord

PAGE = Path("report.html")
HISTORY = Path(".cache") / "history.jsonl"
# In the order of writing: the record first, since all others can be made from it.
FORMATS: Mapping[str, Callable[[GradeRecord], str]] = {
    "json": GradeRecord.to_json,
    "markdown": markdown.render,
    "junit": junit.render,
    "gradescope": gradescope.render,
}
HELP: Mapping[str, str] = {
    "json": "write the grade record as JSON",
    "markdown": "write a summary for a CI's page, such as $GITHUB_STEP_SUMMARY",
    "junit": "write the checks as JUnit XML, for Jenkins, GitLab and others",
    "gradescope": "write the scores as Gradescope's results.json",
    "classroom50": "write the scores as Classroom 50's result.json",
    "html": "write the report as one page for a browser",
}


def write_all(
    files: Mapping[str, Path],
    record: GradeRecord,
    variables: Mapping[str, str],
    sources: Mapping[str, bytes] = {},
) -> None:
    """Write `record` to each of `files`, by format, in one step each, and go on after a failure.

    `variables` are those of the environment, `sources` the bytes that were graded, by path in the
    submission, for the page, which is the largest file and comes last.

    Raises:
        EnvironmentFault: a file cannot be written.
    """
    failed = []
    renders = {
        **FORMATS,
        "classroom50": lambda record: classroom50.render(
            record, variables, datetime.datetime.now(datetime.UTC)
        ),
        "html": lambda record: page.render(record, sources=sources),
    }
    for name, render in renders.items():
        if name in files:
            try:
                write_whole(files[name], render(record))
            except OSError as error:
                failed.append(f"--{name}: cannot write {files[name]}: {error.strerror}")
    if failed:
        raise EnvironmentFault("; ".join(failed))


def write_page(record: GradeRecord, sources: Mapping[str, bytes]) -> tuple[Path | None, list[str]]:
    """Write the page, and add the run to the history; return the page's path and notes on failures.

    No option names this file, so a failure to write it becomes a note and changes neither the grade
    nor the exit code. An official run has no history: its record alone counts. An interrupted run
    is not added to it: its points are not those of the answers.
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
        write_whole(PAGE, page.render(record, sources=sources, history=runs))
    except Exception as error:  # a bug of the page must not cost the grade
        return None, [*notes, f"{PAGE} was not written: {_reason(error)}"]
    return PAGE, notes


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else str(error)
    return text or type(error).__name__
