"""Nothing is seen in kernels that are right, however they are written, model answers or not."""

from __future__ import annotations

import pytest
import torch

from grader.cases import resolve
from grader.checks.correctness import expect
from grader.inputs import case_seed, make_inputs
from grader.manifest import load_problem, problem_ids
from grader.running.session import Budget, Session
from grader.sightings.look import look
from grader.sightings.scaled import delta_scaled, scaled
from grader.sightings.sighting import Result
from grader.source import Source
from reference import mistakes_for
from tests.forked import forked_workers
from tests.harness import SEED
from tests.trials import right_answers

TRITON = [id for id in problem_ids() if load_problem(id).uses_triton]
RIGHT = {
    id: answer
    for kind in ("answers", "unusual")
    for id, answer in right_answers(kind).items()
    if answer[0] in TRITON
}
# Lengths that are no multiple of a tile, a group of heads, options that cut tiles.
SIZES = {"seqlen": 150, "num_q_heads": 2}
OPTIONS = {
    "p02": {"rows": 50, "cols": 300, "num_q_heads": 1, "seqlen": 1},
    "p03": SIZES,
    "p04": SIZES,
    "p05": SIZES | {"num_kv_heads": 1},
    "p06": SIZES | {"num_kv_heads": 1, "window_size": 40},
    "p07": SIZES | {"num_kv_heads": 1, "window_size": 40, "num_sink_tokens": 9},
    "p08": SIZES | {"num_kv_heads": 1},
    "p09": SIZES | {"num_kv_heads": 1, "window_size": 40, "num_sink_tokens": 9},
}


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with forked_workers():
        yield


@pytest.mark.parametrize("id", RIGHT)
def test_nothing_is_seen_in_a_right_kernel(id: str) -> None:
    problem_id, source = RIGHT[id]
    problem = load_problem(problem_id)
    budget = Budget(problem.limits)
    data = Source(problem_id, source.encode())
    session = Session(problem, data, device="cpu", interpret=True, budget=budget)
    names = problem.returns + problem.gradients[:3]
    try:
        for dtype in ("fp32", "fp16") if problem_id == "p02" else ("fp32",):
            case = resolve(OPTIONS[problem_id], dtype, "")
            inputs = make_inputs(problem, case, case_seed(SEED, id))
            trace = session.call(case, inputs, names, traced=True).trace
            assert trace is not None
            for name in names:
                for nan in (False, True):
                    result = Result((name,), nan=nan, close=not nan)
                    assert look(problem_id, case, trace, result) is None
    finally:
        session.close()


@pytest.mark.parametrize(
    ("given", "factor", "words"),
    [
        ({"seqlen": 128}, 0.125, "0.125 (softmax_scale)"),
        (
            {"seqlen": 128, "num_q_heads": 2, "num_kv_heads": 1, "softmax_scale": 2.0},
            2.0,
            "softmax_scale or the group",
        ),
        ({"seqlen": 128}, 0.75, "0.75 times"),
        ({"seqlen": 1}, 2.0, None),  # lse is one number: any factor would fit
    ],
)
def test_an_output_that_is_off_by_a_factor_everywhere(given, factor, words):
    problem = load_problem("p05")
    case = resolve(problem.base.given | given, "fp32", SEED)
    inputs = make_inputs(problem, case, case_seed(SEED, "scaled"))
    expected = expect(problem, case, inputs, ("lse",))
    got = {"lse": (factor * expected.truth["lse"]).float()}
    found = scaled(case, ("lse",), got, expected)
    assert (found is None) == (words is None)
    assert found is None or words in found.title
    if found:
        got["lse"][0, 0, 0] += 1.0
        assert scaled(case, ("lse",), got, expected) is None


def test_a_factor_of_next_to_nothing_is_none_where_most_of_what_came_out_is_left():
    problem = load_problem("p05")
    case = resolve(problem.base.given | {"seqlen": 128}, "fp16", SEED)
    inputs = make_inputs(problem, case, case_seed(SEED, "small"))
    expected = expect(problem, case, inputs, ("out",))
    truth = expected.truth["out"]
    small = 1e-3 * truth
    assert scaled(case, ("out",), {"out": small.half()}, expected) is not None
    other = small + 0.05 * small.abs().max() * torch.randn(truth.shape, dtype=truth.dtype)
    assert scaled(case, ("out",), {"out": other.half()}, expected) is None


@pytest.mark.parametrize(("times", "told"), [(0.5, True), (2.0, True), (1.02, False), (0.0, False)])
def test_how_often_delta_counts(times, told):
    problem = load_problem("p08")
    case = resolve(problem.base.given | {"seqlen": 64}, "fp32", SEED)
    inputs = make_inputs(problem, case, case_seed(SEED, "delta"))
    expected = expect(problem, case, inputs, ("dq", "dk"))
    (missing,) = (m for m in mistakes_for("p08") if m.id == "DELTA-MISSING")
    without = missing.fn(dict(inputs.all), case.kwargs)
    got = {n: without[n] + times * (t - without[n]) for n, t in expected.truth.items()}
    found = delta_scaled("p08", case, inputs, ("dq", "dk"), got, expected)
    assert (found is not None) == told
    assert found is None or f"{times:.3g} * delta" in found.title
    got["dq"] = got["dq"] + 0.1 * got["dq"].abs().max() * torch.randn_like(got["dq"])
    assert delta_scaled("p08", case, inputs, ("dq", "dk"), got, expected) is None
    assert delta_scaled("p08", case, inputs, ("dv",), got, expected) is None
