"""p04, causal attention: what `attention` promises.

Cases, steps and weights are in problem.toml.
"""

import reference


def test_diagonal(case, submission):
    """each query sees its own key and none after it"""
    case.compare(submission, reference.causal_attention)


def test_full_tiles(case, submission):
    """the key tiles below the diagonal count once, all of them"""
    case.compare(submission, reference.causal_attention)


def test_lengths(case, submission):
    """any seqlen works, beside multiples of a tile as well as on them"""
    case.compare(submission, reference.causal_attention)


def test_batch_heads(case, submission):
    """every batch entry, head and query tile has its own result"""
    case.compare(submission, reference.causal_attention)


def test_large_logits(case, submission):
    """scores up to 100 that rise along the keys neither overflow nor lose weight"""
    case.compare(submission, reference.causal_attention)


def test_layouts(case, submission):
    """q, k and v may be strided views, and out is dense"""
    case.compare(submission, reference.causal_attention)


def test_scale(case, submission):
    """softmax_scale may be any finite number, negative or zero included"""
    case.compare(submission, reference.causal_attention)


def test_head_dims(case, submission):
    """head_dim may be 16, 32, 64 or 128"""
    case.compare(submission, reference.causal_attention)


def test_precision(case, submission):
    """fp32 inputs give an fp32 result, not one of TF32"""
    case.compare(submission, reference.causal_attention)


def test_bounds(case, interpreted):
    """no kernel reads or writes outside a tensor, seen in Triton's interpreter"""
    case.compare(interpreted, reference.causal_attention)


def test_arguments(case, submission):
    """an unsupported argument raises ValueError that names it"""
    case.expect_value_error(submission)
