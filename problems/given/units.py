"""Factors between natural logarithms and those to base 2, for kernels and outside of them."""

import math

import triton.language as tl

LOG2_E = tl.constexpr(math.log2(math.e))  # log2(x) = log(x) * LOG2_E, exp(x) = exp2(x * LOG2_E)
LN_2 = tl.constexpr(math.log(2.0))  # log(x) = log2(x) * LN_2
