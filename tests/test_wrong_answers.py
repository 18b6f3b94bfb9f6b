"""Mistakes of tests/wrong get no name that is not true of them, and one where one is known.

One of each name and problem; `python -m tests.wrong` judges all of them, in all checks.
"""

from __future__ import annotations

import pytest

from grader.spec.problem import load_problem
from tests.forked import forked_workers
from tests.harness import judge
from tests.wrong import WRONG, Wrong

ONE_OF_EACH = {
    (wrong.problem, wrong.causes): wrong for wrong in reversed(WRONG) if wrong.checks
}.values()


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with forked_workers():
        yield


@pytest.mark.parametrize("wrong", ONE_OF_EACH, ids=lambda wrong: wrong.id)
def test_a_mistake_is_named_truly_or_not_at_all(wrong: Wrong) -> None:
    judged = judge(wrong.source(), load_problem(wrong.problem), checks=wrong.checks)
    assert judged.wrong
    assert judged.named <= set(wrong.causes)
    assert bool(judged.named) == bool(wrong.causes)
