"""The hints of a problem, and the next one: of the first step that is not solved.

HINTS.md has per step a nudge, then the answer in words, in parts. A part is a paragraph, so that a
student can take half an answer; one that ends in a colon goes with what follows. A step is not
solved where it has no code, else where its test fails. What was shown is counted in a file of the
user.
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
STATE = "hints.json"  # of the user
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
    """Where a student is: a step of a problem, or, without one, the `obstacle` in the way of it.

    `seen` is what the first test that fails says, `cause` the id of a cause that was named. Where
    that is of no step, `check` is the one that fails and that the step turns green.
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
    """Return the first step that is not solved, None where every test passes.

    Of several problems only the last one whose steps all have code is tested, which takes seconds:
    problems are solved in their order.
    """
    whole = None
    for problem in map(load_problem, problem_ids):
        found = in_source(problem, read_source(problem, submission))
        if found is not None:
            return (whole and _in_tests(whole, test)) or found
        whole = problem
    return whole and _in_tests(whole, test)


def in_source(problem: Problem, source: Source) -> Unsolved | None:
    """Return what a file shows to be open before any test; None where every step has code."""
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
    """Return the step that ends needless work, where every check passes and work costs points."""
    work, behind = result.components.get(WORK), problem.first_step_behind([WORK])
    if work is None or behind is None or work.points.earned >= work.points.available:
        return None
    earned, available = work.points.earned, work.points.available
    seen = f"work: {earned:g} of {available:g} points; every check passes"
    return Unsolved(problem, behind[0], seen=seen)


class _Counts(user_state.State):
    """The file: how many hints were shown, by problem and step."""

    shown: dict[str, dict[str, Annotated[int, Field(ge=0, strict=True)]]]


class Shown(user_state.StateFile[_Counts]):
    """How many hints of each step were shown, kept in the file `path` (None: in memory)."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(path, "how many hints you took", _Counts(shown={}))

    def of(self, problem_id: str) -> dict[str, int]:
        """Return how many hints of a problem were shown, by step."""
        return self.state.shown.setdefault(problem_id, {})

    def forget(self, problem_id: str) -> None:
        """Begin anew with a problem and write the file."""
        self.of(problem_id).clear()
        self.write()


@dataclasses.dataclass(frozen=True)
class Hint:
    """What is shown: hint `number` of `count` of a step in Markdown, or none where `text` is None.

    `taken` counts the hints of the problem so far, this one with them.
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
    """Return the next hint and count it; None where nothing is left to solve.

    `test` grades one problem without its measurements; it is asked where every step has code.

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
