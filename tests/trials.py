"""What must become of wrong kernels and of right ones: for tests, tests/seeds.py and golden.py."""

from collections.abc import Iterable
from typing import Any
from unittest import mock

from grader.causes.diagnose import Casebook
from grader.judge import problem_run
from grader.spec.findings import CauseFound, Finding
from grader.spec.grade_record import Verdict
from grader.spec.problem import load_problem, problem_ids
from tests.harness import Judged, judge, model_answer, whole_answer
from tests.mutants import MUTANTS, Mutant
from tests.mutants.seen import IN_ALL_CHECKS, TWO_NAMES
from tests.unusual import ANSWERS
from tests.wrong import Wrong

WIDE = 8.0  # error / allowed below which a wrong kernel might pass with other inputs
Place = tuple[str, int]


class NoNames(Casebook):
    """Looks for no causes: that takes longer than all else."""

    def add_wrong(self, *args: Any) -> None:
        pass

    def settle(self, *args: Any) -> list[CauseFound]:
        return []


def rejection(mutant: Mutant, seed: str) -> list[str]:
    """Judge a wrong kernel until each of its checks has rejected it by a wide margin."""
    source = mutant.applied_to(whole_answer(mutant.problem))
    is_enough = last_is_wrong if mutant.caught_as else _decided_by_numbers

    def enough(found: dict[Place, Finding]) -> bool:
        return next(reversed(found))[0] in mutant.checks and is_enough(found)

    # Whether an input was written to, an earlier case has to show.
    checks = None if "arguments" in mutant.checks else {*mutant.checks}
    given = {"checks": checks, "seed": seed, "policy": mutant.keeps_policy, "enough": enough}
    with mock.patch.object(problem_run, "Casebook", NoNames):
        return _not_rejected(mutant, judge(source, load_problem(mutant.problem), **given))


# Where a state goes wrong, which may be named of a mistake for which nothing says why.
LAST_RESORT = {"STATE-PARTS"}


def misnamed(mutant: Mutant, judged: Judged, *, all_checks: bool = True) -> list[str]:
    """Look at the cause and the step that are named of a wrong kernel.

    Without `all_checks` it was judged in the plain cases and its own alone: no other can contradict
    its cause.
    """
    complaints = _not_rejected(mutant, judged)
    names = set(mutant.names) or judged.named & LAST_RESORT
    if all_checks:
        names |= IN_ALL_CHECKS.get(mutant.id, set()) | TWO_NAMES.get(mutant.id, set())
    most = 2 if all_checks and mutant.id in TWO_NAMES else 1
    if not judged.named <= names or not bool(names) <= len(judged.named) <= most:
        complaints.append(f"named {_listed(judged.named)}, expected {_listed(names)}")
    if mutant.step is not None or not mutant.caught_as:  # else the line decides
        steps = {judged.of(check).step for check in mutant.checks}
        touched = mutant.steps_touched(whole_answer(mutant.problem))
        known = {None, *touched} if mutant.step is None else {mutant.step}
        if judged.named and judged.named <= names - {mutant.expected_id}:
            known |= {None}
        if not steps <= known:
            complaints.append(f"step {_listed(steps)}, expected {_listed(known)}")
    return complaints


def overcharged(mutant: Mutant, judged: Judged) -> list[str]:
    """Look at the correctness points that are left of a wrong kernel, judged in all checks."""
    points = judged.correctness.points
    share = points.earned / points.possible
    complaints = []
    # A bridge is of a function of its own; launches and stores earn their step whatever is in them.
    others = {c.id for c in judged.problem.checks if c.bridge or c.judges != "numbers"}
    held = [check.id for check in judged.checks if check.share > 0.0 and check.id not in others]
    if mutant.earns_nothing and held:
        complaints.append(f"earns {points.earned} points: {', '.join(held)}")
    if share < (mutant.keeps or 0.0) or share >= 1.0:
        lost = ", ".join(check.id for check in judged.checks if check.share < 1.0)
        complaints.append(f"keeps {share:.2f}, expected {mutant.keeps or 0.0} or more: lost {lost}")
    return complaints


def untrue(wrong: Wrong, judged: Judged) -> list[str]:
    """Look at the cause that is named of a mistake: a true one, and one where one is known."""
    if not judged.wrong:
        return ["every check accepts it"]
    causes = set(wrong.causes) or judged.named & LAST_RESORT
    if judged.named <= causes and bool(judged.named) == bool(causes):
        return []
    return [f"named {_listed(judged.named)}, expected {_listed(wrong.causes)}"]


def rejected(judged: Judged) -> list[str]:
    """Look at a right answer: each case passes, and no point is missing."""
    complaints = [
        f"{check} rejects it: {finding.message.headline if finding.message else finding.verdict}"
        f" ({finding.message.input if finding.message else index})"
        for (check, index), finding in judged.wrong.items()
    ]
    points = judged.correctness.points
    if points.earned < points.possible:
        complaints.append(f"earns {points.earned} of {points.possible} points")
    return complaints


def of_mutant(mutant: Mutant, judged: Judged) -> list[str]:
    """Look at all that is expected of a wrong kernel, judged in all checks."""
    return misnamed(mutant, judged) + overcharged(mutant, judged)


def named(mutant: Mutant, seed: str) -> list[str]:
    """Judge a wrong kernel in all checks; look at its names and at the points that are left."""
    source = mutant.applied_to(whole_answer(mutant.problem))
    problem = load_problem(mutant.problem)
    return of_mutant(mutant, judge(source, problem, seed=seed, policy=mutant.keeps_policy))


def acceptance(kind: str, id: str, seed: str) -> list[str]:
    """Judge a right answer in all checks."""
    problem_id, source = right_answers(kind)[id]
    return rejected(judge(source, load_problem(problem_id), seed=seed))


def right_answers(kind: str) -> dict[str, tuple[str, str]]:
    """The right answers of a kind that the Triton at hand can run: id -> problem, source."""
    if kind == "answers":
        return {id: (id, model_answer(id)) for id in problem_ids()}
    return {
        answer.id: (answer.problem, answer.applied_to(whole_answer(answer.problem)))
        for answer in ANSWERS
        if answer.lacks() is None
    }


def wrong_kernels(problems: Iterable[str]) -> dict[str, Mutant]:
    """The mutants of some problems, by id."""
    wanted = set(problems)
    return {m.id: m for m in MUTANTS if m.problem in wanted}


def last_is_wrong(found: dict[Place, Finding]) -> bool:
    """Whether the last case rejects what was judged."""
    return next(reversed(found.values())).verdict is not Verdict.PASS


def _decided_by_numbers(found: dict[Place, Finding]) -> bool:
    """Whether the last case rejects what was judged by its numbers, by a wide margin."""
    return (next(reversed(found.values())).margin or 0.0) >= WIDE


def _wrong(judged: Judged, check_id: str) -> list[Finding]:
    return [finding for (check, _), finding in judged.wrong.items() if check == check_id]


def _margin(judged: Judged, check_id: str) -> float | None:
    return max((f.margin for f in _wrong(judged, check_id) if f.margin is not None), default=None)


def _not_rejected(mutant: Mutant, judged: Judged) -> list[str]:
    complaints = []
    for check in mutant.checks:
        wrong = _wrong(judged, check)
        if not wrong:
            complaints.append(f"{check} accepts it")
            continue
        headlines = [f.message.headline for f in wrong if f.message]
        if mutant.caught_as:
            if not any(mutant.caught_as in headline for headline in headlines):
                complaints.append(f"{check} says {headlines[0]!r}, expected {mutant.caught_as!r}")
        elif {finding.verdict for finding in wrong} != {Verdict.FAIL}:
            complaints.append(f"{check} says {headlines[0]!r}, expected wrong numbers")
        elif (margin := _margin(judged, check) or 0.0) < WIDE:  # one of NaN is none
            complaints.append(f"{check} rejects it by {margin:.2g} times the tolerance alone")
    return complaints


def _listed(things: Iterable[object]) -> str:
    return " or ".join(sorted(map(str, things))) or "nothing"
