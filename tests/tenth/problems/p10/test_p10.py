"""p10, root mean square of a row: what `row_rms` promises.

Cases and weights are in problem.toml.
"""

import reference


def test_plain(case):
    """whole tiles give the root mean square of each row"""
    case.agrees_with(reference.row_rms)


def test_half(case):
    """fp16 and bf16 inputs are as exact as PyTorch in that dtype"""
    case.agrees_with(reference.row_rms)


def test_ragged_rows(case):
    """rows need not be a multiple of BLOCK_M"""
    case.agrees_with(reference.row_rms)


def test_ragged_cols(case):
    """cols need not be a multiple of BLOCK_N"""
    case.agrees_with(reference.row_rms)


def test_strides(case):
    """x may be a strided view, or transposed"""
    case.agrees_with(reference.row_rms)


def test_arguments(case):
    """a wrong argument raises ValueError that begins with its name; none is written to"""
    case.is_refused()


def test_compiles(case):
    """Triton compiles the kernels for compute capability 8.0 and 9.0"""
    case.compiles()
