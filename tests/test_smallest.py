"""The smallest case that is wrong in the same way."""

import pytest

from grader.causes.diagnose import Casebook
from grader.checks.correctness import find_differences
from grader.isolate.session import Budget, Session
from grader.judge import smallest
from grader.judge.case_run import CaseRun
from grader.judge.trial import Trial
from grader.source.submission import Source
from grader.spec.cases import resolve
from grader.spec.problem import load_problem
from tests import forked
from tests.harness import SEED, model_answer

_quick = forked.quick


def said(problem_id, change, check, *, shrinks=1):
    """What is said of a smaller case than the first of a check, by a file with one change."""
    problem, source = load_problem(problem_id), model_answer(problem_id)
    assert source.count(change[0]) == 1
    data = Source(problem_id, source.replace(*change).encode())
    trial = Trial(problem, SEED, Casebook(problem), shrinks=shrinks)
    session = Session(problem, data, device="cpu", machine=True, budget=Budget(problem.limits))
    try:
        case = problem.cases(problem.check(check), SEED)[0]
        return CaseRun(trial, session, problem.check(check), 0, case).judge().message.small
    finally:
        session.close()


NEXT_KEY = ("> queries - window_size)", "> queries - window_size - 1)")


@pytest.mark.parametrize(
    ("problem_id", "change", "check", "small"),
    [
        ("p02", ("col_ids < cols", "col_ids < cols - 1"), "plain", "rows=1 cols=1 fp32"),
        ("p06", NEXT_KEY, "window", "num_q_heads=1 seqlen=2 head_dim=16 window_size=1 fp32"),
    ],
)
def test_the_smallest_case_that_is_wrong_is_named(problem_id, change, check, small):
    text = said(problem_id, change, check)
    assert f"{small} is wrong, too: " in text and "expected" in text


def test_a_trial_looks_for_so_many_and_none_is_looked_for_where_none_is_asked_for():
    assert said("p06", NEXT_KEY, "window", shrinks=0) is None


def test_no_smaller_case_has_more_of_anything():
    given = {"batch": 2, "num_q_heads": 6, "num_kv_heads": 3, "seqlen": 33, "layout": "bshd"}
    case = resolve(given | {"window_size": 20, "num_sink_tokens": 4}, "fp16", "")
    found = list(smallest._smaller(case))
    sizes = ("batch", "num_q_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim")
    assert len(found) > 10 and case not in found
    for smaller in found:
        assert all(getattr(smaller, name) <= getattr(case, name) for name in sizes)
        assert all(smaller.kwargs[name] <= case.kwargs[name] for name in case.kwargs)
    assert len(found) == len(set(found))


def test_a_worker_that_dies_ends_the_search_and_what_was_found_stays(monkeypatch):
    wrong = iter([None, True])

    def found(self, case):
        try:
            return next(wrong) and find_differences
        except StopIteration:
            raise smallest._TooLong from None

    monkeypatch.setattr(smallest._Shrinking, "_wrong", found)
    case = resolve({"seqlen": 64, "head_dim": 64}, "fp32", "")
    best, _ = smallest._Shrinking(None, None, "", "out", nan=False).smallest(case)
    assert best.head_dim == 32
