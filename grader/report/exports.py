"""The files that `grade` writes: the record, and what other tools read, each at its own option."""

from __future__ import annotations

import datetime
import functools
import types
from collections.abc import Callable, Mapping
from pathlib import Path

from grader.base.atomic_write import write_whole
from grader.report import classroom50, gradescope, junit, markdown
from grader.report.html import page
from grader.spec.environment import EnvironmentFault
from grader.spec.grade_record import GradeRecord

# In the order in which they are written: the record first, for all others are made of it.
FORMATS: Mapping[str, Callable[[GradeRecord], str]] = {
    "json": GradeRecord.to_json,
    "markdown": markdown.render,
    "junit": junit.render,
    "gradescope": gradescope.render,
}
# These also say which job the record is from, as the job's environment has it.
OF_A_JOB: Mapping[str, Callable[[GradeRecord, Mapping[str, str], datetime.datetime], str]] = {
    "classroom50": classroom50.render,
}
HELP: Mapping[str, str] = {
    "json": "write the grade record as JSON",
    "markdown": "write a summary for a CI's page, such as $GITHUB_STEP_SUMMARY",
    "junit": "write the checks as JUnit XML, for Jenkins, GitLab and others",
    "gradescope": "write the scores as Gradescope's results.json",
    "classroom50": "write the scores as Classroom 50's result.json",
    "html": "write the report as one page for a browser",
}
_NONE: Mapping[str, bytes] = types.MappingProxyType({})


def write_all(
    files: Mapping[str, Path],
    record: GradeRecord,
    variables: Mapping[str, str],
    sources: Mapping[str, bytes] = _NONE,
) -> None:
    """Write `record` in the format of each name, each file in one step: all that can be written.

    `variables` are those of the environment, `sources` the bytes that were graded, by their path in
    the submission: the page shows them, and comes last, for it is the largest.

    Raises:
        EnvironmentFault: some file cannot be written.
    """
    failed = []
    now = datetime.datetime.now(datetime.UTC)
    of_a_job = {
        name: functools.partial(render, variables=variables, now=now)
        for name, render in OF_A_JOB.items()
    }
    of_sources = {"html": functools.partial(page.render, sources=sources)}
    for name, render in {**FORMATS, **of_a_job, **of_sources}.items():
        if name in files:
            try:
                write_whole(files[name], render(record))
            except OSError as error:
                failed.append(f"--{name}: cannot write {files[name]}: {error.strerror}")
    if failed:
        raise EnvironmentFault("; ".join(failed))
