"""The reference against the definition, and its forms against each other."""

import importlib.util
import itertools
import math
from pathlib import Path

import pytest
import torch

import reference
from grader.spec.problem import load_problem, problem_ids

# is_causal, window_size, num_sink_tokens
RULES = [
    (False, None, 0),
    (True, None, 0),
    (True, 1, 0),
    (True, 5, 0),
    (True, 5, 3),
    (True, 1, 2),
    (True, 4, 6),
    (True, 40, 2),
]
FP64 = {"rtol": 1e-10, "atol": 1e-12}


def random_inputs(
    *, batch=2, num_q_heads=4, num_kv_heads=2, seqlen=19, seqlen_k=None, head_dim=8, peak=2.0
):
    """q, k, v and dout in fp64: peaked scores, values with an offset, signed dout."""
    generator = torch.Generator().manual_seed(0)

    def normal(heads, rows):
        shape = (batch, heads, rows, head_dim)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    keys = seqlen if seqlen_k is None else seqlen_k
    return {
        "q": peak * normal(num_q_heads, seqlen),
        "k": normal(num_kv_heads, keys) + 0.3,
        "v": normal(num_kv_heads, keys) + 0.5,
        "dout": normal(num_q_heads, seqlen) + 0.2,
    }


def qkv(inputs):
    return inputs["q"], inputs["k"], inputs["v"]


def options_of(rule):
    is_causal, window_size, num_sink_tokens = rule
    return {"is_causal": is_causal, "window_size": window_size, "num_sink_tokens": num_sink_tokens}


def softmax_by_loops(q, k, v, rule, scale, sink_logits=None):
    """The definition in Python floats: out and lse, nothing shared with the code under test."""
    is_causal, window_size, num_sink_tokens = rule
    out, lse = torch.zeros_like(q), torch.zeros_like(q[..., 0])
    group_size = q.shape[1] // k.shape[1]
    for b, h, i in itertools.product(*(range(n) for n in q.shape[:3])):
        terms = []
        for j in range(k.shape[2]):
            in_window = window_size is None or i - window_size < j or j < num_sink_tokens
            if not is_causal or (j <= i and in_window):
                pairs = zip(q[b, h, i].tolist(), k[b, h // group_size, j].tolist(), strict=True)
                terms.append((math.exp(scale * math.fsum(x * y for x, y in pairs)), j))
        total = math.fsum(weight for weight, _ in terms)
        if sink_logits is not None:
            total += math.exp(sink_logits[h].item())
        for weight, j in terms:
            out[b, h, i] += weight / total * v[b, h // group_size, j]
        lse[b, h, i] = math.log(total)
    return out, lse


@pytest.mark.parametrize("rule", RULES)
def test_visible_keys_follow_the_definition(rule):
    is_causal, window_size, num_sink_tokens = rule
    for seqlen_q, seqlen_k in [(1, 1), (9, 9), (4, 7), (7, 4)]:
        got = reference.visible_keys(seqlen_q, seqlen_k, **options_of(rule))
        assert got.shape == (seqlen_q, seqlen_k) and got.dtype == torch.bool
        for i, j in itertools.product(range(seqlen_q), range(seqlen_k)):
            inside = window_size is None or i - window_size < j or j < num_sink_tokens
            assert got[i, j].item() == (not is_causal or (j <= i and inside))


ORACLES = {id: load_problem(id).oracle for id in problem_ids()}
FORWARD = {
    "p01": ((False, None, 0), {}),
    "p03": ((False, None, 0), {}),
    "p04": ((True, None, 0), {}),
    "p05": ((True, None, 0), {}),
    "p06": ((True, 5, 0), {"window_size": 5}),
    "p07": ((True, 5, 3), {"window_size": 5, "num_sink_tokens": 3}),
    "p08": ((True, None, 0), {}),
    "p09": ((True, 5, 3), {"window_size": 5, "num_sink_tokens": 3}),
}


@pytest.mark.parametrize("scale", [None, 1.3, -0.7])
@pytest.mark.parametrize("problem_id", FORWARD)
def test_oracle_equals_a_softmax_by_loops(problem_id, scale):
    rule, options = FORWARD[problem_id]
    inputs = random_inputs(seqlen=11, head_dim=4, peak=1.0)
    fn = getattr(reference, ORACLES[problem_id])
    got = fn(*qkv(inputs), softmax_scale=scale, **options)
    out, lse = softmax_by_loops(*qkv(inputs), rule, 0.5 if scale is None else scale)
    if isinstance(got, tuple):
        torch.testing.assert_close(got[1], lse, **FP64)
        got = got[0]
    torch.testing.assert_close(got, out, **FP64)


def test_causal_option_and_ignored_tiles_of_p01():
    inputs = random_inputs(seqlen=11, head_dim=4)
    got = reference.flash_attention(*qkv(inputs), is_causal=True, tile_q=3, tile_k=5)
    torch.testing.assert_close(got, reference.causal_attention(*qkv(inputs)), **FP64)


def test_sink_logits_equal_a_softmax_by_loops():
    inputs = random_inputs(seqlen=9, head_dim=4, peak=1.0)
    logits = torch.tensor([-2.0, 0.0, 1.5, 6.0], dtype=torch.float64)
    out, lse = softmax_by_loops(*qkv(inputs), (True, 4, 2), 0.5, logits)
    options = {"window_size": 4, "num_sink_tokens": 2, "sink_logits": logits}
    got = reference.sink_window_attention(*qkv(inputs), **options)
    torch.testing.assert_close(got, out, **FP64)
    got = reference.blocked_attention(*qkv(inputs), is_causal=True, **options)
    torch.testing.assert_close(got, (out, lse), **FP64)


def test_sink_logits_of_minus_infinity_equal_none():
    inputs = random_inputs()
    options = {"window_size": 5, "num_sink_tokens": 2}
    logits = torch.full((4,), -math.inf, dtype=torch.float64)
    fn = reference.sink_window_attention
    without = reference.gradients(fn, inputs, inputs["dout"], **options)
    got = reference.gradients(fn, inputs | {"sink_logits": logits}, inputs["dout"], **options)
    assert torch.equal(got.pop("dsink_logits"), torch.zeros(4, dtype=torch.float64))
    for name in without:
        torch.testing.assert_close(got[name], without[name], **FP64)


def test_grouped_heads_equal_repeated_heads():
    inputs = random_inputs(num_q_heads=6, num_kv_heads=2)
    q, k, v = qkv(inputs)
    k, v = (x.repeat_interleave(3, dim=1) for x in (k, v))
    got = reference.gqa_attention(*qkv(inputs))
    torch.testing.assert_close(got, reference.causal_attention(q, k, v), **FP64)


def test_seqlens_may_differ_without_a_mask():
    inputs = random_inputs(seqlen=5, seqlen_k=13, num_kv_heads=4, head_dim=4, peak=1.0)
    expected = softmax_by_loops(*qkv(inputs), (False, None, 0), 0.5)
    torch.testing.assert_close(reference.noncausal_attention(*qkv(inputs)), expected, **FP64)
    got = reference.blocked_attention(*qkv(inputs), is_causal=False, block=2)
    torch.testing.assert_close(got, expected, **FP64)


def test_large_scores_stay_finite_and_exact():
    inputs = random_inputs(seqlen=33, peak=100.0)
    out, lse = reference.causal_attention(*qkv(inputs))
    expected = torch.nn.functional.scaled_dot_product_attention(
        *qkv(inputs), is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(out, expected, **FP64)
    assert torch.isfinite(lse).all() and lse.abs().max() > 100


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_working_precision(dtype):
    inputs = {name: x.to(dtype) for name, x in random_inputs(peak=1.0).items()}
    exact = {name: x.double() for name, x in inputs.items()}
    out, lse = reference.gqa_attention(*qkv(inputs))
    assert out.dtype == dtype and lse.dtype == torch.float32
    error = (out.double() - reference.gqa_attention(*qkv(exact))[0]).norm() / out.double().norm()
    assert error < 2 * torch.finfo(dtype).eps
    found = reference.gradients(reference.gqa_attention_training, inputs, inputs["dout"])
    assert {x.dtype for x in found.values()} == {dtype}
    # a view with other strides must give what its dense copy gives
    strided = inputs["q"].transpose(1, 2).contiguous().transpose(1, 2)
    torch.testing.assert_close(
        reference.gqa_attention(strided, inputs["k"], inputs["v"])[0], out, rtol=0, atol=1e-2
    )


def test_weighted_row_sum():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(7, 2001, generator=generator, dtype=torch.float64)
    w = torch.randn(2001, generator=generator, dtype=torch.float64)
    products = (x * w).tolist()
    expected = [math.fsum(row) for row in products]
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(reference.weighted_row_sum(x, w), expected, **FP64)
    for dtype in (torch.float16, torch.bfloat16):
        low = reference.weighted_row_sum(x.to(dtype), w.to(dtype))
        exact = reference.weighted_row_sum(x.to(dtype).double(), w.to(dtype).double())
        assert low.dtype == dtype
        # one rounding at the end, and none before it that would show
        assert ((low.double() - exact).abs() <= torch.finfo(dtype).eps * exact.abs() + 1e-4).all()
    scale = reference.magnitudes("p02", {"x": x, "w": w})["y"]
    torch.testing.assert_close(scale, (x.abs() @ w.abs()), **FP64)


def test_no_rule_is_made_up_for_a_problem_that_has_none():
    with pytest.raises(KeyError, match="p99"):
        reference.rules("p99")
    with pytest.raises(KeyError, match="p99"):
        reference.magnitudes("p99", {"x": torch.ones(2, 3)})


def test_naive_is_self_contained():
    path = Path(reference.__file__).parent / "naive.py"
    spec = importlib.util.spec_from_file_location("naive_alone", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert all(callable(getattr(module, name)) for name in ORACLES.values())


@pytest.mark.parametrize("with_sink", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_formulas_and_blocks_equal_autograd(rule, with_sink):
    from reference.naive import _attention

    inputs = random_inputs(num_q_heads=6, num_kv_heads=2)
    logits = torch.linspace(-1, 3, 6, dtype=torch.float64) if with_sink else None
    options = options_of(rule) | {"softmax_scale": 0.4}
    dout = inputs["dout"].transpose(1, 2).contiguous().transpose(1, 2)
    expected = reference.gradients(_attention, inputs | {"sink_logits": logits}, dout, **options)
    lse = _attention(*qkv(inputs), sink_logits=logits, **options)[1]
    arguments = (*qkv(inputs), dout)
    formula = reference.attention_gradients(*arguments, sink_logits=logits, **options)
    assert set(formula) == set(expected) | {"lse"}
    for block in (1, 7, 16, 64):
        blocked = reference.blocked_gradients(
            *arguments, sink_logits=logits, block=block, **options
        )
        forward = reference.blocked_attention(
            *qkv(inputs), sink_logits=logits, block=block, **options
        )
        assert set(blocked) == set(formula)
        torch.testing.assert_close(forward, (blocked["out"], lse), **FP64)
        for name in expected:
            torch.testing.assert_close(blocked[name], expected[name], **FP64)
    for name in expected:
        torch.testing.assert_close(formula[name], expected[name], **FP64)
    torch.testing.assert_close(formula["lse"], lse, **FP64)


@pytest.mark.parametrize("scale", [None, -0.4])
def test_gradients_from_what_the_forward_pass_has_left(scale):
    inputs = random_inputs(num_q_heads=6, num_kv_heads=2)
    q, k, v = qkv(inputs)
    options = {"is_causal": True, "softmax_scale": scale}
    right = reference.attention_gradients(q, k, v, inputs["dout"], **options)
    left = right["out"], right["lse"], inputs["dout"]
    got = reference.gqa_gradients(q, k, v, *left, softmax_scale=scale)
    for name, tensor in zip(("dq", "dk", "dv"), got, strict=True):
        torch.testing.assert_close(tensor, right[name], **FP64)


@pytest.mark.parametrize("rule", [(False, None, 0), (True, 3, 2)])
def test_autograd_of_the_oracle_passes_gradcheck(rule):
    from reference.naive import _attention

    inputs = random_inputs(batch=1, num_q_heads=2, num_kv_heads=1, seqlen=6, head_dim=3, peak=1.0)
    leaves = [inputs[name].requires_grad_() for name in ("q", "k", "v")]
    leaves.append(torch.tensor([0.5, -1.0], dtype=torch.float64, requires_grad=True))

    def fn(q, k, v, sink_logits):
        return _attention(q, k, v, sink_logits=sink_logits, **options_of(rule))

    assert torch.autograd.gradcheck(fn, leaves)


def test_blocked_at_a_lower_precision_and_unaligned_length():
    inputs = random_inputs(seqlen=300, head_dim=16)
    options = {"is_causal": True, "window_size": 70, "num_sink_tokens": 5}
    out, lse = reference.blocked_attention(*qkv(inputs), block=64, dtype=torch.float32, **options)
    assert out.dtype == lse.dtype == torch.float32
    del options["is_causal"]
    expected = reference.sink_attention(*qkv(inputs), **options)
    torch.testing.assert_close(out.double(), expected[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse.double(), expected[1], rtol=1e-5, atol=1e-5)


def test_magnitudes_bound_the_outputs_and_equal_sums_by_hand():
    inputs = random_inputs()
    inputs["sink_logits"] = torch.linspace(-1, 2, 4, dtype=torch.float64)
    options = {"window_size": 5, "num_sink_tokens": 2}
    found = reference.magnitudes("p09", inputs, **options)
    right = reference.attention_gradients(
        *(inputs[name] for name in ("q", "k", "v", "dout")),
        is_causal=True,
        sink_logits=inputs["sink_logits"],
        **options,
    )
    assert set(found) == set(right)
    for name, scale in found.items():
        assert scale.shape == right[name].shape and scale.dtype == torch.float64
        assert (right[name].abs() <= scale * (1 + 1e-12)).all(), name
    # With no sign to cancel, the sum of absolute values is the output itself.
    positive = inputs | {"v": inputs["v"].abs(), "dout": inputs["dout"].abs()}
    found = reference.magnitudes("p09", positive, **options)
    right = reference.attention_gradients(
        *(positive[name] for name in ("q", "k", "v", "dout")),
        is_causal=True,
        sink_logits=inputs["sink_logits"],
        **options,
    )
    for name in ("out", "dv"):
        torch.testing.assert_close(found[name], right[name], **FP64)
    torch.testing.assert_close(found["dsink_logits"], -right["dsink_logits"], **FP64)
    assert set(reference.magnitudes("p05", qkv_only(inputs))) == {"out", "lse"}


def qkv_only(inputs):
    return {name: inputs[name] for name in ("q", "k", "v")}


def test_relative_distance_skips_what_a_mistake_leaves_open():
    predicted = torch.tensor([math.nan, 3.0, 4.0], dtype=torch.float64)
    got = torch.tensor([math.nan, 3.0, 4.5])
    assert reference.relative_distance(got, predicted) == pytest.approx(0.1)
    got = torch.tensor([0.0, math.nan, 4.0])
    assert reference.relative_distance(got, predicted) == math.inf
    assert reference.relative_distance(got, torch.full_like(predicted, math.nan)) == math.inf
    zeros = torch.zeros(3, dtype=torch.float64)
    assert reference.relative_distance(torch.zeros(3), zeros) == 0.0
    assert reference.relative_distance(got[2:], zeros[2:]) == math.inf


def test_first_exp_and_log_of_a_process_have_one_element(monkeypatch):
    seen = []
    for name in ("exp", "log"):

        def call(tensor, name=name, original=getattr(torch.Tensor, name)):
            seen.append((name, tensor.dtype, tensor.numel()))
            return original(tensor)

        monkeypatch.setattr(torch.Tensor, name, call)
    reference.make_first_calls()
    for dtype in (torch.float32, torch.float64):
        assert {("exp", dtype, 1), ("log", dtype, 1)} <= {*seen}
