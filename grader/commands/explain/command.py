"""`python -m grader explain ID`: the page of a cause."""

from __future__ import annotations

import argparse

from grader.base import stdout
from grader.base.text import markdown
from grader.report import cause_pages, exports
from grader.report.cause_pages import Explanation
from grader.spec.problem import problems_named

HELP = "explain a cause that the report names"
OPTIONS = {
    "[ID]": f"such as {cause_pages.example()} (default: list all)",
    "--only p04,p05": "list the causes of these problems only; with an ID, the problem of the"
    " commands",
}


def run(options: argparse.Namespace) -> int:
    """Show the page of a cause, or list them all; return 0."""
    problems = None if options.only is None else problems_named(options.only)
    page = cause_pages.look_up(options.id or None, problems, runs=exports.HISTORY)
    stdout.show(render, page)
    return 0


def render(page: Explanation, *, width: int = 80, color: bool = False) -> str:
    """Return the page at `width` columns."""
    return "\n".join(markdown(page.text, width, color=color)) + "\n"
