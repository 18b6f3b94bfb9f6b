"""Each step turns green what problem.toml says; `python -m tests.steps` prints what they do.

A share of the steps; `make sweep PARTS=corpora` judges all of them.
"""

from typing import NamedTuple

import pytest

from grader.spec.problem import load_problem, problem_ids
from grader.spec.problem_tables import WORK
from tests import forked, steps
from tests.shares import drawn

# Steps before the first launch, of which nothing can be seen; the last of p01 earns speed alone.
SILENT = {("p01", 6), ("p03", 2), ("p03", 3)}


class Green(NamedTuple):
    """What problem.toml says of a step."""

    problem: str
    number: int
    checks: tuple[str, ...]

    @property
    def id(self):
        return f"{self.problem}-{self.number}"


STEPS = [
    Green(problem.id, number, step.turns_green)
    for problem in map(load_problem, problem_ids())
    for number, step in enumerate(problem.steps, start=1)
]

_quick = forked.quick


def smallest_of(problem, checks):
    """The check, of these, with the fewest cases; the count of work where there is none."""
    return min(checks, key=lambda name: len(problem.check(name).cases) if name != WORK else 9)


@pytest.mark.parametrize("step", drawn([s for s in STEPS if s.checks], 10), ids=lambda s: s.id)
def test_each_step_turns_green_what_problem_toml_says(step):
    problem = load_problem(step.problem)
    name = smallest_of(problem, step.checks)
    assert name in steps.green(problem, step.number, {name})
    assert name not in steps.green(problem, step.number - 1, {name})


def test_only_these_steps_turn_nothing_green():
    assert {(step.problem, step.number) for step in STEPS if not step.checks} == SILENT


@pytest.mark.parametrize("problem_id", problem_ids())
def test_each_check_turns_green_with_one_step(problem_id):
    problem = load_problem(problem_id)
    said = [name for step in problem.steps for name in step.turns_green]
    wanted = [check.id for check in problem.checks if not check.compiles]
    assert sorted(said) == sorted([*wanted, *[WORK] * (problem.work is not None)])


def test_a_student_writes_a_quarter_of_the_required_code():
    required = [p for p in map(load_problem, problem_ids()) if not p.bonus]
    _, code, students, _ = map(sum, zip(*map(steps.sizes, required), strict=True))
    assert 4 * students >= code
