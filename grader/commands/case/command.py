"""`python -m grader case`: a finished kernel with one bug, which the student is to find."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from grader.base import stdout
from grader.base.text import clean, wrap
from grader.base.user_state import state_path
from grader.commands.case.asking import Asked
from grader.commands.case.cases import Case, CaseError, all_cases, cases_of
from grader.commands.case.opened import SEED, is_open, open_case
from grader.commands.hint.command import tested
from grader.commands.options import SUBMISSION, UsageError, expect_folder
from grader.commands.quiz.asking import AnswerState, QuizProgress, Terminal
from grader.commands.quiz.command import terminal_of
from grader.judge import scoring
from grader.source.submission import read_source
from grader.spec.problem import load_problem, problems_named

HELP = "give you a finished kernel with one bug to find"
STATE = "cases.json"


OPTIONS = {
    "--only p06": "cases of this problem only",
    "--case p06-2": "this case (default: the next that you have not solved)",
    "--restart": "forget which ones you have solved",
    **SUBMISSION,
}


def run(options: argparse.Namespace) -> int:
    """Show a case, ask, explain; return 0, or 130 for Ctrl-C.

    Raises:
        UsageError: there is no standard output.
        CaseError: there is no such case, or it cannot be opened.
    """
    if sys.stdout is None:
        raise UsageError("case: got no standard output, expected a terminal, a pipe or a file")
    cases, folder = chosen(options.only, options.case), expect_folder(options.submission)
    progress = QuizProgress(state_path(os.environ, STATE))
    if options.restart:
        progress.forget({case.id for case in cases})
    words = f"make case P={options.only}" if options.only else "make case"
    terminal = terminal_of()
    try:
        _one(cases, folder, progress, terminal, words)
    except EOFError:
        terminal.line()
        terminal.line(f"Stopped. Go on: {words}")
    except KeyboardInterrupt:
        terminal.line()
        terminal.line(f"Interrupted. Go on: {words}")
        return scoring.EXIT_INTERRUPTED
    except BrokenPipeError:
        stdout.silence()
    return scoring.EXIT_FULL_MARKS


def chosen(only: str | None, id: str | None) -> list[Case]:
    """Return the case that is asked for, or all those of these problems.

    Raises:
        CaseError: there is none.
    """
    problems = problems_named(only)
    cases = [case for problem in problems for case in cases_of(problem)]
    if not cases:
        raise CaseError(
            f"case: got no case of {', '.join(problems)}; those of a problem show its answer, and"
            " are handed out with it, in solutions/"
        )
    wanted = None if id is None else id.strip().lower()
    found = [case for case in cases if wanted in (None, case.id)]
    if not found:
        raise CaseError(
            f"--case: got {clean(id, 40)!r}, expected one of {', '.join(c.id for c in cases)}"
        )
    return found


def next_of(
    cases: Sequence[Case], outcomes: dict[str, AnswerState], own: Path
) -> tuple[Case | None, bool]:
    """Return the next case, and whether the user may see it: his own answer is finished.

    Those that nobody has answered go first, and of them those that may be seen.
    """
    right = AnswerState.RIGHT
    left = [case for case in cases if case.id not in outcomes]
    left = left or [case for case in cases if outcomes[case.id] is not right]
    if not left and len(cases) == 1:
        left = [*cases]  # asked for by its id
    seen = {id: _is_finished(id, own) for id in {case.id[:3] for case in left}}
    may = [case for case in left if is_open(case) or seen[case.id[:3]]]
    return next(iter(may or left), None), bool(may)


def _is_finished(problem_id: str, own: Path) -> bool:
    """Whether every step of the user's own file has code."""
    source = read_source(load_problem(problem_id), own)
    return source.verdict is None and source.next_step is None


def _one(
    cases: Sequence[Case], own: Path, progress: QuizProgress, terminal: Terminal, words: str
) -> None:
    for notice in progress.notices:
        terminal.text(clean(notice, 1000), "note: ", "      ")
    case, may = next_of(cases, progress.outcomes, own)
    if case is None:
        terminal.line(f"You have solved them all. To start over: {words} RESTART=1")
        return
    if not may:
        id = case.id[:3]
        question = f"{case.id} shows an answer of {id}, which you have not finished. Open it? y/n: "
        if not terminal.read(question).strip().lower().startswith("y"):
            terminal.line("Nothing was opened.")
            return
    result = open_case(case, functools.partial(tested, problem_id=case.id[:3], seed=SEED))
    known = all_cases()
    right = sum(progress.outcomes.get(c.id) is AnswerState.RIGHT for c in known)
    asked = Asked(case, result, terminal)
    asked.show(f"{right} of {len(known)} solved")
    outcome = asked.ask()
    progress.add(case.id, outcome)
    for row in wrap(f"{case.id}: {outcome}. The next one: {words}", terminal.width):
        terminal.line(row)
