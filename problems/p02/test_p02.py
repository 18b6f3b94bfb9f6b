"""p02, weighted row sum: what `weighted_row_sum` promises.

Cases, steps and weights are in problem.toml.
"""

import reference


def test_one_block(case, submission):
    """a matrix of one full tile gives the weighted sum of each row"""
    case.compare(submission, reference.weighted_row_sum)


def test_ragged_rows(case, submission):
    """rows need not be a multiple of BLOCK_M"""
    case.compare(submission, reference.weighted_row_sum)


def test_ragged_cols(case, submission):
    """cols need not be a multiple of BLOCK_N"""
    case.compare(submission, reference.weighted_row_sum)


def test_many_tiles(case, submission):
    """many blocks of rows and of columns add up to the same sums"""
    case.compare(submission, reference.weighted_row_sum)


def test_layouts(case, submission):
    """x and w may be strided views, and x transposed"""
    case.compare(submission, reference.weighted_row_sum)


def test_accumulation(case, submission):
    """long rows keep fp32 accuracy until the one rounding at the end"""
    case.compare(submission, reference.weighted_row_sum)


def test_bounds(case, interpreted):
    """no kernel reads or writes outside a tensor, seen in Triton's interpreter"""
    case.compare(interpreted, reference.weighted_row_sum)


def test_arguments(case, submission):
    """an unsupported argument raises ValueError that names it"""
    case.expect_value_error(submission)
