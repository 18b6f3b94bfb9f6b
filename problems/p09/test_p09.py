"""p09, window and sinks, backward: what `sink_window_attention` and its gradients promise. Cases,
steps and weights are in problem.toml."""

import reference


def test_sink_gradients(case, submission):
    """sinks get gradients from every later query, however far, and give them to each"""
    case.compare_gradients(submission, reference.sink_window_attention)


def test_overlap(case, submission):
    """a sink inside a window counts once in every gradient"""
    case.compare_gradients(submission, reference.sink_window_attention)


def test_chunks(case, submission):
    """sinks seen by more queries than one chunk holds, and more sinks than one tile holds"""
    case.compare_gradients(submission, reference.sink_window_attention)


def test_window_edge(case, submission):
    """gradients flow from a query to the keys of its window and to no key beyond"""
    case.compare_gradients(submission, reference.sink_window_attention)


def test_window_lengths(case, submission):
    """windows and sinks of one key, of the whole sequence and far beyond it"""
    case.compare_gradients(submission, reference.sink_window_attention)


def test_lengths(case, submission):
    """any sequence length, one tile or many, whole or ragged"""
    case.compare_gradients(submission, reference.sink_window_attention)


def test_groups(case, submission):
    """dk and dv are summed over the query heads of their group, batch by batch"""
    case.compare_gradients(submission, reference.sink_window_attention)


def test_scale(case, submission):
    """dq and dk carry softmax_scale, whatever finite number it is"""
    case.compare_gradients(submission, reference.sink_window_attention)


def test_layouts(case, submission):
    """q, k, v and dout are read through their own strides"""
    case.compare_gradients(submission, reference.sink_window_attention)


def test_precision(case, submission):
    """peaked and large logits, and every head_dim, within the error of the dtype"""
    case.compare_gradients(submission, reference.sink_window_attention)


def test_bounds(case, interpreted):
    """no kernel reads or writes outside a tensor, seen in Triton's interpreter"""
    case.compare_gradients(interpreted, reference.sink_window_attention)


def test_arguments(case, submission):
    """an unsupported argument raises ValueError that names it"""
    case.expect_value_error(submission)


def test_sink_logits(case, submission):
    """a sink logit is one more term in the denominator of its head, with its gradient"""
    case.compare_gradients(submission, reference.sink_window_attention)


def test_sink_logits_batch(case, submission):
    """dsink_logits is summed over batch and queries, one number a query head"""
    case.compare_gradients(submission, reference.sink_window_attention)


def test_sink_logits_absent(case, submission):
    """a sink logit of minus infinity is no term: gradient 0, no NaN"""
    case.compare_gradients(submission, reference.sink_window_attention)
