"""p09, window and sinks, backward: what `sink_window_attention` and its gradients promise.

Cases and weights are in problem.toml.
"""

import reference


def test_forward(case):
    """the forward pass gives out"""
    case.agrees_with(reference.sink_window_attention)


def test_forward_sink_logits(case):
    """a sink logit is one more term in the denominator of its head"""
    case.agrees_with(reference.sink_window_attention)


def test_dq(case):
    """dq of whole tiles of one head comes out right"""
    case.agrees_with(reference.sink_window_attention)


def test_plain(case):
    """dq, dk and dv of whole tiles of one head come out right"""
    case.agrees_with(reference.sink_window_attention)


def test_half(case):
    """fp16 and bf16 inputs are as exact as PyTorch in that dtype"""
    case.agrees_with(reference.sink_window_attention)


def test_ieee(case):
    """dots of fp32 have IEEE precision, and sums of 16-bit inputs are fp32"""
    case.agrees_with(reference.sink_window_attention)


def test_ragged(case):
    """any sequence length, from 1 on"""
    case.agrees_with(reference.sink_window_attention)


def test_groups(case):
    """dk and dv are summed over the query heads of their group"""
    case.agrees_with(reference.sink_window_attention)


def test_batch_heads(case):
    """every batch entry and head has gradients of its own"""
    case.agrees_with(reference.sink_window_attention)


def test_window(case):
    """gradients flow from a query to the keys of its window and to no key beyond"""
    case.agrees_with(reference.sink_window_attention)


def test_window_lengths(case):
    """windows and sinks of one key, of the whole sequence and just beyond it"""
    case.agrees_with(reference.sink_window_attention)


def test_sinks(case):
    """sinks get gradients from the queries whose windows they have left, and give them to each"""
    case.agrees_with(reference.sink_window_attention)


def test_overlap(case):
    """a sink inside a window counts once in every gradient"""
    case.agrees_with(reference.sink_window_attention)


def test_chunks(case):
    """sinks seen by more queries than one chunk holds, and more sinks than one tile holds"""
    case.agrees_with(reference.sink_window_attention)


def test_sink_logits(case):
    """sink logits reach dq, dk and dv through lse"""
    case.agrees_with(reference.sink_window_attention)


def test_dsink_logits(case):
    """dsink_logits is summed over batch and queries, one number per query head"""
    case.agrees_with(reference.sink_window_attention)


def test_half_dsink(case):
    """the gradient of the sink logits of 16-bit inputs is a sum in fp32"""
    case.agrees_with(reference.sink_window_attention)


def test_sink_logits_absent(case):
    """a sink logit of minus infinity is no term: gradient 0, no NaN"""
    case.agrees_with(reference.sink_window_attention)


def test_together(case):
    """groups, window, sinks and sink logits in 16 bits and at any length"""
    case.agrees_with(reference.sink_window_attention)


def test_layouts(case):
    """q, k and v are read through their own strides"""
    case.agrees_with(reference.sink_window_attention)


def test_dout_layouts(case):
    """the upstream gradient is read through its own strides, stride 0 included"""
    case.agrees_with(reference.sink_window_attention)


def test_scale(case):
    """softmax_scale reaches dq and dk once each and dv not at all"""
    case.agrees_with(reference.sink_window_attention)


def test_odd_scales(case):
    """softmax_scale may be negative or zero"""
    case.agrees_with(reference.sink_window_attention)


def test_head_dims(case):
    """head_dim may be 16, 32, 64 or 128"""
    case.agrees_with(reference.sink_window_attention)


def test_large_logits(case):
    """large scores give neither NaN nor lost weight in the gradients"""
    case.agrees_with(reference.sink_window_attention)


def test_arguments(case):
    """a wrong argument raises ValueError that begins with its name; none is written to"""
    case.is_refused()


def test_extreme_options(case):
    """options up to the largest int are clamped to the sequence"""
    case.agrees_with(reference.sink_window_attention)


def test_compiles(case):
    """Triton compiles the kernels for compute capability 8.0 and 9.0"""
    case.compiles()
