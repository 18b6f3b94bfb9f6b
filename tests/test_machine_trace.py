"""The record that observers of the machine make of a call: what it holds of three kernels."""

import numpy as np
import pytest

from grader.kernel.observers.rounds import RoundsShape
from grader.kernel.observers.trace import OPERANDS, Counter, Trace
from grader.source.submission import Source
from grader.spec.inputs import make_inputs
from grader.spec.problem import load_problem
from tests.harness import cases_of, edited, model_answer
from tests.on_machine import machine_trace
from tests.trials import right_answers
from tests.wrong import WRONG


def call_of(problem_id: str, text: str, check: str = "plain") -> tuple:
    """A problem, a source, the first case of a check, and inputs for it."""
    problem = load_problem(problem_id)
    case = cases_of(problem, [check])[0][2]
    source = Source(problem_id, text.encode(), policy=True)
    return problem, source, case, make_inputs(problem, case, 0)


PAIRS = ("stores", "visits", "takes", "met", "masks", "twice", "unsure")


def summary(trace: Trace) -> dict[str, int]:
    """The counters that are not 0, the sums of the maps of pairs, and the rows of the tables."""
    found = {c.name: trace.count(c) for c in Counter if trace.count(c)}
    for name in PAIRS:
        if total := int(trace.arrays[name].sum()):
            found[name] = total
    return found | {name: len(trace.arrays[name]) for name in ("dots", "accesses", "programs")}


def lines_of(trace: Trace, name: str, text: str) -> set[str]:
    """What stands in the lines that a map of pairs tells."""
    numbers = np.unique(trace.arrays[name])
    source = text.splitlines()
    return {source[trace.arrays["lines"]["line"][n] - 1].strip() for n in numbers if n}


CAUSAL = 128 * 129 // 2  # pairs of 128 queries and as many keys
SEEN = {
    "p03-keys_in_the_program": (
        {"LAUNCHES": 2, "PROGRAMS": 4, "MULTIPLY_ADDS": 3145728, "ELEMENTS_READ": 57600}
        | {"DISTINCT_READ": 24576, "UNKNOWN_READS": 256, "visits": 2 * 128**2, "takes": 128**2}
        | {"met": 128**2, "masks": 128**2, "dots": 3, "accesses": 5, "programs": 0}
        | {"DISTINCT_MADE": 128, "BESIDE": 72188}  # an addition is an eighth of a product
    ),
    "p08": (
        {"LAUNCHES": 4, "PROGRAMS": 6, "MULTIPLY_ADDS": 8396800, "ELEMENTS_READ": 115328}
        | {"DISTINCT_READ": 32768, "UNKNOWN_READS": 8832, "stores": 128, "visits": 45056}
        | {"takes": 4 * CAUSAL, "met": 57344, "masks": 57344}
        | {"dots": 9, "accesses": 12, "programs": 1}
        | {"OF_ELEMENTS": 128 * 64, "BESIDE": 172977}  # of delta; scales, weights and gradients
        | {"DISTINCT_MADE": 8448}
    ),
    "p06-mask_transposed": (
        {"LAUNCHES": 1, "PROGRAMS": 2, "MULTIPLY_ADDS": 1572864, "ELEMENTS_READ": 32768}
        | {"DISTINCT_READ": 24576, "stores": 128, "visits": 12288, "takes": CAUSAL}
        | {"met": 12288, "masks": 8192, "dots": 2, "accesses": 3, "programs": 2}
        | {"BESIDE": 48190}  # three of each score, the accumulator's update, and additions
    ),
}


def source_of(id: str) -> str:
    wrong = {wrong.id: wrong for wrong in WRONG}
    if id in wrong:
        return wrong[id].source()
    return model_answer(id) if "-" not in id else right_answers("unusual")[id][1]


@pytest.mark.parametrize("id", SEEN)
def test_what_a_trace_holds(id: str) -> None:
    trace, _ = machine_trace(*call_of(id[:3], source_of(id)))
    assert summary(trace) == SEEN[id]
    assert trace.arrays["k_heads"].all() and trace.arrays["v_heads"].all()


def test_pairs_are_masked_and_taken_where_it_stands() -> None:
    text = source_of("p06-mask_transposed")
    trace, _ = machine_trace(*call_of("p06", text))
    (mask,), (taken,) = (lines_of(trace, name, text) for name in ("masked_at", "taken_at"))
    assert mask.startswith("visible = ") and taken.startswith("for ")
    product, tile = trace.arrays["takes"][0], np.ones((64, 64), np.uint8)
    assert (product == np.block([[np.triu(tile), 0 * tile], [tile, np.triu(tile)]])).all()


@pytest.mark.parametrize(("passed", "held"), [(7, 8), (-1, 0), (-(2**40), 0), (2**40, 2**31)])
def test_an_option_of_any_size_is_within_the_limits_of_its_table(passed: int, held: int) -> None:
    """A number beyond them would be unknown."""
    clamp = "window_size = min(window_size, seqlen)"
    text = edited(model_answer("p06"), (clamp, f"window_size = {passed}"))
    trace, _ = machine_trace(*call_of("p06", text))
    least, most = trace.shape.limit_of("window_size")
    assert trace.rows("kernels")[0]["window_size"] == held and least <= held <= most


def test_products_are_seen_whoever_multiplies() -> None:
    scores = 'tl.dot(q, tl.trans(k), input_precision="ieee")'
    by_dot, _ = machine_trace(*call_of("p03", model_answer("p03")))
    summed = edited(model_answer("p03"), (scores, "tl.sum(q[:, None, :] * k[None, :, :], 2)"))
    by_sum, _ = machine_trace(*call_of("p03", summed))
    assert by_dot.count(Counter.MULTIPLY_ADDS) > 0
    assert summary(by_dot) == summary(by_sum)
    assert sorted(by_dot.arrays["dots"].tolist()) == sorted(by_sum.arrays["dots"].tolist())


def test_keys_that_meet_keys_are_no_pairs() -> None:
    scores = ("tl.dot(q, tl.trans(k)", "tl.dot(k, tl.trans(k)")
    keys_alone = edited(model_answer("p03"), scores)
    problem, source, case, _ = call_of("p03", keys_alone, "unequal")
    assert case.seqlen_k > case.seqlen_q
    trace, _ = machine_trace(problem, source, case, make_inputs(problem, case, 0))
    assert trace.count(Counter.UNKNOWN_DOTS) and not trace.arrays["met"].any()


def test_rounds_of_one_program_are_what_its_variables_held() -> None:
    problem, source, case, inputs = call_of("p03", model_answer("p03"))
    follow = RoundsShape.of(case, source.num_lines)
    _, rounds = machine_trace(problem, source, case, inputs, follow)
    assert rounds is not None
    assert (rounds.kernel, rounds.program) == ("_attention_kernel", (0, 0, 0))
    assert rounds.queries.tolist() == list(range(64)) and rounds.taken.all()
    assert rounds.keys.tolist() == [list(range(64)), list(range(64, 128))]
    held = {v.name: v for v in (*rounds.vectors, *rounds.matrices) if v.carried}
    assert {name: v.of_products for name, v in held.items()} == {
        "running_max": False,
        "running_sum": False,
        "acc": True,
    }
    loads = [[(OPERANDS[x["operand"] - 1], x["first"], x["last"]) for x in r] for r in rounds.loads]
    assert loads == [[("q", 0, 63), ("k", 0, 63), ("v", 0, 63)], [("k", 64, 127), ("v", 64, 127)]]
    names = ("rows", "column", "last_column", "elements", "apart")
    each = {tuple(x[name] for name in names) for r in rounds.loads for x in r}
    assert each == {(64, 0, 63, 4096, 4)}
    q, k, v = (inputs.tensors[name][0, 0].numpy() for name in ("q", "k", "v"))
    weights = np.exp(q[:64] @ k.T / np.sqrt(q.shape[1]))
    expected = weights @ v / weights.sum(1, keepdims=True)
    last = held["acc"].values[-1] / held["running_sum"].values[-1][:, None]
    assert np.allclose(last, expected, 1e-4, 1e-5)


def test_programs_beside_the_one_that_is_followed_are_counted_without_it() -> None:
    problem, source, case, inputs = call_of("p03", source_of("p03-split_keys"))
    follow = RoundsShape.of(case, source.num_lines)
    _, rounds = machine_trace(problem, source, case, inputs, follow)
    assert (len(rounds), rounds.others) == (1, 3)  # keys are split among four
