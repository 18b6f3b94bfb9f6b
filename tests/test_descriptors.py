"""A tile is added to memory through a tensor descriptor in the interpreter as on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import triton._C.libtriton as libtriton

from grader.spec.problem import ROOT, load_problem
from tests.forked import forked_workers
from tests.harness import judge, model_answer

# Reduces tiles of 4 by 8 into a tensor of 6 by 8, of each type by each operation that is there.
REDUCES = """\
import json, sys
import torch, triton
import triton.language as tl

sys.path.insert(0, sys.argv[1])
from grader.kernel.interpreter import interpreting

interpreting.install()

@triton.jit
def kernel(to, x, KIND: tl.constexpr):
    at = (tl.program_id(0) * 4 + tl.arange(0, 4))[:, None] * 8 + tl.arange(0, 8)
    desc = tl.make_tensor_descriptor(to, [6, 8], [8, 1], [4, 8])
    getattr(desc, KIND)([tl.program_id(0) * 4, 0], tl.load(x + at))

results = {}
for dtype in (torch.float32, torch.float16, torch.int32, torch.int64, torch.uint32):
    for name in ("add", "min", "max", "and", "or", "xor"):
        to = (torch.arange(48).reshape(6, 8) % 7 - 3 * dtype.is_signed).to(dtype)
        x = (torch.arange(64).reshape(8, 8) % 5 - 2 * dtype.is_signed).to(dtype)
        try:
            kernel[(2,)](to, x, "atomic_" + name)
        except Exception as error:
            to = repr(error)
        results[f"{name} {str(dtype)[6:]}"] = to if isinstance(to, str) else to.tolist()
print(json.dumps(results))
"""
BY_NUMBERS = {
    "add": lambda a, b: a + b,
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
pytestmark = pytest.mark.skipif(
    not hasattr(libtriton.ir, "DESCRIPTOR_REDUCE_KIND"), reason="this Triton has none of it"
)


@pytest.fixture(scope="module")
def reduced():
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", REDUCES, str(ROOT)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", BY_NUMBERS)
def test_what_lies_in_the_tensor_is_reduced(reduced, name):
    seen = 0
    for place, found in reduced.items():
        kind, dtype = place.split()
        if kind != name or isinstance(found, str):
            continue
        signed = not dtype.startswith("u")
        before = [i % 7 - 3 * signed for i in range(48)]
        due = [BY_NUMBERS[name](a, i % 5 - 2 * signed) for i, a in enumerate(before)]
        assert [number for row in found for number in row] == due, place
        seen += 1
    assert seen >= 2


def test_what_triton_does_not_reduce_is_refused(reduced):
    for place in ("min float32", "max float32", "and float32", "xor float16", "add int64"):
        assert "Unsupported dtype" in reduced[place]


_ADDS = """
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


def test_the_judge_sees_what_is_added():
    problem = load_problem("p02")
    with forked_workers():
        right = judge(model_answer("p02") + _ADDS, problem, checks={"one_program", "ragged_rows"})
        source = model_answer("p02") + _ADDS.replace("[rows], [1]", "[rows + 4], [1]")
        wrong = judge(source, problem, checks={"ragged_rows"})
    assert right.wrong == {}
    assert "outside a tensor" in next(iter(wrong.wrong.values())).message.headline
