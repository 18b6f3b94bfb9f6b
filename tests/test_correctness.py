"""The derived tolerance, from both sides, and what a difference tells: elements, digits, extent."""

import dataclasses
import math
import re
import subprocess
import sys

import pytest
import torch

import reference
from grader.base.dtypes import TORCH_DTYPES, as_tf32
from grader.checks.correctness import element_errors, expect, find_differences, ranges
from grader.spec.cases import resolve
from grader.spec.inputs import case_seed, make_inputs
from grader.spec.problem import ROOT, load_problem

P01, P02, P03, P08 = (load_problem(problem_id) for problem_id in ("p01", "p02", "p03", "p08"))
PLAIN = {"seqlen": 64, "num_q_heads": 2, "batch": 2}


def setup_module():
    torch.set_num_threads(1)


def example(problem, given, dtype="fp32", *, exact=False, seed=1, names=None):
    """A case, its inputs, and what the judge expects of it."""
    case = resolve(given, dtype, "", exact=exact)
    inputs = make_inputs(problem, case, seed)
    names = names or problem.returns + problem.gradients
    return case, inputs, expect(problem, case, inputs, names)


def computed(problem, case, tensors):
    """What the reference returns for `tensors`, in their own precision."""
    returned = getattr(reference, problem.oracle)(**tensors, **case.kwargs)
    values = returned if isinstance(returned, tuple) else (returned,)
    return dict(zip(problem.returns, values, strict=True))


def failing(got, expected):
    return {difference.name for difference in find_differences(got, expected)}


def rounded(truth, dtype):
    own = TORCH_DTYPES[dtype]
    return {n: t.to(torch.float32 if n == "lse" else own) for n, t in truth.items()}


KINDS = [
    *((P01, PLAIN | {"is_causal": True, "values": v}) for v in ("normal", "peaked", "offset")),
    *((P02, {"rows": 70, "cols": n, "values": v}) for n in (1, 1000) for v in ("normal", "large")),
    *((P03, PLAIN | {"values": v}) for v in ("normal", "needle", "large")),
    (P03, {"seqlen": 1}),
    (P08, PLAIN | {"num_kv_heads": 1}),
]


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(("problem", "given"), KINDS, ids=lambda kind: getattr(kind, "id", None))
def test_the_truth_and_an_honest_computation_pass_and_zeros_fail(problem, given, dtype):
    _, _, expected = example(problem, given, dtype, exact=True)
    assert failing(rounded(expected.truth, dtype), expected) == set()
    assert failing(expected.honest, expected) == set()
    zeros = {name: torch.zeros_like(truth) for name, truth in expected.truth.items()}
    assert failing(zeros, expected) == set(expected.truth)


@pytest.mark.parametrize("problem", [P01, P03], ids=lambda problem: problem.id)
@pytest.mark.parametrize("seqlen", [1, 2, 64])
def test_one_millionth_in_the_denominator_passes_where_precision_is_asked_for(problem, seqlen):
    case, inputs, expected = example(problem, {"seqlen": seqlen}, exact=True)
    scores = inputs.tensors["q"] @ inputs.tensors["k"].transpose(2, 3) / math.sqrt(case.head_dim)
    largest = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - largest)

    def answer(epsilon):
        total = weights.sum(-1, keepdim=True) + epsilon
        lse = (largest + total.log()).squeeze(-1)
        return {"out": weights @ inputs.tensors["v"] / total, "lse": lse}

    assert failing(answer(1e-6), expected) == set()
    assert "out" in failing(answer(1e-4), expected)


def test_tf32_passes_but_where_precision_is_asked_for():
    given = PLAIN | {"values": "peaked"}
    case, inputs, loose = example(P03, given)
    _, _, strict = example(P03, given, exact=True)
    tf32 = computed(P03, case, {n: as_tf32(t) for n, t in inputs.tensors.items()})
    assert (loose.precision, strict.precision) == ("tf32", "fp32")
    assert failing(tf32, loose) == set()
    assert "out" in failing(tf32, strict)
    assert failing(computed(P03, case, inputs.tensors), strict) == set()
    coarse = computed(P03, case, {n: t.bfloat16().float() for n, t in inputs.tensors.items()})
    assert "out" in failing(coarse, loose)


def test_pytorch_has_no_excuse_for_tf32():
    case, inputs, expected = example(P01, PLAIN | {"values": "peaked"})
    assert expected.precision == "fp32"
    tf32 = computed(P01, case, {n: as_tf32(t) for n, t in inputs.tensors.items()})
    assert "out" in failing(tf32, expected)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_products_in_16_bits_fail_and_those_in_fp32_pass(dtype):
    for seed in range(5):
        given = {"rows": 64, "cols": 256, "values": "cancelling"}
        _, inputs, expected = example(P02, given, dtype, seed=seed)
        x, w = inputs.tensors["x"], inputs.tensors["w"]
        right = (x.float() * w.float()).sum(1).to(x.dtype)
        wrong = (x * w).float().sum(1).to(x.dtype)
        assert failing({"y": right}, expected) == set()
        assert failing({"y": wrong}, expected) == {"y"}


@pytest.mark.parametrize(("exact", "factor"), [(True, 1.01), (False, 1.1)])
def test_a_factor_fails_in_every_output_and_head(exact, factor):
    _, _, expected = example(P08, PLAIN | {"num_kv_heads": 1}, exact=exact)
    for name, truth in expected.truth.items():
        for head in ((0, 0), (-1, -1)):
            got = {n: t.clone() for n, t in expected.truth.items()}
            got[name][head] *= factor
            assert failing(got, expected) == {name}


def allowed_errors(name, expected):
    """What every element may be off by: the inverse of error / allowed of an error of one."""
    truth = expected.truth[name]
    return 1.0 / element_errors(name, truth + 1.0, expected)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_the_error_of_an_honest_computation_is_allowed_twice(dtype):
    _, _, expected = example(P03, PLAIN | {"values": "peaked"}, dtype)
    truth = expected.truth["out"]
    faultless = dataclasses.replace(expected, honest=expected.truth)
    for_honesty = allowed_errors("out", expected) - allowed_errors("out", faultless)
    worst = (expected.honest["out"].double() - truth).abs().amax((2, 3), keepdim=True)
    assert torch.allclose(for_honesty, (2.0 * worst).expand_as(truth), rtol=1e-6)
    assert bool((worst > 0).all())


@pytest.mark.parametrize(("problem", "dtype"), [(P03, "fp32"), (P03, "fp16"), (P08, "fp32")])
def test_an_error_that_is_spread_thin_is_seen_in_the_norm_of_its_head(problem, dtype):
    _, _, expected = example(problem, PLAIN, dtype)
    for name, truth in expected.truth.items():
        allowed = allowed_errors(name, expected)
        everywhere = expected.truth | {name: truth + 0.97 * allowed}
        in_one_head = truth.clone()
        in_one_head[1, 0] += 0.97 * allowed[1, 0]
        for got in (everywhere, expected.truth | {name: in_one_head}):
            assert bool((element_errors(name, got[name], expected) <= 1.0).all())
            (difference,) = find_differences(got, expected)
            assert difference.name == name and difference.margin > 1.0
        assert failing(expected.truth | {name: truth + 0.05 * allowed}, expected) == set()


def test_one_element_beyond_its_own_tolerance_fails():
    _, _, expected = example(P03, PLAIN)
    for name, truth in expected.truth.items():
        allowed = allowed_errors(name, expected)
        for factor, wrong in ((0.95, set()), (1.05, {name})):
            got = truth.clone()
            got.view(-1)[77] += factor * allowed.reshape(-1)[77]
            assert failing(expected.truth | {name: got}, expected) == wrong


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_fails(value):
    _, _, expected = example(P03, PLAIN)
    for name, truth in expected.truth.items():
        got = truth.clone()
        got.view(-1)[-1] = value
        (difference,) = find_differences(expected.truth | {name: got}, expected)
        assert difference.name == name and difference.margin == math.inf
        assert str(value) in difference.first


def test_infinities_that_are_expected_pass():
    _, _, expected = example(P03, PLAIN)
    truth = expected.truth["lse"].clone()
    truth[0, 0, 3] = -math.inf
    magnitude = expected.magnitude | {"lse": truth.abs().nan_to_num(0.0, 0.0, 0.0)}
    changes = {"truth": {"lse": truth}, "honest": {"lse": truth}, "magnitude": magnitude}
    expected = dataclasses.replace(expected, **changes)
    assert failing({"lse": truth.clone()}, expected) == set()
    assert failing({"lse": truth.nan_to_num(0.0, 0.0, 0.0)}, expected) == {"lse"}
    assert failing({"lse": -truth}, expected) == {"lse"}


def test_outputs_of_two_heads_may_be_of_very_different_size():
    _, _, expected = example(P03, PLAIN)
    big = {name: truth.clone() for name, truth in expected.truth.items()}
    big["out"][0, 1] *= 1e6
    scaled = dataclasses.replace(
        expected, truth=big, honest={n: t.float() for n, t in big.items()},
        magnitude=expected.magnitude | {"out": expected.magnitude["out"].clone()},
    )  # fmt: skip
    scaled.magnitude["out"][0, 1] *= 1e6
    got = {name: truth.clone() for name, truth in big.items()}
    got["out"][0, 0] *= 1.01  # far below what the other head may be off by
    assert failing(got, scaled) == {"out"}


def changed(place, value, name="out", problem=P03, given=PLAIN, exact=False):
    """The difference when one or more elements of the truth are replaced."""
    _, _, expected = example(problem, given, exact=exact)
    got = {n: t.clone() for n, t in expected.truth.items()}
    for where in place:
        got[name][where] = value if not callable(value) else value(got[name][where])
    (difference,) = find_differences(got, expected)
    return difference


def test_the_first_and_the_worst_element_are_shown():
    errors = iter([1.0, 10.0])
    difference = changed([(0, 1, 3, 5), (1, 0, 9, 2)], lambda e: e + next(errors))
    assert difference.first.startswith("out[0, 1, 3, 5]   got ")
    assert difference.worst.startswith("out[1, 0, 9, 2]   got ")
    assert changed([(1, 1, 7, 0)], 50.0).worst is None


@pytest.mark.parametrize("error", [3e-6, 1e-5, 1e-3, 0.5])
@pytest.mark.parametrize("sign", [1, -1])
def test_got_and_expected_never_look_the_same(error, sign):
    difference = changed(
        [(0, 0, 0), (1, 1, 63)], lambda e: e * (1 + sign * error), "lse", exact=True
    )
    pattern = r"lse\[[\d, ]+\]   got (\S+)   expected (\S+)   allowed (\S+)   \((\S+)x\)"
    for text in filter(None, (difference.first, difference.worst)):
        got, expected, allowed, _ = re.fullmatch(pattern, text).groups()
        assert got != expected and float(got) != float(expected)
        assert abs(float(got) / float(expected) - 1) == pytest.approx(error, rel=0.5)
        assert float(allowed) > 0


def test_error_over_allowed_is_told_and_is_the_margin():
    difference = changed([(0, 0, 0, 0)], 100.0)
    (ratio,) = re.findall(r"\(([\d,.e+]+)x\)", difference.first)
    assert float(ratio.replace(",", "")) == pytest.approx(difference.margin, rel=0.01)


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ((slice(None), slice(None), slice(5, 9)), "rows 5-8 of 64"),
        ((slice(None), 1), "head 1 of 2"),
        ((0,), "batch 0 of 2"),
        ((1, 0, 7), "batch 1 of 2; head 0 of 2; row 7 of 64"),
        ((slice(None),), "100 % of out is outside the tolerance; no NaN"),
        ((1, 1, 63, 63), "less than 0.1 % of out is outside the tolerance"),
    ],
)
def test_an_error_says_how_far_it_reaches(where, told):
    difference = changed([where], 50.0)
    assert told in difference.extent
    assert difference.wrong.any() and difference.extent.endswith("no NaN")


def test_numbers_that_are_none_are_counted():
    assert changed([(0, 0, 3, slice(0, 5))], math.nan).extent.endswith("5 NaN")
    assert changed([(0, 0, 3, slice(0, 5))], math.inf).extent.endswith("no NaN; 5 infinite")


@pytest.mark.parametrize(
    ("true", "text"),
    [
        ([], ""),
        ([0], "0"),
        ([3, 4, 5], "3-5"),
        ([0, 2, 3, 7], "0, 2-3, 7"),
        ([0, 2, 4, 6, 8], "0, 2, 4, ..."),
        (list(range(10)), "0-9"),
    ],
)
def test_positions_are_told_as_ranges_three_at_most(true, text):
    hit = torch.zeros(10, dtype=torch.bool)
    hit[true] = True
    assert ranges(hit) == text


def test_only_what_was_asked_for_is_expected():
    _, _, expected = example(P03, PLAIN, names=("lse",))
    assert set(expected.truth) == {"lse"}
    _, _, expected = example(P08, PLAIN, names=("out", "dk"))
    assert set(expected.truth) == {"out", "dk"}


def test_the_map_of_errors_is_of_the_worst_head_and_says_how_far_each_cell_is_off():
    _, _, expected = example(P03, PLAIN)
    allowed = allowed_errors("out", expected)
    got = {n: t.clone() for n, t in expected.truth.items()}
    for place, times in {
        (0, 1, 0, 0): 1.5,  # another head: not shown
        (1, 0, 0, 5): 0.9,
        (1, 0, 6, 5): 2.0,
        (1, 0, 7, 5): 500.0,
        (1, 0, 17, 2): 1e9,
    }.items():
        got["out"][place] += times * allowed[place]
    errors = find_differences(got, expected)[0].errors
    assert (errors.output, errors.batch, errors.head) == ("out", 1, 0)
    rows, columns = expected.truth["out"].shape[2:]
    assert (errors.num_rows, errors.num_columns) == (rows, columns)
    assert errors.cell_rows == -(-rows // 32) and errors.cell_columns == -(-columns // 32)
    assert len(errors.rows) == -(-rows // errors.cell_rows) <= 32
    assert {len(row) for row in errors.rows} == {-(-columns // errors.cell_columns)}
    wrong = {
        (r, c): letter
        for r, row in enumerate(errors.rows)
        for c, letter in enumerate(row)
        if letter != "."
    }
    sides = errors.cell_rows, errors.cell_columns
    cells = {place: (place[0] // sides[0], place[1] // sides[1]) for place in ((7, 5), (17, 2))}
    assert wrong[cells[7, 5]] == "6" and wrong[cells[17, 2]] == "9"
    inside = (6 // sides[0], 5 // sides[1])
    assert wrong[inside] == ("6" if inside == cells[7, 5] else "1")
    assert set(wrong) == {*cells.values(), inside}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_map_of_errors_tells_what_is_not_finite(value):
    difference = changed([(1, 1, 3)], value, name="lse")
    errors = difference.errors
    assert errors.num_columns == 1 and (errors.batch, errors.head) == (1, 1)
    assert [row for row in errors.rows if row != "."] == ["N"]
    assert errors.rows[3 // errors.cell_rows] == "N"


def test_there_is_no_map_of_errors_that_are_large_only_as_a_whole():
    _, _, expected = example(P03, PLAIN)
    got = expected.truth["out"] + 0.97 * allowed_errors("out", expected)
    (difference,) = find_differences(expected.truth | {"out": got}, expected)
    assert difference.errors is None


@pytest.mark.parametrize("number", [193, 359])
def test_another_order_of_sums_is_right_where_few_rows_make_the_honest_error_small(number):
    problem, seed = load_problem("p01"), f"{number:x}"
    case = resolve(problem.base.given | {"seqlen": 9, "values": "peaked"}, "fp32", seed)
    inputs = make_inputs(problem, case, case_seed(seed, "reordered"))
    q, k, v = (inputs.tensors[name] for name in ("q", "k", "v"))
    scores = torch.zeros(*q.shape[:3], k.shape[2])
    for d in range(q.shape[-1]):
        scores += q[..., d : d + 1] * k[..., d : d + 1].mT
    out = (scores / math.sqrt(q.shape[-1])).softmax(-1) @ v
    assert not find_differences({"out": out}, expect(problem, case, inputs, ("out",)))


WRONG = """
import sys
from grader.checks.correctness import expect, find_differences
from grader.spec.cases import resolve
from grader.spec.inputs import make_inputs
from grader.spec.problem import load_problem

problem, case = load_problem("p02"), resolve({"rows": 2, "cols": 3}, "fp32", "")
expected = expect(problem, case, make_inputs(problem, case, 1), ("y",))
print(len(find_differences({"y": expected.truth["y"].float() + 1}, expected)))
print("sympy" in sys.modules)
"""


def test_the_first_wrong_number_imports_nothing_of_torch():
    """torch.unravel_index imports sympy, which takes half a second."""
    done = subprocess.run(
        [sys.executable, "-c", WRONG], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["1", "False"], done.stderr
