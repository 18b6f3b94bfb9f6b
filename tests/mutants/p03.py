"""Mistakes in p03, non-causal attention."""

from functools import partial

from tests.mutants.common import READ_OUTSIDE, Mutant
from tests.mutants.forward import ALLOCATE, NEW_MAX, PRODUCTS, everywhere

_MUTANT = partial(Mutant, "p03")

_EXISTS = "visible = keys[None, :] < seqlen_k"
_HIDE = 'tl.where(visible, scores, float("-inf"))'
_PADDED = "if not IS_EVEN:"
_LOAD_K = "load_keys(k_ptr + k_offs, keys, seqlen_k, IS_EVEN)"
_OFFSET_K = "k_ptr += batch * k_strides[0] + head * k_strides[1]"
_OFFSET_V = "v_ptr += batch * v_strides[0] + head * v_strides[1]"

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
        ((_PADDED, "if key_start < 0:"),),
        "PADDED-KEYS-COUNTED",
        step=4,
        keeps=0.6,
    ),
    _MUTANT(
        "padded scores of zero",
        ("ragged",),
        ((_HIDE, "tl.where(visible, scores, 0.0)"),),
        "PADDED-KEYS-COUNTED",
        step=4,
        keeps=0.6,
    ),
    _MUTANT(
        "padding by position in the tile",
        ("ragged",),
        ((_EXISTS, "visible = offs_n[None, :] < seqlen_k"),),
        keeps=0.6,
    ),
    _MUTANT(
        "last tile dropped",
        ("ragged",),
        (("range(0, seqlen_k, BLOCK_N)", "range(0, seqlen_k // BLOCK_N * BLOCK_N, BLOCK_N)"),),
        "LAST-KEY-TILE-DROPPED",
        keeps=0.6,
    ),
    _MUTANT(
        "keys counted by queries",
        ("unequal",),
        (
            (
                "num_q_heads, seqlen_q, seqlen_k, softmax",
                "num_q_heads, seqlen_q, min(seqlen_q, seqlen_k), softmax",
            ),
        ),
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
        ((_LOAD_K, "load_keys(k_ptr + k_offs, keys, seqlen_k, True)"),),
        caught_as=READ_OUTSIDE,
        keeps=0.6,
    ),
    # -- heads ------------------------------------------------------------------------------------
    _MUTANT(
        "head 0 for all",
        ("batch_heads",),
        (
            (_OFFSET_K, "k_ptr += batch * k_strides[0]"),
            (_OFFSET_V, "v_ptr += batch * v_strides[0]"),
        ),
        "HEADS-ZERO",
        step=3,
        keeps=0.6,
    ),
    _MUTANT(
        "batch 0 for all",
        ("batch_heads",),
        (
            (_OFFSET_K, "k_ptr += head * k_strides[1]"),
            (_OFFSET_V, "v_ptr += head * v_strides[1]"),
        ),
        "BATCH-ZERO",
        step=3,
        keeps=0.6,
    ),
    _MUTANT(
        "batch divided by one head",
        ("batch_heads",),
        (
            (
                "batch, head = batch_head // num_q_heads, batch_head % num_q_heads",
                "head, batch = batch_head // num_q_heads, batch_head % num_q_heads",
            ),
        ),
        caught_as="outside a tensor",
        keeps=0.6,
    ),
    _MUTANT(
        "k not transposed",
        ("plain",),
        ((PRODUCTS, PRODUCTS.replace("tl.trans(k)", "k")),),
    ),
)
