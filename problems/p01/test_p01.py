"""p01, FlashAttention in plain PyTorch: what `flash_attention` promises.

Cases and weights are in problem.toml.
"""

import reference


def test_one_key(case):
    """with a single key lse is its scaled score"""
    case.agrees_with(reference.flash_attention)


def test_one_tile(case):
    """keys that fit into one tile: the softmax of that tile"""
    case.agrees_with(reference.flash_attention)


def test_plain(case):
    """whole tiles of one head come out right, from one tile to many"""
    case.agrees_with(reference.flash_attention)


def test_lse(case):
    """lse is the natural log-sum-exp of the scaled, visible scores"""
    case.agrees_with(reference.flash_attention)


def test_half_lse(case):
    """lse is fp32 whatever the dtype of the inputs"""
    case.agrees_with(reference.flash_attention)


def test_half(case):
    """fp16 and bf16 inputs are as exact as PyTorch in that dtype"""
    case.agrees_with(reference.flash_attention)


def test_ragged(case):
    """any sequence length, from 1 on"""
    case.agrees_with(reference.flash_attention)


def test_unequal(case):
    """seqlen_q and seqlen_k may differ"""
    case.agrees_with(reference.flash_attention)


def test_ragged_unequal(case):
    """any two different lengths, a single query or key included"""
    case.agrees_with(reference.flash_attention)


def test_tile_sizes(case):
    """any tile_q and tile_k give the same result"""
    case.agrees_with(reference.flash_attention)


def test_causal(case):
    """with is_causal each query sees its own key and none after it"""
    case.agrees_with(reference.flash_attention)


def test_causal_tiles(case):
    """with is_causal no visible tile is skipped, whatever the tile sizes"""
    case.agrees_with(reference.flash_attention)


def test_skipped_tiles(case):
    """with is_causal the tiles above the diagonal are not computed"""
    case.holds()


def test_batch_heads(case):
    """every batch entry and head has its own result"""
    case.agrees_with(reference.flash_attention)


def test_lse_heads(case):
    """every batch entry and head has its own lse"""
    case.agrees_with(reference.flash_attention)


def test_layouts(case):
    """q, k and v are read through their own strides"""
    case.agrees_with(reference.flash_attention)


def test_scale(case):
    """softmax_scale is used where it is given"""
    case.agrees_with(reference.flash_attention)


def test_odd_scales(case):
    """softmax_scale may be negative or zero"""
    case.agrees_with(reference.flash_attention)


def test_head_dims(case):
    """head_dim may be 16, 32, 64 or 128"""
    case.agrees_with(reference.flash_attention)


def test_large_logits(case):
    """scores from -100 to 100, rising or falling, neither overflow nor lose weight"""
    case.agrees_with(reference.flash_attention)


def test_arguments(case):
    """a wrong argument raises ValueError that begins with its name; none is written to"""
    case.is_refused()
