"""Sums that are rounded to 16 bits on their way, and what is rounded and is no such sum."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from grader.kernel.machine.engine import Engine
from grader.kernel.observers.watch import Watch
from grader.spec.problem import load_problem
from tests.harness import judge, model_answer
from tests.on_machine import machine_in_process
from tests.shares import drawn

# 16 x 16 elements of x, of y or of z; what is looked for is in the lines that say so.
# fmt: off


@triton.jit
def sums_in_16_bits(x, y, z, n):
    i = tl.arange(0, 16)
    whole = i[:, None] * 16 + i[None, :]
    acc = tl.zeros((16, 16), tl.float32)
    total = tl.zeros((16,), tl.float16)
    deep = tl.zeros((16, 16), tl.float32)
    for _ in range(n):
        tile = tl.load(x + whole)
        acc = tl.dot(tile, tile, acc)
        acc = acc.to(tl.float16).to(tl.float32)  # here
        total = total * 0.5 + tl.sum(tile.to(tl.float32), 1).to(tl.float16)  # here
        for _ in range(2):
            deep += tile
        deep = deep.to(tl.bfloat16).to(tl.float32)  # here
    rows = tl.sum(tl.load(x + whole), 1)  # here
    waited = tl.zeros((16, 16), tl.float32)
    while n > 0:
        waited = (waited + tl.load(x + whole)).to(tl.float16).to(tl.float32)  # here
        n -= 1
    for _ in tl.static_range(2):
        waited = (waited + tl.load(x + whole)).to(tl.bfloat16).to(tl.float32)  # here
    tl.store(y + whole, waited.to(tl.float16))
    tl.store(y + whole, tl.load(y + whole) + acc.to(tl.float16))  # here
    tl.atomic_add(z + i, total + rows + tl.sum(deep, 1).to(tl.float16))  # here


@triton.jit
def sums_in_32_bits(x, y, z, n):
    i = tl.arange(0, 16)
    whole = i[:, None] * 16 + i[None, :]
    acc = tl.zeros((16, 16), tl.float32)
    largest = tl.zeros((16,), tl.float16)
    count = tl.zeros((16,), tl.float32)
    for _ in range(n):
        tile = tl.load(x + whole)
        weights = (tile.to(tl.float32) * 0.5).to(tl.float16)
        largest = tl.maximum(largest, tl.max(tile, 1)).to(tl.float16)
        acc = tl.dot(weights, tile, acc * tl.exp(largest.to(tl.float32))[:, None])
        count += tl.sum(weights.to(tl.float32), 1)
        tile = tile.to(tl.float32).to(tl.float16)
    scores = tl.dot(tl.load(x + whole), tl.load(x + whole), out_dtype=tl.float16)
    acc += scores - largest[:, None] + 1.0
    tl.store(y + whole, (acc / count[:, None]).to(tl.float16))
    tl.store(z + i, largest)


# fmt: on


def test_sums_are_seen_wherever_they_are_rounded():
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    marked = [number for number, line in enumerate(lines, 1) if line.endswith("  # here")]
    found = {place.line_in(__file__) for place in _places(sums_in_16_bits)}
    assert found == set(marked) and len(marked) == 8
    assert _places(sums_in_32_bits) == ()


def _places(kernel):
    """Where a kernel rounds what it sums."""
    places = []
    engine = Engine(__file__)
    tensors = [torch.ones(16, 16, dtype=torch.float16) for _ in range(3)]
    with machine_in_process(engine, globals()), engine.watched(places.append):
        kernel[(1,)](*tensors, 3)
    return places[0].rounded_sums


@triton.jit
def reads(x, y):
    i = tl.arange(0, 64)
    tl.store(y + i, tl.load(x + i).to(tl.float32))


ROUNDED = torch.linspace(0.1, 9.0, 64).half()


@pytest.mark.parametrize(
    ("given", "queries", "says"),
    [
        (ROUNDED, 64, "the number of each query in x has 16 bits"),
        (ROUNDED.float(), 64, "the number of each query in x has 16 bits"),
        (ROUNDED.bfloat16().float(), 64, "the number of each query in x has 16 bits"),
        (torch.linspace(0.1, 9.0, 64), 64, None),
        (torch.ones(64), 64, None),
        (ROUNDED, 0, None),
        (ROUNDED, 16, None),
    ],
)
def test_a_number_of_each_query_has_32_bits(given, queries, says):
    watch, engine = Watch(__file__, queries), Engine(__file__)
    with machine_in_process(engine, globals()), engine.watched(watch):
        reads[(1,)](given, torch.empty(64))
    assert (watch.sum and watch.sum[1]) == says


@pytest.mark.parametrize(
    ("problem_id", "old", "new", "headline"),
    drawn([
        (
            "p08", "dk *= softmax_scale",
            "    dk = dk.to(k.dtype).to(tl.float32)\n    dk *= softmax_scale",
            "dk is rounded to 16 bits in each step",
        ),
        (
            "p08", "dtype=torch.float32, device=out.device", "dtype=out.dtype, device=out.device",
            "the number of each query in delta_ptr has 16 bits",
        ),
    ], 2),
)  # fmt: skip
def test_the_check_of_precision_fails_and_no_other(problem_id, old, new, headline):
    source = model_answer(problem_id)
    assert source.count(old) == 1
    checks = {"plain", "half", "ieee"}
    judged = judge(source.replace(old, new), load_problem(problem_id), checks=checks)
    assert {check for check, _ in judged.wrong} == {"ieee"}
    assert {finding.message.headline for finding in judged.wrong.values()} == {headline}
