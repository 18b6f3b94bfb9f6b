"""p08, backward of causal grouped-query attention: what `gqa_attention` and its gradients promise.

Cases and weights are in problem.toml.
"""

import reference


def test_attention_gradients(case):
    """attention_gradients takes one tile of keys after the other, from lse"""
    case.agrees_with(reference.gqa_gradients)


def test_forward(case):
    """the forward pass gives out"""
    case.agrees_with(reference.gqa_attention_training)


def test_dq(case):
    """dq of whole tiles of one head comes out right"""
    case.agrees_with(reference.gqa_attention_training)


def test_dv(case):
    """dv of whole tiles of one head comes out right"""
    case.agrees_with(reference.gqa_attention_training)


def test_plain(case):
    """dq, dk and dv of whole tiles of one head come out right"""
    case.agrees_with(reference.gqa_attention_training)


def test_half(case):
    """fp16 and bf16 inputs are as exact as PyTorch in that dtype"""
    case.agrees_with(reference.gqa_attention_training)


def test_ieee(case):
    """dots of fp32 have IEEE precision, and sums of 16-bit inputs are fp32"""
    case.agrees_with(reference.gqa_attention_training)


def test_ragged(case):
    """any sequence length, from 1 on"""
    case.agrees_with(reference.gqa_attention_training)


def test_groups(case):
    """dk and dv are summed over the query heads of their group"""
    case.agrees_with(reference.gqa_attention_training)


def test_half_groups(case):
    """dk and dv of 16-bit inputs are sums over the group in fp32"""
    case.agrees_with(reference.gqa_attention_training)


def test_batch_heads(case):
    """every batch entry and head has gradients of its own"""
    case.agrees_with(reference.gqa_attention_training)


def test_layouts(case):
    """q, k and v are read through their own strides"""
    case.agrees_with(reference.gqa_attention_training)


def test_far_strides(case):
    """batch entries may lie so far apart that 32 bits do not hold an offset"""
    case.agrees_with(reference.gqa_attention_training)


def test_dout_layouts(case):
    """the upstream gradient is read through its own strides, stride 0 included"""
    case.agrees_with(reference.gqa_attention_training)


def test_scale(case):
    """softmax_scale reaches dq and dk once each and dv not at all"""
    case.agrees_with(reference.gqa_attention_training)


def test_odd_scales(case):
    """softmax_scale may be negative or zero"""
    case.agrees_with(reference.gqa_attention_training)


def test_head_dims(case):
    """head_dim may be 16, 32, 64 or 128"""
    case.agrees_with(reference.gqa_attention_training)


def test_large_logits(case):
    """large scores give neither NaN nor lost weight in the gradients"""
    case.agrees_with(reference.gqa_attention_training)


def test_arguments(case):
    """a wrong argument raises ValueError that begins with its name; none is written to"""
    case.is_refused()


def test_compiles(case):
    """Triton compiles the kernels for compute capability 8.0 and 9.0"""
    case.compiles()
