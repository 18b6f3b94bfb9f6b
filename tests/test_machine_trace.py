"""The record that observers of the machine make of a call, beside the tracer's in the interpreter.

`python -m tests.machine_compare --trace` compares those of all submissions.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.machine_compare import differing, interpreted, machine_trace, submissions, traced

from grader.kernel.observers.rounds import RoundsShape
from grader.kernel.observers.trace import Counter
from grader.source.submission import Source
from grader.spec.inputs import make_inputs
from grader.spec.problem import load_problem
from tests.forked import forked_workers
from tests.harness import cases_of, model_answer


@pytest.fixture(autouse=True, scope="module")
def _quick():
    torch.set_num_threads(1)
    with forked_workers():
        yield


def call_of(problem_id: str, check: str, old: str = "", new: str = "") -> tuple:
    """A problem, its model answer with an edit, the first case of a check, and inputs for it."""
    problem, text = load_problem(problem_id), model_answer(problem_id)
    assert old in text
    case = cases_of(problem, [check])[0][2]
    source = Source(problem_id, text.replace(old, new).encode(), policy=True)
    return problem, source, case, make_inputs(problem, case, 0)


@pytest.mark.parametrize(
    ("problem", "kind", "id"),
    [
        ("p03", "unusual", "keys_in_the_program"),
        ("p08", "answers", "p08"),
        ("p06", "wrong", "mask_transposed"),
    ],
)
def test_traces_are_those_of_the_interpreter(problem: str, kind: str, id: str) -> None:
    whole = next(name for name in submissions(kind, problem) if id in name)
    found = list(traced(problem, kind, whole, 1))
    assert found
    assert all(not different for _, different in found), found


def test_products_are_seen_whoever_multiplies() -> None:
    by_dot, _ = machine_trace(*call_of("p03", "plain"))
    scores = 'tl.dot(q, tl.trans(k), input_precision="ieee")'
    summed = "tl.sum(q[:, None, :] * k[None, :, :], 2)"
    by_sum, _ = machine_trace(*call_of("p03", "plain", scores, summed))
    assert by_dot.count(Counter.MULTIPLY_ADDS) > 0
    assert not differing(by_dot, by_sum)


def test_rounds_are_those_of_the_interpreter() -> None:
    problem, source, case, inputs = call_of("p03", "plain")
    follow = RoundsShape.of(case, source.num_lines)
    _, new = machine_trace(problem, source, case, inputs, follow)
    old = interpreted(problem, source, case, inputs, follow).rounds
    assert old is not None and new is not None
    assert (new.kernel, new.program, new.launch) == (old.kernel, old.program, old.launch)
    for name in ("queries", "keys", "taken", "table"):
        assert np.array_equal(getattr(new, name), getattr(old, name)), name
    for kept in ("vectors", "matrices"):
        now = {v.name: v for v in getattr(new, kept)}
        was = {v.name: v for v in getattr(old, kept) if v.carried}
        assert was
        for name, variable in was.items():
            assert now[name].carried
            assert now[name].of_products == variable.of_products
            assert np.allclose(now[name].values, variable.values, 1e-5, 1e-5), name
