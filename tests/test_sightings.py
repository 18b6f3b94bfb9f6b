"""Nothing is seen in kernels that are right, however they are written, model answers or not."""

import dataclasses
import math
import re

import numpy as np
import pytest
import torch

from grader.causes.outputs import Outputs
from grader.causes.rules.look import look
from grader.causes.rules.rows import elements_of_x
from grader.causes.rules.scaled import delta_scaled, other_lse, rows_scaled, scaled
from grader.causes.rules.sighting import Result
from grader.checks.correctness import expect
from grader.isolate.session import Budget, Session
from grader.kernel.machine import events
from grader.kernel.observers.record import Record, Where
from grader.kernel.observers.stores import Stores
from grader.kernel.observers.trace import Trace, TraceShape
from grader.source.submission import Source
from grader.spec.cases import Case, resolve
from grader.spec.inputs import case_seed, make_inputs
from grader.spec.problem import load_problem, problem_ids
from reference import mistakes_for
from tests import forked
from tests.harness import SEED, edited, judge, model_answer, whole_answer
from tests.shares import drawn
from tests.trials import right_answers

TRITON = [id for id in problem_ids() if load_problem(id).uses_triton]
RIGHT = right_answers("unusual")
# Lengths that are no multiple of a tile, a group of heads, options that cut tiles.
SIZES = {"seqlen": 150, "num_q_heads": 2}
ROWS = {"rows": 50, "cols": 300, "num_q_heads": 1, "seqlen": 1}
OPTIONS = {id: ROWS for id in TRITON if "rows" in load_problem(id).base.given} | {
    "p03": SIZES,
    "p04": SIZES,
    "p05": SIZES | {"num_kv_heads": 1},
    "p06": SIZES | {"num_kv_heads": 1, "window_size": 40},
    "p07": SIZES | {"num_kv_heads": 1, "window_size": 40, "num_sink_tokens": 9},
    "p08": SIZES | {"num_kv_heads": 1},
    "p09": SIZES
    | {"num_kv_heads": 1, "window_size": 40, "num_sink_tokens": 9, "sink_logits": True},
}

_quick = forked.quick


def nothing_is_seen(id: str, problem_id: str, session: Session) -> None:
    """Call a right kernel where it is watched; the test of all unusual ones calls this too."""
    problem = load_problem(problem_id)
    names = problem.returns + problem.gradients
    for dtype in ("fp32", "fp16") if problem_id == "p02" else ("fp32",):
        case = resolve(OPTIONS[problem_id], dtype, "")
        inputs = make_inputs(problem, case, case_seed(SEED, id))
        trace = session.call(case, inputs, names, traced=True).trace
        assert trace is not None
        for name in names:
            for nan in (False, True):
                result = Result((name,), nan=nan, close=not nan)
                assert look(problem_id, case, trace, result) is None


@pytest.mark.parametrize("id", drawn(TRITON, 2))  # tests/test_unusual_answers.py: those of others
def test_nothing_is_seen_in_a_right_kernel(id: str) -> None:
    problem, data = load_problem(id), Source(id, model_answer(id).encode())
    budget = Budget(problem.limits)
    session = Session(problem, data, device="cpu", machine=True, budget=budget)
    try:
        nothing_is_seen(id, id, session)
    finally:
        session.close()


SINKS = """


@triton.jit
def _sinks_kernel(logits_ptr, lse_ptr, delta_ptr, dlogits_ptr, seqlen, num_heads):
    plane = tl.program_id(0)
    rows = tl.program_id(1) * 64 + tl.arange(0, 64)
    lse = tl.load(lse_ptr + plane * seqlen + rows, mask=rows < seqlen, other=float("inf"))
    delta = tl.load(delta_ptr + plane * seqlen + rows, mask=rows < seqlen, other=0.0)
    share = tl.exp(tl.load(logits_ptr + plane % num_heads) - lse) * delta
    tl.STORE(dlogits_ptr + plane % num_heads, -tl.sum(share))


def _sink_logits_gradient(sink_logits, lse, delta):
    dsink_logits = torch.zeros_like(sink_logits, dtype=torch.float32)
    batch, num_heads, seqlen = lse.shape
    _sinks_kernel[(batch * num_heads, triton.cdiv(seqlen, 64))](
        sink_logits.float().contiguous(), lse, delta, dsink_logits, seqlen, num_heads
    )
    return dsink_logits.to(sink_logits.dtype)
"""
WITH_SINKS = whole_answer("p09") + SINKS.replace("STORE", "atomic_add")
SPLIT_DQ = RIGHT["p08-atomic_dq"][1]
ALL_IN_ONE = RIGHT["p08-one_kernel"][1]


def stored(source: str, *marks: str) -> tuple[str, int]:
    """Store where a kernel adds atomically, in the lines with these marks; the first of them."""
    rows = source.split("\n")
    lines = [n for n, row in enumerate(rows) if any(mark in row for mark in marks)]
    assert len(lines) == len(marks)
    for line in lines:
        rows[line] = rows[line].replace("atomic_add", "store").replace(', sem="relaxed"', "")
    return "\n".join(rows), lines[0] + 1


def loaded_and_stored(source: str, add: str, pointers: str, mask: str) -> tuple[str, int]:
    """Load, add and store where a kernel adds atomically in one line; that line."""
    line = source[: source.index(add)].count("\n") + 1
    row = source.split("\n")[line - 1]
    changed = add.replace("atomic_add", "store").replace(', sem="relaxed"', "")
    held = f"{pointers}, tl.load({pointers}, {mask}) + "
    return edited(source, (row, row.replace(add, changed.replace(f"{pointers}, ", held)))), line


COLUMNS = RIGHT["p02-column_atomics"][1]
RACES = {
    "columns that are loaded, added and stored": (
        ("p02", "plain", "ragged_cols"),
        loaded_and_stored(
            COLUMNS,
            "tl.atomic_add(y + r, tl.sum(xs * ws[None, :], 1), mask=r < rows)",
            "y + r",
            "mask=r < rows",
        ),
        "load the same element, change it and store it",
    ),
    "keys that are loaded, added and stored for dq": (
        ("p08", "dq"),
        loaded_and_stored(
            SPLIT_DQ,
            'tl.atomic_add(dq_ptrs, dq, mask=exists[:, None], sem="relaxed")',
            "dq_ptrs",
            "mask=exists[:, None]",
        ),
        "programs (0, 0, 0) and (0, 1, 0) load the same element, change it and store it",
    ),
    "columns that are stored": (
        ("p02", "plain", "ragged_cols"),
        stored(COLUMNS, "atomic_add(y + r"),
        "stores to an element that program",
    ),
    "tiles of keys for dq": (
        ("p08", "dq", "plain"),
        stored(SPLIT_DQ, "atomic_add(dq_ptrs"),
        "programs (0, 0, 0) and (0, 1, 0) both store rows 32-63 of query head 0 of dq",
    ),
    "heads of a group for dk and dv": (
        ("p08", "dv", "plain", "groups"),
        stored(ALL_IN_ONE, "atomic_add(dk_ptr", "atomic_add(dv_ptr"),
        "programs (0, 0, 0) and (0, 1, 0) both store rows 0-31 of kv head 0 of dk",
    ),
    "tiles of queries for a sink logit": (
        ("p09", "plain", "dsink_logits"),
        stored(WITH_SINKS, "tl.atomic_add(dlogits_ptr"),
        "programs (0, 0, 0) and (0, 1, 0) both store the element of query head 0 of dsink_logits",
    ),
}


@pytest.mark.parametrize("name", drawn(RACES, 6))
def test_programs_that_store_over_each_other_are_named_with_the_line(name: str) -> None:
    (problem_id, *checks), (source, line), words = RACES[name]
    judged = judge(source, load_problem(problem_id), checks=checks)
    assert judged.wrong and judged.named == {"LAST-STORE-WINS"}
    (cause,) = judged.findings.causes
    assert cause.line == line and words in cause.diagnosis.note
    # Those too that look like a known mistake: the last head of a group, or the last batch.
    assert {check for check, _ in cause.cases} == {check for check, _ in judged.wrong}


LATE = ("        begin = key_start\n", "        begin = key_start + BLOCK_M\n")
MASK = "keys[:, None] <= queries[None, :], log2_p_t"
TILES_OF_DK = "        dk, dv = _dkdv_tiles(\n"
FIRST_TILE = (
    "        dk, dv = _dkdv_tiles(dk, dv, k, v, head_q_ptr, head_dout_ptr, head_lse_ptr,"
    " head_delta_ptr, q_strides[2], dout_strides[2], keys, begin, begin + BLOCK_M, seqlen,"
    " scale_log2, HEAD_DIM, BLOCK_M, DESCRIPTORS)\n"
)
OVER_QUERIES = {
    "KEYS-NEVER-VISITED": (LATE, r"key \d+ never counted queries .* of query head 0$"),
    "KEYS-AFTER-THE-QUERY": (
        (MASK, "keys[:, None] <= queries[None, :] + 3, log2_p_t"),
        r"key \d+ counted quer.* of query head 0, which do not see it$",
    ),
    "KEYS-COUNTED-TWICE": (
        (TILES_OF_DK, FIRST_TILE + TILES_OF_DK),
        r"key \d+ counted queries .* of query head 0 twice; \d+ keys in all$",
    ),
    "MASK-TRANSPOSED": ((MASK, MASK.replace("<=", ">=")), r"key \d+ never counted queries .*"),
}


@pytest.mark.parametrize("id", drawn(OVER_QUERIES, 2))
def test_the_walk_of_dk_is_over_queries(id: str) -> None:
    (old, new), words = OVER_QUERIES[id]
    source = edited(model_answer("p08"), (old, new))
    judged = judge(source, load_problem("p08"), checks=("plain",))
    assert judged.named == {id}
    (cause,) = judged.findings.causes
    assert re.match(f"seen: {words}", cause.diagnosis.note)
    assert "visible keys" not in f"{cause.diagnosis.title} {cause.diagnosis.help}"
    if id == "MASK-TRANSPOSED":
        assert cause.diagnosis.help.startswith("rows of these scores are keys, [:, None]")
    # One message speaks of one example: that of the element that is furthest off.
    finding = judged.wrong[cause.cases[0]]
    key = re.match(r"dk\[0, 0, (\d+), ", finding.message.worst)[1]
    assert f"key {key} " in cause.diagnosis.note


def test_a_mask_is_told_by_the_sides_of_its_tile() -> None:
    mask = "keys[None, :] <= queries[:, None]"
    source = edited(model_answer("p04"), (mask, mask.replace("<=", ">=")))
    (cause,) = judge(source, load_problem("p04"), checks=("plain",)).findings.causes
    assert cause.diagnosis.id == "P04-MASK-TRANSPOSED"
    assert cause.diagnosis.help.startswith("rows of the scores are queries, [:, None]")


@pytest.mark.parametrize(
    ("left_out", "title", "words"),
    [
        ({*range(32, 40)}, "the last columns", "the loop over columns"),
        ({*range(0, 8)}, "some columns", "the loop over columns"),
        ({*range(8, 16), *range(24, 32)}, "some columns", "each program's share"),
        ({*range(8, 16), *range(32, 40)}, "some columns", "each program's share"),
    ],
)
def test_columns_that_are_never_read_are_told_by_where_they_lie(left_out, title, words) -> None:
    case = Case(rows=2, cols=40)
    shape = TraceShape.of(case, 9)
    memory = np.zeros(shape.total_bytes, np.uint8)
    shape.arrays(memory)["visits"][0] = [column not in left_out for column in range(40)]
    sighting = elements_of_x(case, Trace.of(shape, memory))
    assert sighting is not None and sighting.text.title == f"{title} of x are never read"
    assert words in sighting.text.help


def test_atomic_sums_of_the_sink_logits_are_right() -> None:
    judged = judge(WITH_SINKS, load_problem("p09"), checks=("dsink_logits",))
    assert judged.wrong == {} and judged.named == set()


@pytest.mark.parametrize(
    ("second", "seen"),
    [
        ({"values": 2.0}, True),
        ({"values": 1.0}, False),  # the same number
        ({"at": 4}, False),  # the other half of the row
        ({"launch": True}, False),  # finished by the next launch
        ({"reads": True}, False),  # added to what it read, under a lock perhaps
    ],
)
def test_two_programs_that_store_are_no_mistake_by_themselves(second, seen) -> None:
    dq = torch.zeros(1, 1, 2, 8)
    shape = TraceShape(1, 1, 1, 2, 2, 9)
    record = Record(shape, np.zeros(shape.total_bytes, np.uint8), Where("", b""), {"q": dq})
    record.where.line, start, stores = 7, dq.data_ptr(), Stores(record)

    def launch():
        record.launched(events.Launched("kernel", (2, 1, 1), ()))
        record.where.line = 7
        stores.launched()

    def store(program, at=0, values=1.0):
        if second.get("reads"):
            stores.loaded(start)
        numbers = np.full(4, values, np.float32).view(np.int32)
        stores.stored(start, dq, np.full(4, program), np.arange(at, at + 4), numbers)

    launch()
    store(0)
    if second.get("launch"):
        launch()
    store(1, second.get("at", 0), second.get("values", 3.0))
    stores.write({"dq": start}, {"dq": dq})
    table = record.arrays["overwritten"]
    assert table[0].tolist() == ((7, 0, 0, 0, 1, 0, 0, 1, 1) if seen else (0,) * 9)
    assert not table[1:].view(np.int64).any()


def outputs(problem_id, names, given, make=lambda truth: truth, dtype="fp32"):
    """A call of which the outputs `names` are what `make` makes of the right ones."""
    problem = load_problem(problem_id)
    case = resolve(problem.base.given | given, dtype, SEED)
    inputs = make_inputs(problem, case, case_seed(SEED, "numbers"))
    expected = expect(problem, case, inputs, names)
    own = torch.float16 if dtype == "fp16" else torch.float32
    got = {name: make(truth).to(own) for name, truth in expected.truth.items()}
    return Outputs(problem_id, case, inputs, got, expected)


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
    wrong = outputs("p05", ("lse",), given, lambda lse: factor * lse)
    found = scaled(wrong, ("lse",))
    assert (found is None) == (words is None)
    assert found is None or words in found.text.title
    if found:
        wrong.got["lse"][0, 0, 0] += 1.0
        assert scaled(wrong, ("lse",)) is None


@pytest.mark.parametrize(
    ("factors", "made"),
    [
        ((0.0, 0.0, 1.0), "sum"),
        ((1.0, 0.0, 1.0), "maximum + sum"),
        ((1.0, -1.0, 0.0), "maximum + -ln(sum)"),
        ((math.log(2.0), 0.5, 0.0), "ln(2) * maximum + 0.5 * ln(sum)"),
        (None, None),
    ],
)
def test_what_a_wrong_lse_is_made_of(factors, made):
    wrong = outputs("p05", ("lse",), {"seqlen": 64})
    largest = wrong.known.masked().amax(-1)
    total = (wrong.expected.truth["lse"] - largest).exp()
    parts = (largest, total.log(), total)
    lse = sum(f * p for f, p in zip(factors, parts, strict=True)) if factors else total.sin()
    wrong.got["lse"] = lse.float()
    found = other_lse(wrong, ("lse",))
    assert (found.figures["made"] if found else None) == made


def test_a_factor_of_next_to_nothing_is_none_where_most_of_what_came_out_is_left():
    def mostly_noise(out):
        return 1e-3 * out + 5e-5 * out.abs().max() * torch.randn(out.shape, dtype=out.dtype)

    for make, is_told in ((lambda out: 1e-3 * out, True), (mostly_noise, False)):
        wrong = outputs("p05", ("out",), {"seqlen": 128}, make, "fp16")
        assert (scaled(wrong, ("out",)) is not None) == is_told


def test_rounding_that_shifts_the_mean_is_no_factor():
    def cut(out):  # towards zero, to 7 bits
        return (out.float().view(torch.int32) & ~0x1FFFF).view(torch.float32)

    rounded = outputs("p05", ("out",), {"seqlen": 128}, cut)
    truth = rounded.expected.truth["out"]
    factor = float((rounded.got["out"].double() * truth).sum() / (truth * truth).sum())
    assert 0.99 < factor < 0.999
    of_factor = dataclasses.replace(rounded, got={"out": (factor * truth).float()})
    for rule in (scaled, rows_scaled):
        assert rule(rounded, ("out",)) is None
        assert rule(of_factor, ("out",)) is not None


@pytest.mark.parametrize("term", [1.0, 0.25, None])
def test_a_term_in_the_sum_of_every_row_is_told(term):
    wrong = outputs("p05", ("out",), {"seqlen": 128})
    sums = wrong.known.masked().exp().sum(-1, keepdim=True)
    added = torch.rand_like(sums) * sums if term is None else term
    wrong.got["out"] = (wrong.expected.truth["out"] * sums / (sums + added)).float()
    found = rows_scaled(wrong, ("out",))
    assert found.variant == ("" if term is None else "of_a_term")
    assert term is None or f"as if {term:g} were added" in found.text.note


@pytest.mark.parametrize(("times", "told"), [(0.5, True), (2.0, True), (1.02, False), (0.0, False)])
def test_how_often_delta_counts(times, told):
    wrong = outputs("p08", ("dq", "dk"), {"seqlen": 64})
    (missing,) = (m for m in mistakes_for("p08") if m.id == "DELTA-MISSING")
    without = missing.fn(dict(wrong.inputs.all), wrong.case.kwargs)
    for name, truth in wrong.expected.truth.items():
        wrong.got[name] = without[name] + times * (truth - without[name])
    found = delta_scaled(wrong, ("dq", "dk"))
    assert (found is not None) == told
    assert found is None or f"{times:.3g} * delta" in found.text.title
    noise = torch.randn_like(wrong.got["dq"])
    wrong.got["dq"] += 0.1 * wrong.got["dq"].abs().max() * noise
    assert delta_scaled(wrong, ("dq", "dk")) is None
    assert delta_scaled(wrong, ("dv",)) is None
