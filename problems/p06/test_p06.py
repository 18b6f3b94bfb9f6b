"""p06, sliding-window attention: what `attention` promises. Cases, steps and weights are in
problem.toml."""

import reference


def test_window_edge(case, submission):
    """each query sees exactly the last window_size keys, itself included"""
    case.compare(submission, reference.sliding_window_attention)


def test_overlap(case, submission):
    """no key counts twice, whatever the window and the tiles"""
    case.compare(submission, reference.sliding_window_attention)


def test_window_lengths(case, submission):
    """a window of one key, of the whole sequence and far beyond it"""
    case.compare(submission, reference.sliding_window_attention)


def test_lengths(case, submission):
    """any sequence length, one tile or many, whole or ragged"""
    case.compare(submission, reference.sliding_window_attention)


def test_groups(case, submission):
    """query heads of one group read the key and value head of that group"""
    case.compare(submission, reference.sliding_window_attention)


def test_layouts(case, submission):
    """q, k and v are read through their own strides"""
    case.compare(submission, reference.sliding_window_attention)


def test_large_logits(case, submission):
    """large logits and tiles in which a row sees nothing give no NaN"""
    case.compare(submission, reference.sliding_window_attention)


def test_scale(case, submission):
    """softmax_scale may be any finite number"""
    case.compare(submission, reference.sliding_window_attention)


def test_head_dims(case, submission):
    """head_dim 16, 32, 64 and 128 in every dtype"""
    case.compare(submission, reference.sliding_window_attention)


def test_bounds(case, interpreted):
    """no kernel reads or writes outside a tensor, seen in Triton's interpreter"""
    case.compare(interpreted, reference.sliding_window_attention)


def test_arguments(case, submission):
    """an unsupported argument raises ValueError that names it"""
    case.expect_value_error(submission)
