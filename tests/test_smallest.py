"""The smallest case that is wrong in the same way."""

from types import SimpleNamespace

import pytest

from grader.judge import smallest
from grader.judge.case import CheckCase
from grader.spec.cases import resolve
from grader.spec.problem import load_problem
from tests import forked
from tests.harness import SEED, edited, model_answer, run_of

_quick = forked.quick


def said(problem_id, change, check, *, shrinks=1):
    """What is said of a smaller case than the first of a check, by a file with one change."""
    problem, source = load_problem(problem_id), edited(model_answer(problem_id), change)
    run = run_of(source, problem, shrinks=shrinks)
    try:
        case = problem.cases(problem.check(check), SEED)[0]
        return run.judge(CheckCase(problem, problem.check(check), 0, case)).message.small
    finally:
        run.sessions.close()


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

    def found(session, called, case):
        try:
            return next(wrong) and SimpleNamespace(first="out[0]")
        except StopIteration:
            raise smallest._Gone from None

    monkeypatch.setattr(smallest, "_wrong", found)
    case = resolve({"seqlen": 64, "head_dim": 64}, "fp32", "")
    assert " head_dim=32 " in smallest.smaller_case(None, SimpleNamespace(case=case))
