"""p08, backward of causal grouped-query attention: what `gqa_attention` and its gradients promise.
Cases, steps and weights are in problem.toml."""

import reference


def test_formula(case, submission):
    """out, dq, dk and dv of one tile follow the formula"""
    case.compare_gradients(submission, reference.gqa_attention_training)


def test_peaked(case, submission):
    """where few keys hold all the weight, dP and delta nearly cancel in dq and dk"""
    case.compare_gradients(submission, reference.gqa_attention_training)


def test_diagonal(case, submission):
    """no gradient flows from a query to a key after it"""
    case.compare_gradients(submission, reference.gqa_attention_training)


def test_groups(case, submission):
    """dk and dv are summed over the query heads of their group"""
    case.compare_gradients(submission, reference.gqa_attention_training)


def test_batch_heads(case, submission):
    """every batch and head has gradients of its own"""
    case.compare_gradients(submission, reference.gqa_attention_training)


def test_lengths(case, submission):
    """any sequence length, one tile or many, whole or ragged"""
    case.compare_gradients(submission, reference.gqa_attention_training)


def test_scale(case, submission):
    """softmax_scale reaches dq and dk once each and dv not at all"""
    case.compare_gradients(submission, reference.gqa_attention_training)


def test_layouts(case, submission):
    """q, k and v are read through their own strides"""
    case.compare_gradients(submission, reference.gqa_attention_training)


def test_dout_layouts(case, submission):
    """the upstream gradient is read through its own strides, stride 0 included"""
    case.compare_gradients(submission, reference.gqa_attention_training)


def test_precision(case, submission):
    """every head_dim and dtype is as exact as PyTorch in that dtype"""
    case.compare_gradients(submission, reference.gqa_attention_training)


def test_bounds(case, interpreted):
    """no kernel reads or writes outside a tensor, seen in Triton's interpreter"""
    case.compare_gradients(interpreted, reference.gqa_attention_training)


def test_arguments(case, submission):
    """an unsupported argument raises ValueError that names it"""
    case.expect_value_error(submission)
