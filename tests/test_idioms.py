"""Right kernels of p02 that are written in unusual ways pass under the source policy.

Triton compiles all of them for a GPU.
"""

import ast
import re

import pytest

from grader.source.policy.rules import violations
from grader.spec.problem import load_problem
from tests import forked
from tests.harness import edited, judge, model_answer, whole_answer
from tests.shares import drawn

P02 = load_problem("p02")

_quick = forked.quick


def language_as(imports: str, name: str) -> str:
    """The answer with `triton.language` under another name."""
    source = re.sub(r"\btl\.", f"{name}.", whole_answer("p02"))
    _, _, body = source.replace("import triton.language as tl", "").partition("import torch")
    return f"{imports}\nimport torch{body}"


def words() -> str:
    """The answer with and, or, not, max and min of tiles and numbers."""
    larger = "x_tile.to(tl.float32)"
    same = "max(x_tile.to(tl.float32), min(x_tile.to(tl.float32), zeros, zeros + zero))"
    line = f"        products = {larger}"
    zeros = "        zeros = tl.zeros_like(x_tile).to(tl.float32)\n        zero = max(0.0, -1.0)\n"
    head = "tile_mask, col_mask, X_EVICTION: tl.constexpr"
    before = """\
    missing = not tile_mask
    tile_mask = not missing and tile_mask and (HIDES is None or HIDES.is_block())
    nobody = HIDES is not None and HIDES.shape[0] > BLOCKS
    col_mask = nobody or col_mask and True
    zero = 0.0 if not nobody else 1.0
"""
    return edited(
        model_answer("p02"),
        (line, zeros + line.replace(larger, same)),
        ("    x_tile = tl.load(", before + "    x_tile = tl.load("),
        (f"{head})", f"{head}, HIDES=None)"),
    )


_IMPORTED = """\
from triton.language import sum as row_sum, cdiv
from triton.language.extra.libdevice import exp2
import torch
"""
_SUM = "tl.sum(acc, axis=1)"
_ONES = "exp2(tl.zeros((BLOCK_M,), tl.float32)) * cdiv(1, 2)"
_FUNCTIONS = '''
@triton.constexpr_function
def twice(n):
    return 2 * n if torch.float16.itemsize == 2 else 0


ONE: tl.constexpr = tl.constexpr(1.0)


def _made(number: tl.constexpr):
    @triton.jit
    def scaled(x, DTYPE: tl.constexpr = tl.float32):
        """Multiplies.

        def scaled(x): is what it is not.
        """
        return x.to(DTYPE) * number * ONE

    return scaled


_scaled = _made(tl.constexpr(8))


@triton.jit
def _sum(a, b):
    return a + b * ONE

'''
# A loop's variable, what is made of it, and what a function is given of both, are scalars.
_CASTS = """
@triton.jit
def _row(x_ptr, start, stride, rows):
    at = start.to(tl.int64) * stride.to(start.dtype) + tl.arange(0, 128)
    return tl.load(x_ptr + at, mask=start < rows, other=0.0)


@triton.jit
def _sums(x_ptr, w_ptr, y_ptr, rows, cols, stride):
    for row in range(rows):
        total = tl.zeros((128,), tl.float32)
        for block in tl.range(0, tl.cdiv(cols, 128)):
            w = tl.load(w_ptr + block * 128 + tl.arange(0, 128)).to(tl.float32)
            total += w * _row(x_ptr + (block * 128).to(tl.int64), row, stride, rows).to(tl.float32)
        tl.store(y_ptr + (row + 0).cast(tl.int64), tl.sum(total, 0))


def weighted_row_sum(x, w):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    _sums[(1,)](x, w, y, *x.shape, x.stride(0))
    return y
"""
_NAMES = "range load store program_id arange zeros multiple_of float32 constexpr"
_NAMED = f"""
import torch
import triton
import triton.language as T
from triton.language import math as of_tiles, {_NAMES.replace(" ", ", ")}
from triton.language.math import exp as natural


@triton.jit
def _ones(x, EXP: constexpr = T.math.exp2):
    return EXP(x) * T.exp2(x) * natural(x) * of_tiles.cos(x)


@triton.jit
def _sums(x_ptr, w_ptr, y_ptr, rows, cols, stride, LOG: constexpr, BLOCK: constexpr):
    for row in range(program_id(0), rows, num_stages=1):
        total = zeros([BLOCK], float32)
        for start in range(0, cols, BLOCK):
            at = multiple_of(start, BLOCK) + arange(0, BLOCK)
            w = load(w_ptr + at, mask=at < cols, other=0.0)
            total += w * load(x_ptr + row * stride + at, mask=at < cols, other=0.0)
        store(y_ptr + row, T.sum(total, 0) * T.sum(_ones(LOG(zeros([1], float32) + 1)), 0))


def weighted_row_sum(x, w):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    _sums[(1,)](x, w, y, *x.shape, x.stride(0), LOG=T.log, BLOCK=128)
    return y
"""
ADDS = """
@triton.jit
def _adds(x_ptr, w_ptr, y_ptr, rows, cols, stride, BLOCK: tl.constexpr):
    row, at = tl.program_id(0) * 4, tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    lanes = row + tl.arange(0, 4)
    inside = (lanes < rows)[:, None] & (at < cols)[None, :]
    x = tl.load(x_ptr + lanes[:, None] * stride + at, mask=inside, other=0.0)
    w = tl.load(w_ptr + at, mask=at < cols, other=0.0)
    y = tl.make_tensor_descriptor(y_ptr, [rows], [1], [4])
    y.atomic_add([row], tl.sum(x * w, 1))


def weighted_row_sum(x, w):
    y = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(x.shape[0], 4), triton.cdiv(x.shape[1], 64))
    _adds[grid](x, w, y, *x.shape, x.stride(0), BLOCK=64)
    return y
"""
IDIOMS = {
    "words of Python in tiles": words(),
    "another name of the language": language_as("import triton.language as T", "T"),
    "the language by itself": language_as("from triton import language", "language"),
    "the language in triton": language_as("import triton.language", "triton.language"),
    "a future import": language_as(
        "from __future__ import annotations\nimport triton.language as tl", "tl"
    ),
    "functions by their names": edited(
        model_answer("p02"),
        ("import torch\n", _IMPORTED),
        (_SUM, f"row_sum(acc, axis=1) * {_ONES}"),
    ),
    "functions of one's own": edited(
        model_answer("p02"),
        ("\n\n@triton.jit\ndef _load", f"\n{_FUNCTIONS}\n@triton.jit\ndef _load"),
        (_SUM, "tl.reduce(_scaled(acc), 1, _sum) / twice(twice(2))"),
    ),
    "methods of scalars": model_answer("p02") + _CASTS,
    "all by other names": _NAMED,
    "sums through a descriptor": model_answer("p02") + ADDS,
}


# Without the policy less is looked at: one of them shows that nothing else changes.
@pytest.mark.parametrize(
    ("name", "policy"),
    drawn([*((name, True) for name in IDIOMS), ("functions of one's own", False)], 3),
)
def test_an_unusual_way_to_write_is_right(name: str, policy: bool) -> None:
    source = IDIOMS[name]
    assert not violations(P02, ast.parse(source))
    judged = judge(source, P02, checks={"one_program", "ragged_rows"}, policy=policy)
    assert {place: finding.message for place, finding in judged.wrong.items()} == {}
    assert judged.findings.cases


def test_what_is_added_outside_a_tensor_through_a_descriptor_is_seen() -> None:
    source = model_answer("p02") + ADDS.replace("[rows], [1]", "[rows + 4], [1]")
    found = judge(source, P02, checks={"ragged_rows"})
    assert "outside a tensor" in next(iter(found.wrong.values())).message.headline
