"""Each step turns green what problem.toml says; `python -m tests.steps` prints what they do."""

import pytest

from grader.spec.problem import load_problem, problem_ids
from grader.spec.problem_tables import WORK
from tests import steps
from tests.forked import forked_workers

# Steps before the first launch, of which nothing can be seen; the last of p01 earns speed alone.
NOTHING = {"p01": {6}, "p03": {2, 3}}


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with forked_workers():
        yield


def smallest_of(problem, checks):
    """The check, of these, with the fewest cases; the count of work where there is none."""
    return min(checks, key=lambda name: len(problem.check(name).cases) if name != WORK else 9)


@pytest.mark.parametrize("problem_id", problem_ids())
def test_each_step_turns_green_what_problem_toml_says(problem_id):
    problem = load_problem(problem_id)
    found = {number: step.turns_green for number, step in enumerate(problem.steps, start=1)}
    assert {number for number, new in found.items() if not new} == NOTHING.get(problem_id, set())
    for number, new in found.items():
        if new:
            name = smallest_of(problem, new)
            assert name in steps.green(problem, number, {name}), f"step {number}: {name}"
            assert name not in steps.green(problem, number - 1, {name}), f"before step {number}"


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
