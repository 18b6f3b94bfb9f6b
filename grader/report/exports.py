"""The files that `grade` writes: the record, and what other tools read, each at its own option."""

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
# In the order in which they are written: the record first, for all others are made of it.
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
    """Write `record` in the format of each name, each file in one step: all that can be written.

    `variables` are those of the environment, `sources` the bytes that were graded, by their path in
    the submission: the page shows them, and comes last, for it is the largest.

    Raises:
        EnvironmentFault: some file cannot be written.
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
    """Write the page, and add the run to the history; return the page's path, and what failed.

    Nobody asked for this file by name, so that nothing that keeps it from being written costs a
    grade or an exit code: a note says it.
    A grade for credit is known by its record alone: it has no history. Neither has a run that was
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
        write_whole(PAGE, page.render(record, sources=sources, history=runs))
    except Exception as error:  # whatever is wrong with the page: the grade stands
        return None, [*notes, f"{PAGE} was not written: {_reason(error)}"]
    return PAGE, notes


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else str(error)
    return text or type(error).__name__
