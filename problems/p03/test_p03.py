"""p03, non-causal attention: what `attention` promises.

Cases and weights are in problem.toml.
"""

import reference


def test_row_logsumexp(case):
    """row_logsumexp computes each row in one pass, block by block"""
    case.agrees_with(reference.row_logsumexp)


def test_launch(case):
    """out and lse are allocated with their shapes and dtypes, and a kernel is launched"""
    case.holds()


def test_stores(case):
    """each row of out and lse is stored by one program, whatever is stored there"""
    case.holds()


def test_plain(case):
    """whole tiles of one head come out right, from one tile to many"""
    case.agrees_with(reference.noncausal_attention)


def test_lse(case):
    """lse is the natural log-sum-exp of the scaled, visible scores"""
    case.agrees_with(reference.noncausal_attention)


def test_half_lse(case):
    """lse is fp32 whatever the dtype of the inputs"""
    case.agrees_with(reference.noncausal_attention)


def test_half(case):
    """fp16 and bf16 inputs are as exact as PyTorch in that dtype"""
    case.agrees_with(reference.noncausal_attention)


def test_ieee(case):
    """dots of fp32 have IEEE precision, and sums of 16-bit inputs are fp32"""
    case.agrees_with(reference.noncausal_attention)


def test_ragged(case):
    """any sequence length, from 1 on"""
    case.agrees_with(reference.noncausal_attention)


def test_unequal(case):
    """seqlen_q and seqlen_k may differ"""
    case.agrees_with(reference.noncausal_attention)


def test_ragged_unequal(case):
    """any two different lengths, a single query or key included"""
    case.agrees_with(reference.noncausal_attention)


def test_batch_heads(case):
    """every batch entry and head has its own result"""
    case.agrees_with(reference.noncausal_attention)


def test_lse_heads(case):
    """every batch entry and head has its own lse"""
    case.agrees_with(reference.noncausal_attention)


def test_lse_lengths(case):
    """every head has its own lse where lengths are unequal or ragged"""
    case.agrees_with(reference.noncausal_attention)


def test_layouts(case):
    """q, k and v are read through their own strides"""
    case.agrees_with(reference.noncausal_attention)


def test_scale(case):
    """softmax_scale is used where it is given"""
    case.agrees_with(reference.noncausal_attention)


def test_odd_scales(case):
    """softmax_scale may be negative or zero"""
    case.agrees_with(reference.noncausal_attention)


def test_head_dims(case):
    """head_dim may be 16, 32, 64 or 128"""
    case.agrees_with(reference.noncausal_attention)


def test_half_head_dims(case):
    """every head_dim in 16-bit types"""
    case.agrees_with(reference.noncausal_attention)


def test_large_logits(case):
    """scores from -100 to 100, rising or falling, neither overflow nor lose weight"""
    case.agrees_with(reference.noncausal_attention)


def test_arguments(case):
    """a wrong argument raises ValueError that begins with its name; none is written to"""
    case.is_refused()


def test_compiles(case):
    """Triton compiles the kernels for compute capability 8.0 and 9.0"""
    case.compiles()
