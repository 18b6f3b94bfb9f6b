"""Reads the hints of a problem, and chooses the next: one of the first unsolved step.

HINTS.md has per step a nudge, then the answer in words. Each paragraph is one hint, so that a
student can read half an answer; one that ends in a colon includes the next. A step is unsolved
while it has no code, or its test fails. A file of the user counts the hints that were shown.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from grader.base import user_state
from grader.commands.lint.command import is_refused
from grader.report.message import NOT_WRONG, causes, headline_of
from grader.source.submission import Source, read_source
from grader.spec.grade_record import ProblemResult, Verdict
from grader.spec.problem import ManifestError, Problem, load_problem
from grader.spec.problem_tables import WORK

FILE = "HINTS.md"
STATE = "hints.json"  # in the user's state folder
_STEP = re.compile(r"^## Step (\d+): .+$", re.MULTILINE)
_FORMULA = re.compile(r"\$([^$\n]+)\$")
_WORDS = {r"\infty": "infinity", r"\delta": "delta", r"\times": "x", r"\cdot": "*"}


def hints_of(problem: Problem) -> Mapping[int, tuple[str, ...]]:
    """Return the hints of each step, in Markdown, the nudge first.

    Raises:
        ManifestError: HINTS.md is missing, or has none for a step.
    """
    path = Path(problem.folder) / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ManifestError(f"{path}: {why}; copy the file from the release again") from None
    _, *parts = _STEP.split(text)
    sections = zip(parts[::2], parts[1::2], strict=True)
    found = {int(number): tuple(_hints(section)) for number, section in sections}
    for step in range(1, len(problem.steps) + 1):
        if not found.get(step):
            raise ManifestError(f"{path}: got no hint for step {step}, expected one or more")
    return found


def plain_formulas(text: str) -> str:
    """Return Markdown with its short TeX formulas as a terminal can show them."""

    def plain(match: re.Match[str]) -> str:
        formula = match[1]
        for tex, word in _WORDS.items():
            formula = formula.replace(tex, word)
        formula = re.sub(r"\^\{([^\W_]+)\}", r"^\1", formula)
        return re.sub(r"\^\{([^{}]*)\}", r"^(\1)", formula)

    return _FORMULA.sub(plain, text)


def _hints(section: str) -> list[str]:
    hints: list[str] = []
    goes_on = False
    for block in re.split(r"\n\s*\n", section.strip()):
        if block.startswith("### "):
            goes_on = False
            continue
        if goes_on or (hints and block.startswith(("- ", "    ", "```", "$$", "|"))):
            hints[-1] += f"\n\n{block}"
        else:
            hints.append(block)
        goes_on = block.endswith(":")
    return hints


@dataclasses.dataclass(frozen=True)
class Unsolved:
    """The place where a student is stuck: a step, or the `obstacle` that hides which step it is.

    `seen` is the message of the first failing test, `cause` the id of the cause it names. Where the
    message names no step, `check` is a failing check by which the step was chosen.
    """

    problem: Problem
    step: int | None = None
    obstacle: str | None = None
    seen: str | None = None
    cause: str | None = None
    check: str | None = None


def find(
    problem_ids: Sequence[str], submission: Path, test: Callable[[str], ProblemResult]
) -> Unsolved | None:
    """Return the first unsolved step, None where every test passes.

    A test takes seconds, and problems are solved in order: of those before the first with an empty
    step, only the last is tested.
    """
    whole = None
    for problem in map(load_problem, problem_ids):
        found = in_source(problem, read_source(problem, submission))
        if found is not None:
            return (whole and _in_tests(whole, test)) or found
        whole = problem
    return whole and _in_tests(whole, test)


def in_source(problem: Problem, source: Source) -> Unsolved | None:
    """Return the unsolved step or obstacle that the file alone shows; None if all have code."""
    if source.other_release:
        obstacle = "the steps of this file are those of another release; see CHANGELOG.md"
        return Unsolved(problem, obstacle=obstacle)
    if is_refused(source):
        message = source.message
        where = f" line {message.line}" if message.line else ""
        return Unsolved(problem, obstacle=f"{problem.id}/{problem.file}{where}: {message.headline}")
    step = source.next_step
    if step is not None and step <= len(problem.steps):
        return Unsolved(problem, step)
    if source.verdict is Verdict.NOT_IMPLEMENTED:
        return Unsolved(problem, 1)
    return None


def _in_tests(problem: Problem, test: Callable[[str], ProblemResult]) -> Unsolved | None:
    result = test(problem.id)
    found = causes(result)
    failed = [check for check in result.checks if check.verdict not in NOT_WRONG]
    if not found and not failed:
        return _in_work(problem, result)
    if not found:
        return Unsolved(problem, obstacle=f"{failed[0].title}: {failed[0].verdict}")
    first = found[0]
    seen, named = headline_of(first), first.diagnosis.id if first.diagnosis else None
    step, check = first.step if first.step is not None else first.message.step, None
    if step is None or step > len(problem.steps):
        behind = problem.first_step_behind([check.id for check in failed])
        if behind is None:
            return Unsolved(problem, obstacle=seen, cause=named)
        step, check = behind
    return Unsolved(problem, step, seen=seen, cause=named, check=check)


def _in_work(problem: Problem, result: ProblemResult) -> Unsolved | None:
    """Return the step that saves needless work, where every check passes but work costs points."""
    work, behind = result.components.get(WORK), problem.first_step_behind([WORK])
    if work is None or behind is None or work.points.earned >= work.points.available:
        return None
    earned, available = work.points.earned, work.points.available
    seen = f"work: {earned:g} of {available:g} points; every check passes"
    return Unsolved(problem, behind[0], seen=seen)


class _Counts(user_state.State):
    """The contents of the file: how many hints were shown, by problem and step."""

    shown: dict[str, dict[str, Annotated[int, Field(ge=0, strict=True)]]]


class Shown(user_state.StateFile[_Counts]):
    """Counts the hints shown for each step, in the file `path` (None: in memory alone)."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(path, "how many hints you took", _Counts(shown={}))

    def of(self, problem_id: str) -> dict[str, int]:
        """Return how many hints of a problem were shown, by step."""
        return self.state.shown.setdefault(problem_id, {})

    def forget(self, problem_id: str) -> None:
        """Reset the counts of a problem and write the file."""
        self.of(problem_id).clear()
        self.write()


@dataclasses.dataclass(frozen=True)
class Hint:
    """Hint `number` of `count` of a step, in Markdown; `text` is None where no hint is left.

    `taken` counts the hints of the problem that were shown, including this one.
    """

    where: Unsolved
    text: str | None = None
    number: int = 0
    count: int = 0
    taken: int = 0


def next_hint(
    problem_ids: Sequence[str],
    submission: Path,
    shown: Shown,
    test: Callable[[str], ProblemResult],
    *,
    restart: bool = False,
) -> Hint | None:
    """Return the next hint and count it; return None where every step is solved.

    `test` grades one problem without its measurements, and is called only if all steps have code.

    Raises:
        ManifestError: a problem has no hints.
    """
    where = find(problem_ids, submission, test)
    if where is None:
        return None
    if restart:
        shown.forget(where.problem.id)
    taken = shown.of(where.problem.id)
    if where.step is None:
        return Hint(where, taken=sum(taken.values()))
    hints, text = hints_of(where.problem)[where.step], None
    number = taken.get(str(where.step), 0)
    if number < len(hints):
        text = hints[number]
        number += 1
        taken[str(where.step)] = number
        shown.write()
    return Hint(where, text, number, len(hints), sum(taken.values()))
