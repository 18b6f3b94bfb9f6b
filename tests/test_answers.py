"""The model answers, judged in this process: full marks in every check.

Of the cases of a check a quarter per version, one at the least; `pytest problems/pNN --submission
solutions` and `make sweep` judge all.
"""

import pytest

from grader.spec.problem import load_problem, problem_ids
from tests import forked
from tests.harness import judge, model_answer
from tests.shares import drawn

_quick = forked.quick


@pytest.mark.parametrize("problem_id", problem_ids())
def test_every_answer_earns_full_marks(problem_id):
    problem = load_problem(problem_id)
    checks = [c.model_copy(update={"cases": tuple(drawn(c.cases, 4))}) for c in problem.checks]
    problem = problem.model_copy(update={"checks": tuple(checks)})
    judged = judge(model_answer(problem_id), problem)
    wrong = {place: finding.message for place, finding in judged.wrong.items()}
    assert wrong == {}
    points = judged.correctness.points
    assert points.earned == points.available == points.possible
