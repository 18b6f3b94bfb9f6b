"""`python -m grader hint`: gives the next hint of the first step that is not solved."""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from grader.api import Grader
from grader.base import stdout
from grader.base.text import clean, markdown, plural, wrap
from grader.base.user_state import state_path
from grader.commands.hint.hints import FILE, STATE, Hint, Shown, next_hint, plain_formulas
from grader.commands.options import SUBMISSION, expect_folder, one_or_all, request_for, seed_of
from grader.commands.progress import Progress
from grader.spec.environment import probe
from grader.spec.grade_record import ProblemResult

HELP = "give the next hint of the first unsolved step"
OPTIONS = {
    "--only p04": "the problem (default: where you are)",
    "--restart": "begin with its first hint again",
    **SUBMISSION,
}


def run(options: argparse.Namespace) -> int:
    """Show the next hint; return 0."""
    ids, folder = one_or_all(options.only), expect_folder(options.submission)
    shown = Shown(state_path(os.environ, STATE))
    test = functools.partial(tested, folder)
    hint = next_hint(ids, folder, shown, test, restart=options.restart)
    stdout.show(render, hint, shown.notices)
    return 0


def tested(submission: Path, problem_id: str, seed: str | None = None) -> ProblemResult:
    """Return the result of all tests of one problem; progress goes to standard error.

    All tests run, because one wrong case does not always tell two mistakes apart: in p02 the result
    of one row is a single number.

    Raises:
        EnvironmentFault: torch or Triton is missing.
        KeyboardInterrupt: the user pressed Ctrl-C.
    """
    how = {"seed": seed_of(seed), "jobs": 1, "quick": True}
    request = request_for(submission, (problem_id,), probe("cpu"), **how)
    with Progress(Console(stderr=True)) as progress:
        progress.start(request.num_cases())
        record = Grader(request, progress).run()
    if record.interrupted:
        raise KeyboardInterrupt
    return record.problems[0]


def render(
    hint: Hint | None, notices: Sequence[str] = (), *, width: int = 80, color: bool = False
) -> str:
    """Return where the student is, the hint, and what to do after it."""
    lines = [row for notice in notices for row in wrap(clean(notice, 1000), width, "note: ")]
    if hint is None:
        lines.append("Every step has code and every test passes: no hint is left to give.")
        lines.append("next: make grade; docs/making-it-fast.md has more to try")
        return "\n".join(lines) + "\n"
    lines += _where(hint, width)
    if hint.text is not None:
        lines += ["", *markdown(plain_formulas(hint.text), width, color=color), ""]
    lines += _after(hint, width)
    return "\n".join(lines) + "\n"


def _where(hint: Hint, width: int) -> list[str]:
    where, problem = hint.where, hint.where.problem
    if where.step is None:
        return wrap(f"{problem.id}: {clean(where.obstacle)}", width, "", "    ")
    title = problem.steps[where.step - 1].title
    part = f", hint {hint.number} of {hint.count}" if hint.text is not None else ""
    lines = wrap(f"{problem.id} step {where.step}: {title}{part}", width, "", "    ")
    if where.seen:
        lines += wrap(clean(where.seen), width, "  a test says: ")
    if where.check:
        why = f"it names no step; test_{where.check} fails, which this step turns green"
        lines += wrap(why, width, "  ")
    return lines


def _after(hint: Hint, width: int) -> list[str]:
    where, id = hint.where, hint.where.problem.id
    explain = f"make explain ID={where.cause}"
    if where.step is None:
        reason = "Hints belong to steps, and which step this is about is not known. "
        cause = f"; the cause: {explain}" if where.cause else ""
        return wrap(f"{reason}The whole message: make grade P={id}{cause}", width)
    if hint.text is None:
        lines = wrap(f"All {hint.count} hints of this step were shown. Read on:", width)
        lines.append(f"  problems/{id}/README.md   step {where.step}, and the idea before it")
        lines.append(f"  problems/{id}/{FILE}    all hints of the problem")
        lines.append("  docs/glossary.md         the words")
        if where.cause:
            lines.append(f"  {explain}")
        lines.append(f"To see the hints again: make hint P={id} RESTART=1")
        return lines
    more = f"the next one: make hint P={id}" if hint.number < hint.count else "it was the last one"
    taken = f"{plural(hint.taken, 'hint')} shown in {id}; hints cost no points; {more}"
    explained = [f"the cause that the test names: {explain}"] if where.cause else []
    return [*explained, *wrap(taken, width)]
