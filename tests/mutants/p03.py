"""Mistakes in p03, non-causal attention."""

from functools import partial

from tests.mutants.common import READ_OUTSIDE, Mutant
from tests.mutants.forward import ALLOCATE, NEW_MAX, everywhere

_MUTANT = partial(Mutant, "p03")

_PADDING = "q, k, v, exists[None, :], running_max"
_EXISTS = "exists = full_end + offs_n < seqlen_k"
_LOAD_K = "tl.load(k_ptr + k_offs, mask=exists[:, None], other=0.0)"
_OFFSET_K = "k_ptr += batch * stride_kb + head * stride_kh"
_OFFSET_V = "v_ptr += batch * stride_vb + head * stride_vh"

MUTANTS = (
    *everywhere("p03"),
    _MUTANT(
        "maximum not scaled",
        ("plain",),
        ((NEW_MAX, NEW_MAX.replace(" * scale_log2", "")),),
    ),
    # -- lengths ----------------------------------------------------------------------------------
    _MUTANT(
        "padded keys not masked",
        ("ragged",),
        (("if visible is not None:", "if False:"),),
        "PADDED-KEYS-COUNTED",
        step=2,
        keeps=0.6,
    ),
    _MUTANT(
        "padded scores of zero",
        ("ragged",),
        (('tl.where(visible, scores, float("-inf"))', "tl.where(visible, scores, 0.0)"),),
        "PADDED-KEYS-COUNTED",
        step=2,
        keeps=0.6,
    ),
    _MUTANT(
        "padding by position in the tile",
        ("ragged",),
        ((_PADDING, "q, k, v, (offs_n < seqlen_k)[None, :], running_max"),),
        keeps=0.6,
    ),
    _MUTANT(
        "last tile dropped",
        ("ragged",),
        (("if full_end < seqlen_k:", "if full_end > seqlen_k:"),),
        "LAST-KEY-TILE-DROPPED",
        keeps=0.6,
    ),
    _MUTANT(
        "keys counted by queries",
        ("unequal",),
        (("seqlen_k = k.shape[2]", "seqlen_k = min(k.shape[2], seqlen_q)"),),
        keeps=0.6,
    ),
    _MUTANT(
        "equal lengths asserted",
        ("unequal",),
        ((ALLOCATE, "assert q.shape == k.shape\n    " + ALLOCATE),),
        caught_as="AssertionError",
        keeps=0.6,
    ),
    _MUTANT(
        "k read past the end",
        ("ragged",),
        ((_LOAD_K, "tl.load(k_ptr + k_offs)"),),
        caught_as=READ_OUTSIDE,
        keeps=0.6,
    ),
    # -- heads ------------------------------------------------------------------------------------
    _MUTANT(
        "head 0 for all",
        ("batch_heads",),
        (
            (_OFFSET_K, "k_ptr += batch * stride_kb"),
            (_OFFSET_V, "v_ptr += batch * stride_vb"),
        ),
        "HEADS-ZERO",
        step=1,
        keeps=0.6,
    ),
    _MUTANT(
        "batch 0 for all",
        ("batch_heads",),
        (
            (_OFFSET_K, "k_ptr += head * stride_kh"),
            (_OFFSET_V, "v_ptr += head * stride_vh"),
        ),
        "BATCH-ZERO",
        step=1,
        keeps=0.6,
    ),
    _MUTANT(
        "batch divided by one head",
        ("batch_heads",),
        (
            ("batch = batch_head // num_q_heads", "batch = batch_head % num_q_heads"),
            ("head = batch_head % num_q_heads", "head = batch_head // num_q_heads"),
        ),
        caught_as="outside a tensor",
        keeps=0.6,
    ),
)
