"""`python -m grader case`: shows a finished kernel with one bug and asks for it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from grader.base.text import clean
from grader.base.user_state import state_path
from grader.commands.asking import Terminal, on_terminal
from grader.commands.case.asking import Asked
from grader.commands.case.cases import Case, cases_of
from grader.commands.case.opened import FOLDER, SEED, open_case
from grader.commands.hint.command import tested
from grader.commands.options import SUBMISSION, UsageError, expect_folder
from grader.commands.quiz.asking import AnswerState, QuizProgress
from grader.judge.sealed import is_sealed
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
    """Show a case, ask, explain; return 0, or 130 for Ctrl-C."""
    cases, own = chosen(options.only, options.case), expect_folder(options.submission)
    progress = QuizProgress(state_path(os.environ, STATE))
    if options.restart:
        progress.forget({case.id for case in cases})
    words = f"make case P={options.only}" if options.only else "make case"

    def ask(terminal: Terminal) -> bool:
        try:
            terminal.line(f"{_one(cases, own, progress, terminal)}: {words}")
        except EOFError:
            terminal.line(f"\nStopped. Go on: {words}")
        except KeyboardInterrupt:
            terminal.line(f"\nInterrupted. Go on: {words}")
            return False
        return True

    return on_terminal("case", ask)


def chosen(only: str | None, id: str | None) -> list[Case]:
    """Return the one case that `id` names, or all cases of the problems that `only` names.

    Raises:
        UsageError: no such case is here.
    """
    problems = problems_named(only)
    cases = [case for problem in problems for case in cases_of(problem)]
    if not cases:
        raise UsageError(
            f"case: got no case of {', '.join(problems)}; the cases of a problem show its answer,"
            " and are handed out with it, in solutions/"
        )
    found = [case for case in cases if id is None or case.id == id.strip().lower()]
    if not found:
        raise UsageError(
            f"--case: got {clean(id, 40)!r}, expected one of {', '.join(c.id for c in cases)}"
        )
    return found


def _one(cases: Sequence[Case], own: Path, progress: QuizProgress, terminal: Terminal) -> str:
    """Ask the next case; return the last line for the user, less the command that continues."""
    terminal.notes(progress.notices)
    left = [c for c in cases if progress.outcomes.get(c.id) is not AnswerState.RIGHT]
    if not left and len(cases) > 1:
        return f"All {len(cases)} are solved. Again: RESTART=1 with"
    # Cases without an answer come first; of them those that do not give an answer away: of problems
    # that the user has finished, and cases that are open already.
    left = [c for c in left if c.id not in progress.outcomes] or left or [*cases]
    known = {id for id in {case.problem.id for case in left} if _is_finished(id, own)}
    seen = [c for c in left if c.problem.id in known or is_sealed(FOLDER / c.id)]
    case = (seen or left)[0]
    id = case.problem.id
    if not seen:
        terminal.line(f"{case.id} shows an answer of {id}, which you have not finished.")
        if not terminal.read("open it anyway? y/n: ").strip().lower().startswith("y"):
            return "Nothing was opened. Other problems"
    asked = Asked(case, open_case(case, lambda folder: tested(folder, id, SEED)), terminal)
    asked.show()
    outcome = asked.ask()
    progress.add(case.id, outcome)
    right = [c for c in cases if progress.outcomes.get(c.id) is AnswerState.RIGHT]
    return f"{case.id}: {outcome}; {len(right)} of {len(cases)} solved. Next"


def _is_finished(problem_id: str, own: Path) -> bool:
    """Whether every step of the user's own file has code."""
    source = read_source(load_problem(problem_id), own)
    return source.verdict is None and source.next_step is None
