"""The model answers, judged in this process: full marks in every check."""

import pytest

from grader.spec.problem import load_problem, problem_ids
from tests import forked
from tests.harness import judge, model_answer

_quick = forked.quick


@pytest.mark.parametrize("problem_id", problem_ids())
def test_every_answer_earns_full_marks(problem_id):
    judged = judge(model_answer(problem_id), load_problem(problem_id))
    wrong = {place: finding.message for place, finding in judged.wrong.items()}
    assert wrong == {}
    points = judged.correctness.points
    assert points.earned == points.available == points.possible
