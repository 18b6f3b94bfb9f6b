"""Counted work, through the real worker: what earns all, what earns none, when it is counted."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grader.judge.pytest_run import PytestRun
from grader.judge.scoring import score_work, work_fraction
from grader.kernel.observers.operands import Operand
from grader.kernel.observers.places import Touched
from grader.kernel.observers.touching import Reads
from grader.kernel.observers.trace import Counter
from grader.spec.findings import (
    CaseBegins,
    SourceFile,
    TestRequest,
    WorkCounted,
    read_event,
    write_event,
)
from grader.spec.grade_record import WorkFigures
from grader.spec.problem import Problem, load_problem
from grader.spec.problem_tables import WORK
from tests import forked
from tests.harness import SEED, edited, model_answer, whole_answer
from tests.records import count_work
from tests.shares import drawn
from tests.unusual import ANSWERS

UNUSUAL = {answer.id: answer for answer in ANSWERS}
GRID = 'grid_of_queries(q, k, tiles["BLOCK_M"])'
LAUNCH = f"_attention_kernel[{GRID}]("

_quick = forked.quick


def short(problem_id: str) -> Problem:
    """The problem with one short call in which work is counted."""
    problem = load_problem(problem_id)
    cases = tuple(table.model_copy(update={"seqlen": 256}) for table in problem.work.cases)
    return problem.model_copy(update={"work": problem.work.model_copy(update={"cases": cases})})


def counted(source: str, problem: Problem) -> WorkFigures:
    evidence = count_work(source, problem)
    assert evidence.verdict is None, evidence.reason
    assert read_event(write_event(WorkCounted(evidence=evidence))).evidence == evidence
    return evidence.figures


def ratios(figures: WorkFigures) -> dict[str, float]:
    return {kind: amount.ratio for kind, amount in figures.amounts.items()}


def unusual(name: str) -> str:
    answer = UNUSUAL[name]
    return answer.applied_to(whole_answer(answer.problem))


def changed(problem_id: str, *edits: tuple[str, str]) -> str:
    return edited(model_answer(problem_id), *edits)


@pytest.mark.parametrize("problem_id", drawn(["p03", "p04", "p05", "p06"], 2))
def test_the_model_answer_does_what_is_needed_and_no_more(problem_id):
    figures = counted(model_answer(problem_id), load_problem(problem_id))
    kinds = {"multiply-adds", "elements read"}
    kinds |= {"different elements read"} if problem_id == "p05" else set()
    assert ratios(figures) == dict.fromkeys(kinds, 1.0)
    assert work_fraction(figures) == 1.0
    assert not set("".join(figures.tiles.rows)) & set("xo!2")


def test_the_model_answer_of_the_row_sum_reads_each_element_once():
    figures = counted(model_answer("p02"), load_problem("p02"))
    assert ratios(figures) == {"elements read": 1.0} and figures.tiles is None
    assert figures.elements_read.naive_ratio == pytest.approx(2.0, rel=0.01)


_LOAD = "x_tile = tl.load(x_ptrs, mask=tile_mask, other=0.0, eviction_policy=X_EVICTION)"
_AS_INTEGERS = (
    "bits = tl.load(x_ptrs.to(tl.pointer_type(tl.int32), bitcast=True), mask=tile_mask, other=0)"
)
_FROM_INTEGERS = "x_tile = bits.to(tl.float32, bitcast=True)"
_MORE = _AS_INTEGERS.replace("bits =", "bits |=")  # a load of which nothing is used is none
_FOUR = (_AS_INTEGERS, *[_MORE] * 3, _FROM_INTEGERS.replace("x_tile", "again"))
_ATOMIC = "again = tl.atomic_add(x_ptrs, tl.zeros(tile_mask.shape, tl.float32), mask=tile_mask)"
_ADDRESSES = "(x_ptrs.to(tl.int64) & 0xFFFFFFFFFFFF).to(tl.pointer_type(tl.float32))"
_BOTH = "x_tile = tl.where(tile_mask, tl.maximum(x_tile, again), 0.0)"
_OF_ADDRESSES = _LOAD.replace("x_ptrs", _ADDRESSES).replace("x_tile =", "again =")
READS_OF_X = {
    "as integers": ((_AS_INTEGERS, _FROM_INTEGERS), 1),
    "once, and four times as integers": ((_LOAD, *_FOUR, _BOTH), 5),
    "by an atomic operation too": ((_LOAD, _ATOMIC, _BOTH), 2),
    "by addresses of no argument too": ((_LOAD, _OF_ADDRESSES, _BOTH), 2),
}


@pytest.mark.parametrize("how", drawn(READS_OF_X, 2))
def test_an_element_is_read_whatever_a_pointer_says_it_points_to(how):
    lines, times = READS_OF_X[how]
    (case,) = load_problem("p02").work_cases(SEED)
    figures = counted(changed("p02", (_LOAD, "\n    ".join(lines))), load_problem("p02"))
    of_w = figures.elements_read.needed - case.rows * case.cols
    assert figures.elements_read.done == times * case.rows * case.cols + of_w


def test_a_view_that_begins_where_an_input_does_hides_none_of_it():
    launched = changed(
        "p04",
        ("    q_ptr, k_ptr, v_ptr, out_ptr,", "    q_ptr, k_ptr, v_ptr, few, out_ptr,"),
        ("        q, k, v, out, lse,", "        q, k, v, k[:, :, :4], out, lse,"),
    )
    assert work_fraction(counted(launched, short("p04"))) == 1.0


def test_lanes_of_one_load_at_one_address_are_one_read():
    x = torch.zeros(2, 8)
    counters = np.zeros(len(Counter), np.int64)
    reads = Reads(counters, [Operand.of("x", x)])
    lanes = x.data_ptr() + np.array([[0, 4, 8, 8, 8], [8, 8, 12, 12, 16]])  # of two programs
    active = np.array([[True] * 5, [True, True, True, False, False]])
    reads.note(Touched(x.data_ptr(), slice(None), np.arange(2), lanes, active, 4))
    assert (counters[Counter.ELEMENTS_READ], reads.distinct(made=False)) == (5, 4)


def test_a_tile_that_had_a_third_axis_is_followed():
    old = "        scores = tl.dot(q, tl.trans(k)"
    there_and_back = "tl.reshape(tl.reshape(k, (1, BLOCK_N, HEAD_DIM)), (BLOCK_N, HEAD_DIM))"
    figures = counted(changed("p04", (old, f"        k = {there_and_back}\n" + old)), short("p04"))
    assert work_fraction(figures) == 1.0 and figures.tiles is not None


def test_a_row_that_is_spread_over_a_tile_is_followed():
    """Triton may spread a single row, as of a sink, over a tile before it is multiplied."""
    old = "    k_offs = offs_n[:, None] * stride_kn + offs_d[None, :]"
    row = "tl.broadcast_to(tl.load(v_ptr + offs_d)[None, :], (BLOCK_N, HEAD_DIM))"
    spread = f"    acc = tl.dot(tl.zeros((acc.shape[0], BLOCK_N), q.dtype), {row}, acc)\n"
    figures = counted(changed("p04", (old, spread + old)), short("p04"))
    assert figures.multiply_adds.ratio > 1.0


SCORES = '        scores = tl.dot(q, tl.trans(k), input_precision="ieee")'
FOLD = (
    "        running_sum, acc = add_tile("
    "scores, v, running_max, new_max, running_sum, acc, scale_log2)"
)
SCORES_IN_HALVES = """\
        k = tl.permute(tl.reshape(k, (2, BLOCK_N // 2, HEAD_DIM)), (0, 2, 1))
        halves = tl.dot(tl.broadcast_to(q[None, :, :], (2, q.shape[0], HEAD_DIM)), k,
                        input_precision="ieee")
        scores = tl.reshape(tl.permute(halves, (1, 0, 2)), (q.shape[0], BLOCK_N))
"""
FOLD_IN_HALVES = """\
        p = tl.exp2(scores * scale_log2 - new_max[:, None])
        shrunk = tl.exp2(running_max - new_max)
        running_sum = running_sum * shrunk + tl.sum(p, 1)
        p = tl.permute(tl.reshape(p.to(v.dtype), (q.shape[0], 2, BLOCK_N // 2)), (1, 0, 2))
        v = tl.reshape(v, (2, BLOCK_N // 2, HEAD_DIM))
        acc = acc * shrunk[:, None] + tl.sum(tl.dot(p, v, input_precision="ieee"), 0)
"""


@pytest.mark.parametrize(("times", "fraction"), [(1, 1.0), (3, 0.0)])
def test_a_dot_with_three_axes_is_as_many_dots_with_two(times, fraction):
    """Were its tiles not known, it might read as often as tiles of 16 do."""
    load = "        k = load_keys(k_ptr + k_offs, keys, seqlen, IS_EVEN)\n"
    more = load.replace("load_keys(", "tl.maximum(k, load_keys(").replace("EVEN)", "EVEN))")
    halves = (SCORES, SCORES_IN_HALVES), (FOLD, FOLD_IN_HALVES)
    source = changed("p04", *halves, (load, load + more * (times - 1)))
    plain, figures = (counted(text, short("p04")) for text in (model_answer("p04"), source))
    assert (figures.tile_q, figures.tile_k) == (plain.tile_q, plain.tile_k // 2)
    assert figures.multiply_adds == plain.multiply_adds
    assert work_fraction(figures) == fraction


@pytest.mark.parametrize("name", drawn(["p04", "p06"], 2))
def test_every_tile_visited_and_masked_earns_nothing(name):
    source = unusual(f"{name}-every_tile_visited_and_masked")
    figures = counted(source, load_problem(name))
    assert work_fraction(figures) == 0
    assert figures.multiply_adds.ratio >= figures.multiply_adds.naive_ratio > 1.5
    assert "o" in "".join(figures.tiles.rows)
    found = re.search(
        r"visible pair: all (.*); check where the loop of line (\d+) begins and ends$",
        score_work(figures, 1).reason,
    )
    assert found[1] == {"p04": "after", "p06": "before"}[name] + " the visible keys"
    assert source.splitlines()[int(found[2]) - 1].strip().startswith("for ")


def test_keys_and_values_copied_for_each_query_head_earn_nothing():
    copies = "k, v = (t.repeat_interleave(num_q_heads // k.shape[1], 1) for t in (k, v))\n    "
    source = changed("p05", (LAUNCH, copies + LAUNCH))
    figures = counted(source, short("p05"))
    assert ratios(figures)["multiply-adds"] == 1.0
    assert figures.distinct_read.ratio == figures.distinct_read.naive_ratio > 2


EXPANDED = "t[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2) + 0"


@pytest.mark.parametrize("how", drawn(["t.repeat_interleave(group, 1)", EXPANDED], 2))
def test_copies_of_keys_and_values_as_integers_are_copies(how):
    copies = (
        "group = num_q_heads // k.shape[1]\n    k, v = (("
        + how
        + ").view(torch.int32) for t in (k, v))\n    "
    )
    source = changed("p05", (LAUNCH, copies + LAUNCH))
    for name in ("k_ptr", "v_ptr"):
        moved = f"{name} += batch"
        typed = f"{name} = {name}.to(tl.pointer_type(tl.float32), bitcast=True)\n    {moved}"
        source = edited(source, (moved, typed))
    figures = counted(source, short("p05"))
    assert work_fraction(figures) == 0 and figures.distinct_read.ratio > 2
    assert work_fraction(figures) == 0
    assert "different elements read that are needed" in score_work(figures, 2).reason


SPREAD = """
@triton.jit
def _spread(x_ptr, flat_ptr, strides, heads, group, seqlen, HEAD_DIM: tl.constexpr):
    row = tl.program_id(0)
    head = row // seqlen
    offs = tl.arange(0, HEAD_DIM)
    x_ptr += head // heads * strides[0] + head % heads // group * strides[1]
    x = tl.load(x_ptr + row % seqlen * strides[2] + offs)
    tl.store(flat_ptr + row * HEAD_DIM + offs, x)


"""


def test_keys_and_values_spread_by_a_kernel_earn_nothing():
    """What they are now has no form in which the judge knows them."""
    spread = """\
flat = torch.empty((2, q.numel()), dtype=q.dtype, device=q.device)
    rows = q.shape[0] * num_q_heads * q.shape[2]
    for x, to in ((k, flat[0]), (v, flat[1])):
        _spread[(rows,)](
            x, to, x.stride()[:3], num_q_heads, num_q_heads // k.shape[1], q.shape[2],
            HEAD_DIM=q.shape[3],
        )
    strides = out.stride()[:3]
    """
    source = changed("p05", (LAUNCH, spread + LAUNCH))
    for old, new in (
        ("@triton.jit", SPREAD + "@triton.jit"),
        ("q, k, v, out, lse,", "q, flat[0], flat[1], out, lse,"),
        ("k.stride()[:3], v.stride()[:3], out", "strides, strides, out"),
        (
            "num_q_heads, num_q_heads // k.shape[1], seqlen, softmax",
            "num_q_heads, 1, seqlen, softmax",
        ),
    ):
        assert old in source, old
        source = source.replace(old, new, 1)
    figures = counted(source, short("p05"))
    assert figures.distinct_read.ratio > 2 and work_fraction(figures) == 0


def test_three_passes_earn_nothing():
    figures = counted(unusual("p03-three_passes"), short("p03"))
    assert figures.multiply_adds.ratio == 2.0 and work_fraction(figures) == 0


def test_products_that_are_no_dots_count_as_such():
    figures = counted(unusual("p03-key_by_key"), short("p03"))
    assert figures.multiply_adds.ratio == 1.0 and work_fraction(figures) == 1.0


@pytest.mark.parametrize(
    "name",
    drawn([
        "p03-split_keys",
        "p03-last_keys_first",
        "p03-block_pointers",
        "p03-autotuned",
        "p04-descriptors",
        "p04-tiles_of_16",
        "p05-partials_in_scratch",
        "p05-persistent",
        "p05-tiles_of_128_by_32",
        "p06-tiles_of_32_by_64",
        "p06-three_loops",
    ], 3, lambda name: name[:3]),
)  # fmt: skip
def test_another_way_to_do_as_much_earns_all(name):
    if UNUSUAL[name].lacks():
        pytest.skip(UNUSUAL[name].lacks())
    # Each part of a row that is split loads its queries: that weighs more in a short call.
    problem = load_problem("p03") if name == "p03-split_keys" else short(name[:3])
    figures = counted(unusual(name), problem)
    assert work_fraction(figures) == 1.0, ratios(figures)
    assert figures.multiply_adds.ratio == 1.0


def count_in(problem: Problem, failed: str = "", *, asked: bool = True) -> list:
    """The events at the end of a pytest in which this check has failed."""
    options = {"--device": "cpu", "--seed": SEED, "--submission": "."}
    run, events = PytestRun(SimpleNamespace(getoption=options.get)), []
    file = SourceFile.of(problem.id, model_answer(problem.id).encode())
    run.request = TestRequest(source=file, device="cpu", seed=SEED)
    run.is_of_judge = asked
    run.send = events.append
    run._failed = {(problem.id, failed)}
    run.run(problem)
    assert run.finish(counts=True, say=print) == {}
    return events


def test_work_begins_like_a_case_so_that_who_dies_in_it_is_known():
    problem = short("p04")
    begins, work = count_in(problem)
    assert begins == CaseBegins(check=WORK, index=0)
    assert work.evidence.figures.multiply_adds.ratio == 1.0


def test_work_is_counted_only_for_the_judge_and_only_where_the_checks_pass_that_it_rests_on():
    problem = short("p04")
    assert count_in(problem, asked=False) == []
    assert count_in(problem, failed="plain") == []
    assert len(count_in(problem, failed="ieee")) == 2
    assert count_in(problem.model_copy(update={"work": None})) == []


def test_tiles_that_are_masked_in_vain_cost_no_points_for_work() -> None:
    full_end = "full_end = query_start // BLOCK_N"
    source = whole_answer("p04")
    assert source.count(f"{full_end} * BLOCK_N") == 1
    of_tile_number = source.replace(f"{full_end} * BLOCK_N", full_end)
    assert work_fraction(counted(of_tile_number, short("p04"))) == 1.0
