"""Python's words mean for the tiles of a kernel what Triton compiles them to."""

from __future__ import annotations

import warnings

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from grader.spec.problem import load_problem
from tests import forked
from tests.harness import judge, model_answer

P02 = load_problem("p02")
CHECKS = {"plain", "ragged_rows", "ragged_cols", "one_program"}
_LOAD = "    x_tile = tl.load("
_WORDS = """\
    missing = not tile_mask
    tile_mask = not missing and tile_mask and (HIDES is None or HIDES.is_block())
    nobody = HIDES is not None and HIDES.shape[0] > BLOCKS
    col_mask = nobody or col_mask and True
    zero = 0.0 if not nobody else 1.0
"""
_LARGER = "x_tile.to(tl.float32)"
_SAME = "max(x_tile.to(tl.float32), min(x_tile.to(tl.float32), zeros, zeros + zero))"

_quick = forked.quick


@pytest.mark.parametrize("policy", [True, False])
def test_words_go_element_by_element_in_tiles(policy):
    source = model_answer("p02")
    head = "tile_mask, col_mask, X_EVICTION: tl.constexpr"
    line = f"        products = {_LARGER}"
    zeros = "        zeros = tl.zeros_like(x_tile).to(tl.float32)\n        zero = max(0.0, -1.0)\n"
    for old, new in (
        (line, zeros + line.replace(_LARGER, _SAME)),
        (_LOAD, _WORDS + _LOAD),
        (f"{head})", f"{head}, HIDES=None)"),
    ):
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    assert judge(source, P02, checks=CHECKS, policy=policy).wrong == {}


@triton.jit
def words(x_ptr, out_ptr, n, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    inside = not (at >= n) and (at >= 0 or at < n)
    x = tl.load(x_ptr + at, mask=inside, other=0.0)
    tl.store(out_ptr + at, max(min(x, 1.0), x * x, 0.5), mask=inside)


def test_triton_compiles_them_for_tiles():
    """Guards what the interpreter is taught."""
    signature = {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "SIZE": "constexpr"}
    source = ASTSource(words, signature, {"SIZE": 64})
    with warnings.catch_warnings(action="ignore"):
        text = triton.compile(source, target=GPUTarget("cuda", 80, 32)).asm["ttir"]
    assert text.count("maxnumf") == 2 and text.count("minnumf") == 1
    assert "arith.andi" in text and "arith.ori" in text
