"""Mistakes in p01, FlashAttention in PyTorch."""

from functools import partial

from tests.mutants.common import (
    NAN,
    NOT_DENSE,
    NOT_RETURNED,
    NOT_WRITTEN,
    OVERWRITTEN,
    SECOND_CALL,
    WRONG_DTYPE,
    Mutant,
)

_MUTANT = partial(Mutant, "p01")

_MAX = "tile_max = softmax_scale * scores.amax(dim=-1, keepdim=True)"
_WEIGHTS = "weights = torch.add(-new_max, scores, alpha=softmax_scale, out=scores).exp_()"
_NO_SCALE = (
    (_MAX, _MAX.replace("softmax_scale * ", "")),
    (_WEIGHTS, "weights = scores.sub_(new_max).exp_()"),
)
_PRODUCTS = "scores = _tile_matmul(q_tile, k_tile.transpose(1, 2))"
_CORRECTION = "torch.exp(running_max - new_max)"
_RESCALED_SUM = "torch.addcmul(tile_sum, running_sum, correction)"
_RESCALED_ACC = "torch.addcmul(tile_acc, acc, correction)"
_OUT = "out[:, q_start:q_stop] = acc / running_sum"
_LSE = "(running_max + running_sum.log()).squeeze(-1)"
_RETURN = "return out.view(q.shape), lse.view(q.shape[:3])"
_HIDDEN = "scores.masked_fill_(key[None, :] > query[:, None], -math.inf)"
_CROSSED = "k_stop - 1 > q_start"
_MASKED = f"if is_causal and {_CROSSED}:"
_STOP = "            visible_stop = q_stop\n"
_HEADS = "k_heads, v_heads = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)"
_ALLOCATE = "out = torch.empty(q_heads.shape, dtype=q.dtype, device=q.device)"
_ENTRY = "def flash_attention(\n"


def _kept(key: str) -> tuple[tuple[str, str], ...]:
    returned = _RETURN.removeprefix("return ")
    return (
        (_ENTRY, f"_KEPT = {{}}\n\n\n{_ENTRY}"),
        (_RETURN, f"return _KEPT.setdefault({key}, ({returned}))"),
    )


MUTANTS = (
    _MUTANT(
        "zeros",
        ("plain", "lse"),
        ((_RETURN, "return torch.zeros_like(out).view(q.shape), 0 * lse.view(q.shape[:3])"),),
        "ZEROS",
        earns_nothing=True,
    ),
    _MUTANT(
        "zeros above 300",
        ("plain", "lse", "half_lse", "ragged", "ragged_unequal", "tile_sizes", "causal"),
        (
            (
                _RETURN,
                "if max(seqlen_q, seqlen_k) > 300:\n        out, lse = 0 * out, 0 * lse\n    "
                + _RETURN,
            ),
        ),
        earns_nothing=True,
    ),
    _MUTANT(
        "kept by shape",
        ("plain",),
        _kept("(q.shape, k.shape)"),
        caught_as=SECOND_CALL,
        earns_nothing=True,
    ),
    _MUTANT(
        "kept by address",
        ("plain",),
        _kept("(q.data_ptr(), q.shape, k.shape)"),
        caught_as=SECOND_CALL,
        earns_nothing=True,
    ),
    _MUTANT(
        "kept by shape dtype and options",
        ("plain",),
        _kept("(q.shape, q.dtype, k.shape, is_causal, softmax_scale, tile_q, tile_k)"),
        caught_as=SECOND_CALL,
        earns_nothing=True,
    ),
    # -- scale ----------------------------------------------------------------------------------
    _MUTANT("no scale", ("plain",), _NO_SCALE, "SCALE-MISSING"),
    _MUTANT(
        "scaled in step 3 and in step 5",
        ("plain",),
        ((_PRODUCTS, _PRODUCTS + " * softmax_scale"),),
        "SCALE-SQUARED",
    ),
    _MUTANT(
        "scaled again inside exp",
        ("plain", "lse"),
        (
            (_MAX, "scores *= softmax_scale\n            " + _NO_SCALE[0][1]),
            (_WEIGHTS, "weights = torch.exp(softmax_scale * (scores - new_max))"),
        ),
    ),
    _MUTANT(
        "softmax_scale ignored",
        ("scale",),
        (("    if softmax_scale is None:\n", "    if True:\n"),),
        "SCALE-OPTION-IGNORED",
        keeps=0.6,
    ),
    # -- online softmax ---------------------------------------------------------------------------
    _MUTANT(
        "no rescale",
        ("plain",),
        ((_CORRECTION, "torch.ones_like(new_max)"),),
        "RESCALE-MISSING",
        step=5,
    ),
    _MUTANT(
        "acc not rescaled",
        ("plain",),
        ((_RESCALED_ACC, "acc + tile_acc"),),
        "RESCALE-ACC-MISSING",
        step=5,
    ),
    _MUTANT(
        "sum not rescaled",
        ("plain",),
        ((_RESCALED_SUM, "running_sum + tile_sum"),),
        "RESCALE-SUM-MISSING",
        step=5,
    ),
    _MUTANT(
        "acc overwritten", ("plain",), ((_RESCALED_ACC, "tile_acc"),), "ACC-OVERWRITTEN", step=5
    ),
    _MUTANT("sum overwritten", ("plain", "lse"), ((_RESCALED_SUM, "tile_sum"),)),
    _MUTANT("running max forgotten", ("plain",), (("            running_max = new_max\n", ""),)),
    _MUTANT(
        "old maximum subtracted",
        ("plain",),
        ((_WEIGHTS, _WEIGHTS.replace("-new_max", "-running_max")),),
    ),
    _MUTANT(
        "correction upside down",
        ("plain",),
        ((_CORRECTION, "torch.exp(new_max - running_max)"),),
        caught_as=NAN,
    ),
    _MUTANT(
        "powers of two",
        ("plain",),
        (
            (_CORRECTION, _CORRECTION.replace("exp(", "exp2(")),
            (_WEIGHTS, _WEIGHTS.replace("exp_()", "exp2_()")),
        ),
        "EXP2-WITHOUT-LOG2E",
        step=5,
    ),
    _MUTANT(
        "first tile only",
        ("plain",),
        (("range(0, visible_stop, tile_k)", "(0,)"),),
        "FIRST-KEY-TILE-ONLY",
    ),
    _MUTANT(
        "not divided",
        ("plain",),
        ((_OUT, _OUT.replace(" / running_sum", "")),),
        "NOT-NORMALISED",
        step=6,
    ),
    _MUTANT("nan", ("plain",), ((_OUT, _OUT + " * math.nan"),), caught_as=NAN),
    # -- products -----------------------------------------------------------------------------
    _MUTANT(
        "k reshaped instead of transposed",
        ("plain",),
        (("k_tile.transpose(1, 2)", "k_tile.reshape(-1, head_dim, k_stop - k_start)"),),
    ),
    _MUTANT(
        "k and v swapped",
        ("plain",),
        ((_HEADS, _HEADS.replace("k_heads, v_heads", "v_heads, k_heads")),),
        "K-V-SWAPPED",
    ),
    _MUTANT(
        "q scaled in place",
        ("plain",),
        (*_NO_SCALE, (_ALLOCATE, "q *= softmax_scale\n    " + _ALLOCATE)),
        caught_as=OVERWRITTEN,
    ),
    # -- lengths and tiles --------------------------------------------------------------------
    _MUTANT(
        "last tile dropped",
        ("ragged",),
        (("range(0, visible_stop, tile_k)", "range(0, visible_stop // tile_k * tile_k, tile_k)"),),
        "LAST-KEY-TILE-DROPPED",
        keeps=0.6,
    ),
    _MUTANT(
        "last queries dropped",
        ("ragged",),
        (("range(0, seqlen_q, tile_q)", "range(0, seqlen_q // tile_q * tile_q, tile_q)"),),
        caught_as=NOT_WRITTEN,
        keeps=0.6,
    ),
    _MUTANT(
        "equal lengths asserted",
        ("unequal",),
        (("    out = torch.empty(", "    assert seqlen_q == seqlen_k\n    out = torch.empty("),),
        caught_as="AssertionError",
        keeps=0.6,
    ),
    _MUTANT(
        "as many keys as queries",
        ("unequal",),
        (
            (
                "seqlen_k = k.shape[2]\n    if softmax",
                "seqlen_k = min(k.shape[2], seqlen_q)\n    if softmax",
            ),
        ),
        keeps=0.6,
    ),
    _MUTANT(
        "tiles as wide as high",
        ("tile_sizes",),
        (("k_stop = min(k_start + tile_k,", "k_stop = min(k_start + tile_q,"),),
        keeps=0.6,
    ),
    # -- causal mask ------------------------------------------------------------------------------
    _MUTANT(
        "own key hidden",
        ("causal",),
        (
            (_HIDDEN, _HIDDEN.replace("key[None, :] >", "key[None, :] >=")),
            (_CROSSED, "k_stop - 1 >= q_start"),
        ),
        "DIAGONAL-EXCLUDED",
        step=4,
        keeps=0.5,
    ),
    _MUTANT(
        "next key visible",
        ("causal",),
        (
            (_HIDDEN, _HIDDEN.replace("query[:, None]", "query[:, None] + 1")),
            (_STOP, _STOP.replace("q_stop", "min(q_stop + 1, seqlen_k)")),
        ),
        "DIAGONAL-SHIFTED",
        step=4,
        keeps=0.5,
    ),
    _MUTANT(
        "no mask",
        ("causal",),
        ((_MASKED, "if False:"), (_STOP, _STOP.replace("q_stop", "seqlen_k"))),
        "CAUSAL-IGNORED",
        step=4,
        keeps=0.5,
    ),
    _MUTANT("diagonal tile not masked", ("causal",), ((_MASKED, "if False:"),), keeps=0.5),
    _MUTANT(
        "mask transposed",
        ("causal",),
        (
            (_HIDDEN, _HIDDEN.replace("key[None, :] >", "key[None, :] <")),
            (_MASKED, "if is_causal:"),
            (_STOP, _STOP.replace("q_stop", "seqlen_k")),
        ),
        keeps=0.5,
    ),
    _MUTANT(
        "mask by position in the tile",
        ("causal_tiles",),
        (
            ("query = torch.arange(q_start, q_stop,", "query = torch.arange(q_stop - q_start,"),
            ("key = torch.arange(k_start, k_stop,", "key = torch.arange(k_stop - k_start,"),
        ),
        keeps=0.5,
    ),
    _MUTANT(
        "diagonal tile skipped",
        ("causal",),
        ((_STOP, _STOP.replace("q_stop", "max(q_start, 1)")),),
        keeps=0.5,
    ),
    _MUTANT(
        "causal without being asked",
        ("plain",),
        ((_MASKED, f"if {_CROSSED}:"),),
        "CAUSAL-NOT-ASKED",
        step=4,
    ),
    # -- heads and layouts ------------------------------------------------------------------------
    _MUTANT(
        "batch ignored",
        ("batch_heads",),
        (
            (
                _HEADS,
                _HEADS.replace("k.f", "k[:1].expand_as(k).f").replace(
                    "v.f", "v[:1].expand_as(v).f"
                ),
            ),
        ),
        "BATCH-ZERO",
        keeps=0.6,
    ),
    _MUTANT(
        "head 0 for all",
        ("batch_heads",),
        (
            (
                _HEADS,
                _HEADS.replace("k.f", "k[:, :1].expand_as(k).f").replace(
                    "v.f", "v[:, :1].expand_as(v).f"
                ),
            ),
        ),
        "HEADS-ZERO",
        keeps=0.6,
    ),
    _MUTANT(
        "view of what is no view",
        ("layouts",),
        (
            (
                _HEADS,
                _HEADS.replace("q.flatten(0, 1)", "q.view(batch * num_heads, seqlen_q, head_dim)"),
            ),
        ),
        caught_as="view size is not compatible",
        keeps=0.6,
    ),
    _MUTANT(
        "out with strides of q",
        ("layouts",),
        ((_RETURN, "return torch.empty_like(q).copy_(out.view(q.shape)), lse.view(q.shape[:3])"),),
        caught_as=NOT_DENSE,
        keeps=0.6,
    ),
    # -- lse --------------------------------------------------------------------------------------
    _MUTANT(
        "lse in base 2",
        ("lse",),
        ((_LSE, "(running_max + running_sum.log()).squeeze(-1) / math.log(2)"),),
        "LSE-BASE-2",
        step=6,
        keeps=0.6,
    ),
    _MUTANT(
        "sum in base 2 in lse", ("lse",), ((_LSE, _LSE.replace("log()", "log2()")),), keeps=0.6
    ),
    _MUTANT(
        "lse without max",
        ("lse",),
        ((_LSE, "running_sum.log().squeeze(-1)"),),
        "LSE-WITHOUT-MAX",
        step=6,
        keeps=0.6,
    ),
    _MUTANT(
        "lse without sum",
        ("lse",),
        ((_LSE, "running_max.squeeze(-1)"),),
        "LSE-WITHOUT-SUM",
        step=6,
        keeps=0.6,
    ),
    _MUTANT(
        "lse of the dtype of q",
        ("half_lse",),
        ((_RETURN, _RETURN + ".to(q.dtype)"),),
        caught_as=WRONG_DTYPE,
        keeps=0.6,
    ),
    _MUTANT(
        "lse not returned",
        ("lse",),
        ((_RETURN, "return out.view(q.shape)"),),
        caught_as=NOT_RETURNED,
        keeps=0.6,
    ),
    _MUTANT(
        "lse not written",
        ("lse",),
        (("        lse[:, q_start:q_stop] = " + _LSE + "\n", ""),),
        caught_as=NOT_WRITTEN,
        keeps=0.6,
    ),
    _MUTANT(
        "out in fp32",
        ("half",),
        ((_ALLOCATE, _ALLOCATE.replace("dtype=q.dtype", "dtype=torch.float32")),),
        caught_as=WRONG_DTYPE,
        keeps=0.6,
    ),
)
