"""A block of a traced call that holds anything: the judge believes nothing that does not fit."""

import dataclasses

import numpy as np
import pytest

from grader.causes.rules.look import look
from grader.causes.rules.sighting import Result
from grader.checks.counted_pairs import counted_pairs, tile_map
from grader.checks.work import count_work as figures_of
from grader.checks.work import disbelieved
from grader.judge.scoring import score_work, work_fraction
from grader.kernel.observers.trace import (
    LISTS,
    PRODUCTS,
    TAGGED,
    Counter,
    Trace,
    TraceShape,
)
from grader.spec.findings import Evidence, WorkCounted, read_event, write_event
from grader.spec.problem import load_problem
from tests import forked
from tests.harness import edited, judge, whole_answer
from tests.mutants.forward import ADVANCE_K

_quick = forked.quick


def small_case(problem_id: str, **given):
    (case,) = load_problem(problem_id).work_cases("5eed")
    if case.rows is not None:
        return dataclasses.replace(case, rows=6, cols=8)
    return dataclasses.replace(case, **({"seqlen_q": 20, "seqlen_k": 20} | given))


CASES = {
    "p02": small_case("p02"),
    "p03": small_case("p03", seqlen_k=33),
    "p04": small_case("p04", batch=2, num_q_heads=2, num_kv_heads=2),
    "p05": small_case("p05", num_q_heads=6, num_kv_heads=2),
    "p07": small_case("p07"),
    "p08": small_case("p08", num_q_heads=4, num_kv_heads=2),
}
LINES = 90  # of the submission
OUTPUTS = [("out",), ("lse",), ("dq", "dk", "dv"), ("out", "dk"), ("y",), ()]


def empty(case):
    """The shape of a case, memory for its block, and the arrays in it."""
    shape = TraceShape.of(case, LINES)
    memory = np.zeros(shape.total_bytes, np.uint8)
    return shape, memory, shape.arrays(memory)


def plausible(shape: TraceShape, memory: np.ndarray, generator: np.random.Generator) -> None:
    """Fill a block with numbers that fit their places, and now and then with one that does not."""
    arrays = shape.arrays(memory)
    most = int(generator.choice([2, 5, 100]))
    size = arrays["counters"].shape
    arrays["counters"][:] = generator.integers(0, most, size) * (generator.random(size) < 0.3)
    arrays["counters"][Counter.UNKNOWN_DOTS] = generator.random() < 0.1
    for name in LISTS:
        table = arrays[name][: generator.integers(0, 12) * (generator.random() < 0.7)]
        for column in table.dtype.names:
            least, largest = shape.limit_of(column)
            largest = min(largest, most) if generator.random() < 0.8 else largest
            table[column] = generator.integers(max(least, -most), largest + 1, len(table))
    for name in arrays.keys() - {"counters", *LISTS}:
        numbers = arrays[name].view(np.int64 if arrays[name].dtype.names else np.uint8)
        share = generator.choice([0.0, 0.02, 0.5, 1.0])  # of what is not 0
        there = generator.random(numbers.shape) < share
        numbers[:] = generator.integers(1, 3, numbers.shape) * there


def noise(shape: TraceShape, memory: np.ndarray, generator: np.random.Generator) -> None:
    """Fill a block with any bytes."""
    memory[:] = np.frombuffer(generator.bytes(memory.size), np.uint8)


@pytest.mark.parametrize("fill", [plausible, noise])
@pytest.mark.parametrize("problem_id", CASES)
def test_no_block_of_a_worker_raises_in_the_judge(problem_id, fill):
    problem, case = load_problem(problem_id), CASES[problem_id]
    shape = TraceShape.of(case, LINES)
    generator = np.random.default_rng(7)
    for number in range(60 if fill is plausible else 8):
        memory = np.zeros(shape.total_bytes, np.uint8)
        fill(shape, memory, generator)
        trace = Trace.of(shape, memory)
        reason = disbelieved(problem, case, trace)
        told = ("kernels read ", "the counts contradict ")
        assert reason is None or reason.startswith(told) or "hidden from the judge" in reason
        for product in PRODUCTS:
            counted = counted_pairs(problem_id, case, trace, product)
            if counted is not None:
                found = tile_map(counted)
                assert len(found.rows) <= 48 and len(found.rows[0]) <= 48
        wrong = OUTPUTS[number % len(OUTPUTS)]
        look(problem_id, case, trace, Result(wrong, nan=number % 2 == 0, close=number % 3 == 0))
        figures = figures_of(problem, case, trace)
        assert 0 <= work_fraction(figures) <= 1
        event = WorkCounted(evidence=Evidence(figures=figures))
        assert read_event(write_event(event)) == event
        score_work(figures, 2)


FORGED = {
    "negative": {Counter.ELEMENTS_READ: -5, Counter.MULTIPLY_ADDS: -(2**40)},
    "fewer than different ones": {Counter.ELEMENTS_READ: 5},
    "fewer than unknown ones": {Counter.UNKNOWN_READS: 2**41},
    "too many": {Counter.ELEMENTS_READ: 2**63 - 1},
}


@pytest.mark.parametrize("how", FORGED)
@pytest.mark.parametrize("problem_id", ["p02", "p04", "p05"])
def test_counts_that_contradict_each_other_are_not_believed(problem_id, how):
    problem, case = load_problem(problem_id), CASES[problem_id]
    shape, memory, arrays = empty(case)
    counters = arrays["counters"]
    for counter in (Counter.ELEMENTS_READ, Counter.DISTINCT_READ, Counter.MULTIPLY_ADDS):
        counters[counter] = 2**40
    assert disbelieved(problem, case, Trace.of(shape, memory)) is None
    for counter, value in FORGED[how].items():
        counters[counter] = value
    trace = Trace.of(shape, memory)
    assert disbelieved(problem, case, trace).startswith("the counts contradict each other: ")
    amounts = figures_of(problem, case, trace).amounts
    assert all(amount.ratio >= 0 for amount in amounts.values())


@pytest.mark.parametrize(
    ("unknown", "all_count"),
    [(lambda pairs: pairs - 1, False), (lambda pairs: pairs, True), (lambda _: 2**20 - 9, True)],
)
def test_reads_of_unknown_tensors_count_where_they_may_be_inputs_or_scores(unknown, all_count):
    case = CASES["p04"]
    made = unknown(case.batch * case.num_q_heads * case.seqlen_q * case.seqlen_k)
    shape, memory, arrays = empty(case)
    counters = arrays["counters"]
    counters[Counter.ELEMENTS_READ], counters[Counter.UNKNOWN_READS] = 2**20, made
    figures = figures_of(load_problem("p04"), case, Trace.of(shape, memory))
    assert figures.elements_read.done == 2**20 - made * (not all_count)


def test_rows_of_a_table_that_do_not_fit_are_left_out():
    shape, memory, arrays = empty(small_case("p04"))
    dots = arrays["dots"]
    dots[:5] = (1, 0, 0, 16, 16, 64, 16, 16, 3, 1)
    dots["kernel"][1] = -1
    dots["count"][2] = 2**63 - 1
    dots["line"][3] = dots["loop"][4] = LINES + 1
    trace = Trace.of(shape, memory)
    assert trace.arrays["dots"].tolist() == [(1, 0, 0, 16, 16, 64, 16, 16, 3, 1)]
    memory[:] = 255
    assert len(trace.arrays["dots"]) == 1  # a copy: the worker's later writes change nothing


def test_a_line_that_the_file_has_not_is_none():
    shape, memory, arrays = empty(small_case("p04"))
    columns = (("kernels", "mask_line"), ("products", "discarded"), ("lines", "line"))
    for name, column in columns:
        arrays[name][column][:3] = [LINES, LINES + 1, 2**63 - 1]
    arrays["counters"][Counter.NAN_LINE] = LINES
    arrays["counters"][Counter.MIXED_LINE] = LINES + 1
    trace = Trace.of(shape, memory)
    for name, column in columns:
        assert trace.arrays[name][column][:3].tolist() == [LINES, 0, 0]
    assert (trace.count(Counter.NAN_LINE), trace.count(Counter.MIXED_LINE)) == (LINES, 0)


def test_a_row_or_a_product_that_is_not_there_is_none():
    shape, memory, arrays = empty(small_case("p04"))
    arrays["apart"][0] = (LINES + 1, len(TAGGED), -1, shape.queries, 2**40, 1, 2)
    arrays["misplaced"][0] = (LINES, shape.queries, shape.queries + 1)
    products = arrays["products"][["stored", "stored_line"]]
    products[:2] = [(len(PRODUCTS), LINES), (len(PRODUCTS) + 1, LINES + 1)]
    arrays["overwritten"][:2] = [(LINES + 1, *[2**31] * 6, 1, 2), (LINES, *[2**31 + 1] * 6, -1, 2)]
    trace = Trace.of(shape, memory)
    assert trace.arrays["overwritten"][0].tolist() == (0, *[2**31] * 6, 1, 2)
    assert trace.arrays["overwritten"][1].tolist() == (LINES, *[0] * 6, 0, 2)
    assert trace.arrays["apart"].tolist() == [(0, 0, 0, shape.queries, 0, 1, 0)]
    assert trace.arrays["misplaced"][0].tolist() == (LINES, shape.queries, 0)
    stored = trace.arrays["products"][["stored", "stored_line"]][:2]
    assert stored.tolist() == [(len(PRODUCTS), LINES), (0, 0)]


def test_a_value_that_is_none_hides_nothing():
    edits = (ADVANCE_K, "pass\n"), ("return out, lse\n", "return out, None\n")
    source = edited(whole_answer("p04"), *edits)
    judged = judge(source, load_problem("p04"), checks={"plain"})
    assert judged.named == {"POINTER-STANDS-STILL"}
