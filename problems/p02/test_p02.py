"""p02, weighted row sum: what `weighted_row_sum` promises.

Cases and weights are in problem.toml.
"""

import reference


def test_one_program(case):
    """rows that a single program sums, in whole tiles"""
    case.agrees_with(reference.weighted_row_sum)


def test_plain(case):
    """whole tiles give the weighted sum of each row, from one tile to many"""
    case.agrees_with(reference.weighted_row_sum)


def test_half(case):
    """fp16 and bf16 inputs are as exact as PyTorch in that dtype"""
    case.agrees_with(reference.weighted_row_sum)


def test_products(case):
    """products are computed in fp32, not in 16 bits"""
    case.agrees_with(reference.weighted_row_sum)


def test_long_rows(case):
    """long rows keep fp32 accuracy until the one rounding at the end"""
    case.agrees_with(reference.weighted_row_sum)


def test_ragged_rows(case):
    """rows need not be a multiple of BLOCK_M"""
    case.agrees_with(reference.weighted_row_sum)


def test_ragged_cols(case):
    """cols need not be a multiple of BLOCK_N"""
    case.agrees_with(reference.weighted_row_sum)


def test_x_strides(case):
    """x may be a strided view, or transposed"""
    case.agrees_with(reference.weighted_row_sum)


def test_far_rows(case):
    """rows may lie so far apart that 32 bits do not hold an offset"""
    case.agrees_with(reference.weighted_row_sum)


def test_w_stride(case):
    """w may be a strided view"""
    case.agrees_with(reference.weighted_row_sum)


def test_arguments(case):
    """a wrong argument raises ValueError that begins with its name; none is written to"""
    case.is_refused()


def test_compiles(case):
    """Triton compiles the kernels for compute capability 8.0 and 9.0"""
    case.compiles()
