"""What timed and measured calls computed is verified, and figures are made of what was measured."""

import dataclasses
import math
import secrets

import pytest
import torch

import reference
from grader.base.dtypes import TORCH_DTYPES
from grader.checks import performance
from grader.checks.performance import memory_figures, speed_figures, verify
from grader.judge.measurement import memory_evidence, speed_evidence
from grader.spec.cases import resolve
from grader.spec.grade_record import MemoryFigures, SpeedFigures, Verdict
from grader.spec.inputs import make_inputs
from grader.spec.problem import load_problem, problem_ids
from grader.timing import share
from grader.timing.drawn import drawn_inputs
from grader.timing.speed import Block
from grader.timing.stopwatch import CallOutputs
from tests.shares import drawn

# One problem of each kind: row sum, forward, forward with causal mask and groups, backward.
SHAPES = {
    "p02": {"rows": 256, "cols": 1024},
    "p01": {"seqlen": 256, "num_q_heads": 2, "is_causal": True},
    "p03": {"seqlen_q": 128, "seqlen_k": 256, "num_q_heads": 2},
    "p06": {"seqlen": 256, "num_q_heads": 4, "num_kv_heads": 2, "window_size": 50},
    "p08": {"seqlen": 256, "num_q_heads": 4, "num_kv_heads": 2, "batch": 2},
}
DTYPES = ("fp32", "fp16", "bf16")
KINDS = [(problem_id, dtype) for problem_id in SHAPES for dtype in DTYPES]


def setup_module():
    torch.set_num_threads(1)


def computed(problem, case, inputs, dtype):
    """All outputs of an honest computation in `dtype`, rounded as an answer's are."""
    tensors = {name: tensor.to(dtype) for name, tensor in inputs.tensors.items()}
    oracle = getattr(reference, problem.oracle)
    if problem.gradients:
        found = reference.gradients(oracle, tensors, inputs.dout.to(dtype), **case.kwargs)
    else:
        returned = oracle(**tensors, **case.kwargs)
        values = returned if isinstance(returned, tuple) else (returned,)
        found = dict(zip(problem.returns, values, strict=True))
    own = TORCH_DTYPES[case.dtype]
    return {n: t.to(torch.float32 if n == "lse" else own) for n, t in found.items()}


def example(problem_id, dtype, seed=1):
    problem = load_problem(problem_id)
    case = resolve(SHAPES[problem_id], dtype, "")
    inputs = make_inputs(problem, case, seed)
    return problem, case, inputs, computed(problem, case, inputs, TORCH_DTYPES[dtype])


@pytest.mark.parametrize(("problem_id", "dtype"), KINDS)
def test_right_outputs_are_accepted_however_they_were_rounded(problem_id, dtype):
    problem, case, inputs, outputs = example(problem_id, dtype)
    assert verify(problem, case, inputs, outputs) < 0.9
    exact = computed(problem, case, inputs, torch.float64)
    assert verify(problem, case, inputs, exact) < 0.6


WRONG = {
    "zeros": lambda t: torch.zeros_like(t),
    "two percent too large": lambda t: 1.02 * t,
    "two percent too small": lambda t: 0.98 * t,
    "the negative": lambda t: -t,
    "upside down": lambda t: t.flip(-2 if t.dim() == 4 else -1),
    "NaN": lambda t: torch.full_like(t, math.nan),
    "infinite": lambda t: torch.full_like(t, math.inf),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("problem_id", "dtype"), drawn(KINDS, 3))
def test_wrong_outputs_are_rejected(problem_id, dtype, wrong):
    problem, case, inputs, outputs = example(problem_id, dtype)
    changed = {name: WRONG[wrong](value) for name, value in outputs.items()}
    assert not verify(problem, case, inputs, changed) < 1.5


@pytest.mark.parametrize(("problem_id", "dtype"), KINDS)
def test_outputs_of_other_inputs_are_rejected(problem_id, dtype):
    problem, case, inputs, _ = example(problem_id, dtype)
    stale = example(problem_id, dtype, seed=2)[3]
    assert verify(problem, case, inputs, stale) > 50


@pytest.mark.parametrize(("problem_id", "dtype"), KINDS)
def test_every_output_and_every_head_counts(problem_id, dtype):
    problem, case, inputs, outputs = example(problem_id, dtype)
    for name, value in outputs.items():
        places = [(0,), (-1,)] if value.dim() == 1 else [(0, 0), (-1, -1)]
        for place in places:
            changed = value.clone()
            changed[place] *= 1.1
            assert verify(problem, case, inputs, outputs | {name: changed}) > 1.0, (name, place)


def calls_of_a_go(problem, case, calls, wrong=None):
    """What is drawn of a go, and whether that is wrong: of one call the first kv head, or row."""
    found, is_wrong = [], False
    for number, numbers in enumerate(share.draw(case, calls, "cpu")):
        if not len(numbers):
            continue
        seed = secrets.randbits(63)
        outputs = computed(problem, case, drawn_inputs(problem, case, seed, "cpu"), torch.float64)
        if number == wrong:
            outputs[problem.returns[0]].select(0 if case.rows else 1, 0).zero_()
            is_wrong = bool((numbers == 0).any())
        found.append(CallOutputs(seed, share.of(case, outputs, numbers), numbers))
    return found, is_wrong


@pytest.mark.parametrize("problem_id", SHAPES)
def test_of_every_go_a_share_is_verified(problem_id):
    problem, case = load_problem(problem_id), resolve(SHAPES[problem_id], "fp16", "")
    count = case.rows or case.num_kv_heads
    for calls in (1, 2, 3, 9):
        right, _ = calls_of_a_go(problem, case, calls)
        drawn = sum(len(call.drawn) for call in right)
        assert drawn >= count / 2 and drawn >= min(calls, 4)
        assert performance.margin(problem, case, "cpu", right) < 1.0
    other = [dataclasses.replace(call, seed=call.seed ^ 1) for call in right[:1]]
    assert performance.margin(problem, case, "cpu", other + right[1:]) > 1.0
    seen = set()
    for _ in range(60):
        go, is_wrong = calls_of_a_go(problem, case, 3, wrong=1)
        assert (performance.margin(problem, case, "cpu", go) > 1.0) == is_wrong
        seen.add(is_wrong)
        if len(seen) == 2:
            break
    assert seen == {True, False}


def test_logits_of_sinks_go_with_their_heads():
    problem = load_problem("p09")
    sizes = {"seqlen": 128, "num_q_heads": 8, "num_kv_heads": 4, "head_dim": 16, "batch": 2}
    case = resolve({**sizes, "sink_logits": True, "window_size": 30}, "fp16", "")
    for calls in (1, 3):
        right, _ = calls_of_a_go(problem, case, calls)
        assert performance.margin(problem, case, "cpu", right) < 1.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_element_that_is_not_finite_is_rejected(dtype):
    problem, case, inputs, outputs = example("p03", dtype)
    for value in (math.nan, math.inf, -math.inf):
        outputs["out"][0, 1, 5, 7] = value
        assert verify(problem, case, inputs, outputs) == math.inf


@pytest.mark.parametrize("problem_id", ["p01", "p03", "p08"])
def test_an_answer_in_a_coarser_type_is_rejected(problem_id):
    problem, case, inputs, _ = example(problem_id, "fp16")
    coarse = {n: t.to(torch.bfloat16) for n, t in example(problem_id, "fp16")[3].items()}
    assert verify(problem, case, inputs, coarse) > 1.2
    problem, case, inputs, _ = example(problem_id, "fp32")
    coarse = {n: t.half() for n, t in example(problem_id, "fp32")[3].items()}
    assert verify(problem, case, inputs, coarse) > 10


def block(*milliseconds, sets=1, margin=0.1, overhead_s=0.001):
    """A block of goes of `sets` calls that take so long each, and the overhead beside."""
    seconds = tuple(overhead_s + sets * ms / 1000 for ms in milliseconds)
    return Block(seconds, sets, margin)


def figures(student, naive, **options):
    overheads = options.pop("overheads", {1: 0.001})
    return speed_figures(student, naive, overheads, clock="cpu")


def test_the_speed_up_is_naive_over_ours():
    found = figures([block(1, 1, 2)], [block(4, 4, 9), block(4, 4, 1)])
    assert found.speedup == pytest.approx(4.0)
    assert (found.median_ms, found.naive_ms) == (pytest.approx(1.0), pytest.approx(4.0))
    assert (found.samples, found.calls_per_sample, found.clock) == (3, 1, "cpu")
    assert found.naive_drift_percent == pytest.approx(0.0)


def test_each_block_has_the_overhead_of_its_own_sets():
    # 1 ms a go and 0.5 ms a set are overhead; a naive call takes 2 ms, ours 1 ms.
    overheads = {n: 0.001 + 0.0005 * n for n in (1, 5, 10)}
    ours = block(1, 1, 1, sets=10, overhead_s=overheads[10])
    naive = [block(2, 2, 2, sets=n, overhead_s=overheads[n]) for n in (1, 5)]
    found = figures([ours], naive, overheads=overheads)
    assert found.speedup == pytest.approx(2.0)
    assert found.naive_drift_percent < 1e-6 and found.calls_per_sample == 10


def test_each_block_is_held_against_the_baselines_around_it():
    # The machine slows down by 5 % between blocks; the ratio stays.
    naive = [block(4.0 * 1.05**i) for i in range(4)]
    student = [block(1.025 * 1.05**i) for i in range(3)]
    found = figures(student, naive)
    assert found.speedup == pytest.approx(4.0, rel=1e-3)
    assert found.naive_drift_percent == pytest.approx(5.0)


def test_a_block_between_baselines_that_disagree_does_not_count():
    naive = [block(4), block(4), block(8), block(4)]
    student = [block(1), block(0.1), block(0.1)]
    found = figures(student, naive)
    assert found.speedup == pytest.approx(4.0) and found.naive_drift_percent == 0
    nothing = figures(student, [block(4), block(8), block(4), block(8)])
    assert nothing.speedup is None and nothing.naive_drift_percent == pytest.approx(100.0)


@pytest.mark.parametrize(("drift", "counts"), [(9.5, True), (10.5, False), (-10.5, False)])
def test_baselines_may_differ_by_ten_percent(drift, counts):
    factor = 1 + abs(drift) / 100
    naive = [block(4), block(4 * factor if drift > 0 else 4 / factor)]
    assert (figures([block(1, 1)], naive).speedup is not None) is counts


def test_the_median_of_three_blocks_is_taken():
    found = figures([block(2), block(1), block(1.25)], [block(4)] * 4)
    assert found.speedup == pytest.approx(3.2)


def test_a_call_that_takes_less_than_nothing_has_no_speed_up():
    found = figures([block(-0.5, -0.5)], [block(4), block(4)])
    assert found.speedup is None


def test_the_spread_is_that_of_the_middle_half():
    found = figures([block(1.0, 1.0, 1.0, 1.1, 9.0)], [block(4), block(4)])
    assert 5 < found.spread_percent < 500
    assert figures([block(1.0, 1.0, 1.0)], [block(4), block(4)]).spread_percent == pytest.approx(0)


def test_the_worst_output_of_all_blocks_is_kept():
    student = [block(1, margin=0.2), block(1, margin=7.0), block(1, margin=0.1)]
    assert figures(student, [block(4)] * 4).worst_error_over_allowed == 7.0


def measured(margin=0.5, speedup=4.0, drift=1.0):
    return SpeedFigures(speedup=speedup, worst_error_over_allowed=margin, naive_drift_percent=drift)


def test_figures_of_right_outputs_are_evidence():
    for margin in (0.0, 0.5, 1.0):
        evidence = speed_evidence(measured(margin), "p01")
        assert (evidence.verdict, evidence.reason) == (None, None)
        assert evidence.figures == measured(margin)
    assert memory_evidence(MemoryFigures(), 1.0).verdict is None


@pytest.mark.parametrize("margin", [1.001, 250.0, math.inf, math.nan])
def test_a_wrong_output_fails_whatever_its_speed_and_memory(margin):
    for speedup in (400.0, None):  # also on a busy machine
        evidence = speed_evidence(measured(margin, speedup), "p01")
        assert evidence.verdict is Verdict.FAIL
        assert evidence.reason.startswith("a timed output is wrong (")
    evidence = memory_evidence(MemoryFigures(), margin)
    assert evidence.verdict is Verdict.FAIL
    assert evidence.reason.startswith("an output is wrong (")


def test_an_output_that_was_never_verified_is_no_right_one():
    assert speed_evidence(measured(None), "p01").verdict is Verdict.FAIL


def test_a_busy_machine_is_not_measured_and_says_what_to_do():
    evidence = speed_evidence(measured(speedup=None, drift=18.3), "p01")
    assert evidence.verdict is Verdict.NOT_MEASURED
    assert evidence.reason == (
        "not measured: the machine is busy (two baselines 18 % apart); make grade P=p01 again"
    )


def test_memory_that_is_allowed_grows_with_inputs_and_outputs():
    problem = load_problem("p03")
    cases = [resolve({"seqlen": n, "head_dim": 64}, "fp16", "") for n in (4096, 8192)]
    found = memory_figures(problem, tuple(cases), [1, 2], [3, 4], "cuda")
    # q, k, v and out of 4096 x 64 x 2 bytes, and an lse of 4096 x 4 bytes.
    assert found.io_bytes == (4 * 4096 * 128 + 4 * 4096, 4 * 8192 * 128 + 4 * 8192)
    assert (found.lengths, found.extra_bytes, found.naive_extra_bytes) == (
        (4096, 8192),
        (1, 2),
        (3, 4),
    )
    linear = problem.memory.linear_factor * found.io_bytes[0]
    assert 0 < found.allowed_bytes[0] - linear <= 192 * 2**20
    assert found.allowed_bytes[1] - found.allowed_bytes[0] == pytest.approx(linear, abs=2)


MEASURED = [
    (problem_id, device)
    for problem_id in problem_ids()
    for device in ("cpu", "cuda")
    if load_problem(problem_id).memory_cases(device)
]


@pytest.mark.parametrize(("problem_id", "device"), MEASURED)
def test_the_scores_of_one_head_are_more_than_is_allowed(problem_id, device):
    problem = load_problem(problem_id)
    cases = problem.memory_cases(device)
    allowed = memory_figures(problem, cases, [0, 0], [0, 0], device).allowed_bytes[1]
    item = TORCH_DTYPES[cases[1].dtype].itemsize
    assert item * cases[1].seqlen_q * cases[1].seqlen_k > allowed
