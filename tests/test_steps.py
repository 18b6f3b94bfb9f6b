"""Each step turns green what docs/steps.md says; `python -m tests.steps` makes that page.

A share of the steps; `make sweep PARTS=corpora` judges all of them.
"""

from typing import NamedTuple

import pytest

from grader.spec.problem import WORK, load_problem, problem_ids
from tests import steps
from tests.forked import forked_workers
from tests.shares import drawn

PAGE = steps.read_page()
# Steps before the first launch, which nothing can be seen of; the last of p01 earns speed alone.
NOTHING = {"p01": {6}, "p03": {2, 3}}


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with forked_workers():
        yield


def first_of(problem, checks):
    """The check, of these, with the fewest cases."""
    return min(checks, key=lambda name: len(problem.check(name).cases) if name != "work" else 9)


class Green(NamedTuple):
    """What the page says of a step that turns something green."""

    problem: str
    number: int
    checks: list[str]

    @property
    def id(self):
        return f"{self.problem}-{self.number}"


GREEN = [
    Green(problem_id, number, new)
    for problem_id, found in PAGE.items()
    for number, new in enumerate(found, start=1)
    if new
]


@pytest.mark.parametrize("step", drawn(GREEN, 5), ids=lambda step: step.id)
def test_each_step_turns_green_what_the_page_says(step):
    problem = load_problem(step.problem)
    name = first_of(problem, step.checks)
    assert name in steps.green(problem, step.number, {name})
    assert name not in steps.green(problem, step.number - 1, {name})


def test_every_step_is_on_the_page():
    for problem in map(load_problem, problem_ids()):
        found = PAGE[problem.id]
        assert len(found) == len(problem.steps)
        silent = {number for number, new in enumerate(found, start=1) if not new}
        assert silent == NOTHING.get(problem.id, set())


@pytest.mark.parametrize("problem_id", problem_ids())
def test_problem_toml_says_what_the_page_says(problem_id):
    said = [list(step.turns_green) for step in load_problem(problem_id).steps]
    assert said == [[name for name in new if name != WORK] for new in PAGE[problem_id]]


@pytest.mark.parametrize("problem_id", problem_ids())
def test_all_is_green_after_the_last_step(problem_id):
    problem = load_problem(problem_id)
    wanted = {check.id for check in problem.checks if not check.compiles}
    wanted |= {"work"} if problem.work else set()
    assert {name for new in PAGE[problem_id] for name in new} == wanted


def test_a_student_writes_a_quarter_of_the_required_code():
    required = [p for p in map(load_problem, problem_ids()) if not p.bonus]
    _, code, students, _ = map(sum, zip(*map(steps.sizes, required), strict=True))
    assert 4 * students >= code


def test_the_page_is_up_to_date():
    assert steps.PAGE.read_text("utf-8") == steps.page(PAGE)


@pytest.mark.parametrize("step", [0, 3])
def test_the_reports_are_up_to_date(step):
    """Of p02, whose sums are the same on every machine; `python -m tests.steps` makes all."""
    page = (steps.REPORTS / "p02.md").read_text("utf-8")
    assert steps.section(load_problem("p02"), step) in page


def test_every_step_has_its_report():
    for problem in map(load_problem, problem_ids()):
        page = (steps.REPORTS / f"{problem.id}.md").read_text("utf-8")
        titles = [line for line in page.splitlines() if line.startswith("## ")]
        wanted = [f"## Step {n}: {step.title}" for n, step in enumerate(problem.steps, start=1)]
        assert titles == ["## The stub", *wanted]
        assert page.count("mode local") == len(titles)
