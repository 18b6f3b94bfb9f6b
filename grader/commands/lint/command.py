"""`python -m grader lint DIR`: examines files without running them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator

from grader.base import stdout
from grader.base.text import clean, plural, styled, wrap
from grader.commands.options import UsageError, expect_folder
from grader.judge import scoring
from grader.source.submission import Source, read_source
from grader.spec.grade_record import Verdict
from grader.spec.problem import load_problem, problems_named

HELP = "list what the source policy refuses; runs nothing"
OPTIONS = {
    "DIR": "folder with pNN/<file>.py",
    "--only p04,p05": "look at these problems only",
}


def run(options: argparse.Namespace) -> int:
    """Show what is refused; return 1 where a file cannot be graded, else 0."""
    folder = expect_folder(options.dir, "DIR")
    problems = [
        problem
        for problem in map(load_problem, problems_named(options.only))
        if os.path.lexists(folder / problem.id / problem.file)
    ]
    if not problems:
        raise UsageError(f"DIR: got {folder}, expected a folder with pNN/<file>.py")
    sources = [read_source(problem, folder) for problem in problems]
    stdout.show(render, sources)
    return scoring.EXIT_POINTS_LOST if any(map(is_refused, sources)) else 0


_MOST = 20  # violations of one file


def is_refused(source: Source) -> bool:
    """Whether a file cannot be graded as it is; an untouched stub can."""
    return source.verdict not in (None, Verdict.NOT_IMPLEMENTED)


def render(sources: Iterable[Source], *, width: int = 80, color: bool = False) -> str:
    """Return a line per clean file, and per violation its line, rule, text and help."""
    rows = (row for source in sources for row in lines_of(source, width))
    return styled(rows, width, color=color)


def lines_of(source: Source, width: int) -> Iterator[tuple[str, str]]:
    """Give the lines about one file, each with its style."""
    file = f"{source.problem_id}/{load_problem(source.problem_id).file}"
    if not is_refused(source):
        yield f"{file}: ok", "green"
        return
    if not source.violations and source.message is not None:
        line = f":{source.message.line}" if source.message.line else ""
        head = f"{file}{line}: {clean(source.message.headline)}"
        yield from ((row, "red") for row in wrap(head, width, "", "    "))
    helped: set[str] = set()
    for broken in source.violations[:_MOST]:
        head = f"{file}:{broken.line}: {broken.rule}: {clean(broken.text)}"
        yield from ((row, "red") for row in wrap(head, width, "", "    "))
        if broken.help not in helped:
            yield from ((row, "") for row in wrap(clean(broken.help), width, "    help: "))
        helped.add(broken.help)
    if len(source.violations) > _MOST:
        yield f"{file}: {plural(len(source.violations) - _MOST, 'more violation')}", "red"
