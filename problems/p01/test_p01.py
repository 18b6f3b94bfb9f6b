"""p01, FlashAttention in plain PyTorch: what `flash_attention` promises.

Cases, steps and weights are in problem.toml.
"""

import reference


def test_one_tile(case, submission):
    """one tile of scores gives attention and its log-sum-exp"""
    case.compare(submission, reference.flash_attention)


def test_online_softmax(case, submission):
    """the result over many key tiles equals the softmax over whole rows"""
    case.compare(submission, reference.flash_attention)


def test_tile_sizes(case, submission):
    """any tile_q and tile_k give the same result"""
    case.compare(submission, reference.flash_attention)


def test_rectangular(case, submission):
    """seqlen_q and seqlen_k may differ"""
    case.compare(submission, reference.flash_attention)


def test_large_logits(case, submission):
    """scores up to 100 that rise along the keys neither overflow nor lose weight"""
    case.compare(submission, reference.flash_attention)


def test_batch_heads(case, submission):
    """every batch entry and head has its own result"""
    case.compare(submission, reference.flash_attention)


def test_head_dims(case, submission):
    """head_dim may be 16, 32, 64 or 128"""
    case.compare(submission, reference.flash_attention)


def test_layouts(case, submission):
    """q, k and v may be strided views"""
    case.compare(submission, reference.flash_attention)


def test_scale(case, submission):
    """softmax_scale may be any finite number, negative or zero included"""
    case.compare(submission, reference.flash_attention)


def test_diagonal(case, submission):
    """with is_causal each query sees its own key and none after it"""
    case.compare(submission, reference.flash_attention)


def test_causal_tiles(case, submission):
    """with is_causal no visible tile is skipped, whatever the tile sizes"""
    case.compare(submission, reference.flash_attention)


def test_causal_inputs(case, submission):
    """is_causal holds with batches, strided views, other scales and large scores"""
    case.compare(submission, reference.flash_attention)


def test_arguments(case, submission):
    """an unsupported argument raises ValueError that names it"""
    case.expect_value_error(submission)
