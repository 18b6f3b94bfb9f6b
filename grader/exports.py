"""The files that `grade` writes: the record, and what other tools read, each at its own option."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path

from grader.environment import EnvironmentFault
from grader.model import GradeRecord
from grader.render import gradescope, junit, markdown
from grader.render.html import page
from grader.whole_file import write_whole

# In the order in which they are written: the record first, for all others are made of it.
FORMATS: Mapping[str, Callable[[GradeRecord], str]] = {
    "json": GradeRecord.to_json,
    "markdown": markdown.render,
    "junit": junit.render,
    "gradescope": gradescope.render,
    "html": page.render,
}
HELP: Mapping[str, str] = {
    "json": "write the grade record as JSON",
    "markdown": "write a summary for a CI's page, such as $GITHUB_STEP_SUMMARY",
    "junit": "write the checks as JUnit XML, for Jenkins, GitLab and others",
    "gradescope": "write the scores as Gradescope's results.json",
    "html": "write the report as one page for a browser",
}


def write_all(
    files: Mapping[str, Path], record: GradeRecord, sources: Mapping[str, bytes] | None = None
) -> None:
    """Write `record` in the format of each name, each file in one step: all that can be written.

    `sources` are the bytes that were graded, by path in the submission: the page shows them.

    Raises:
        EnvironmentFault: some file cannot be written.
    """
    failed = []
    for name, render in FORMATS.items():
        if name in files:
            if name == "html" and sources:
                render = functools.partial(render, sources=sources)
            try:
                write_whole(files[name], render(record))
            except OSError as error:
                failed.append(f"--{name}: cannot write {files[name]}: {error.strerror}")
    if failed:
        raise EnvironmentFault("; ".join(failed))
