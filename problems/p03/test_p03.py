"""p03, non-causal attention: what `attention` promises.

Cases, steps and weights are in problem.toml.
"""

import reference


def test_one_tile(case, submission):
    """one tile of keys gives attention and its log-sum-exp"""
    case.compare(submission, reference.noncausal_attention)


def test_online_softmax(case, submission):
    """the result over many key tiles equals the softmax over whole rows"""
    case.compare(submission, reference.noncausal_attention)


def test_large_logits(case, submission):
    """scores up to 100 that rise along the keys neither overflow nor lose weight"""
    case.compare(submission, reference.noncausal_attention)


def test_key_lengths(case, submission):
    """every key counts once, whatever seqlen_k, and keys past the end do not count"""
    case.compare(submission, reference.noncausal_attention)


def test_query_lengths(case, submission):
    """every query row is written, whatever seqlen_q, and nothing past the last"""
    case.compare(submission, reference.noncausal_attention)


def test_batch_heads(case, submission):
    """every batch entry and head has its own result"""
    case.compare(submission, reference.noncausal_attention)


def test_layouts(case, submission):
    """q, k and v may be strided views, and out is dense"""
    case.compare(submission, reference.noncausal_attention)


def test_scale(case, submission):
    """softmax_scale may be any finite number, negative or zero included"""
    case.compare(submission, reference.noncausal_attention)


def test_head_dims(case, submission):
    """head_dim may be 16, 32, 64 or 128"""
    case.compare(submission, reference.noncausal_attention)


def test_precision(case, submission):
    """fp32 inputs give an fp32 result, not one of TF32"""
    case.compare(submission, reference.noncausal_attention)


def test_bounds(case, interpreted):
    """no kernel reads or writes outside a tensor, seen in Triton's interpreter"""
    case.compare(interpreted, reference.noncausal_attention)


def test_arguments(case, submission):
    """an unsupported argument raises ValueError that names it"""
    case.expect_value_error(submission)
