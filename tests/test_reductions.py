"""Reductions and scans with a function of one's own: what Triton's loops give, in fewer calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from grader.spec.problem import ROOT

# Runs each kernel, in whole tiles or not, and says what came out and how often it was called back.
KERNELS = """\
import json, sys
import torch, triton
import triton.language as tl
from triton.runtime import interpreter

sys.path.insert(0, sys.argv[1])
from grader.kernel.interpreter import reductions

if sys.argv[2] == "whole":
    reductions.install(interpreter)
calls = []

@triton.jit
def later(a, b):
    calls.append(1)
    return b

@triton.jit
def normaliser(max_a, sum_a, max_b, sum_b):
    calls.append(1)
    largest = tl.maximum(max_a, max_b)
    return largest, sum_a * tl.exp(max_a - largest) + sum_b * tl.exp(max_b - largest)

@triton.jit
def branches(a, b):
    calls.append(1)
    if a > b:
        return a
    return b

@triton.jit
def affine(scale_a, shift_a, scale_b, shift_b):
    calls.append(1)
    return scale_a * scale_b, shift_a * scale_b + shift_b

@triton.jit
def mistaken(a, b):
    return a + no_such_name

@triton.jit
def kernel(x_ptr, out_ptr, WHAT: tl.constexpr):
    offsets = tl.arange(0, 8)[:, None] * 16 + tl.arange(0, 16)[None, :]
    x = tl.load(x_ptr + offsets)
    if WHAT == "later":
        tl.store(out_ptr + tl.arange(0, 8), tl.reduce(x, 1, later))
    if WHAT == "later of columns":
        tl.store(out_ptr + tl.arange(0, 16)[None, :], tl.reduce(x, 0, later, keep_dims=True))
    if WHAT == "later of all":
        tl.store(out_ptr, tl.reduce(x, None, later))
    if WHAT == "normaliser":
        largest, total = tl.reduce((x, tl.zeros_like(x) + 1.0), 1, normaliser)
        tl.store(out_ptr + tl.arange(0, 8), largest + tl.log(total))
    if WHAT == "branches":
        tl.store(out_ptr + tl.arange(0, 8), tl.reduce(x, 1, branches))
    if WHAT == "integers":
        tl.store(out_ptr + tl.arange(0, 8), tl.reduce((x * 10).to(tl.int32), 1, later))
    if WHAT == "affine":
        scale, shift = tl.associative_scan((x, x + 1.0), 1, affine)
        tl.store(out_ptr + offsets, scale + shift)
    if WHAT == "affine in reverse":
        scale, shift = tl.associative_scan((x, x + 1.0), 0, affine, reverse=True)
        tl.store(out_ptr + offsets, scale + shift)
    if WHAT == "mistaken":
        tl.store(out_ptr + tl.arange(0, 8), tl.reduce(x, 1, mistaken))

x = torch.rand(8, 16, generator=torch.Generator().manual_seed(0)) + 0.5
found = {}
for what in sys.argv[3:]:
    out = torch.zeros(128)
    calls.clear()
    try:
        kernel[(1,)](x, out, WHAT=what)
        said = out.tolist()
    except Exception as error:
        said = str(error)
    found[what] = {"said": said, "calls": len(calls)}
print(json.dumps(found))
"""

CASES = {  # how often a function is called for tiles of 8 x 16
    "later": (4, 120),
    "later of columns": (3, 112),
    "later of all": (7, 127),
    "normaliser": (4, 120),
    "branches": (121, 120),
    "integers": (4, 120),
    "affine": (4, 120),
    "affine in reverse": (3, 112),
    "mistaken": (0, 0),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What came of each case, and in how many calls: in whole tiles, and of each element."""
    path = tmp_path_factory.mktemp("kernels") / "kernels.py"
    path.write_text(KERNELS)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    both = []
    for how in ("whole", "each"):
        command = [sys.executable, str(path), str(ROOT), how, *CASES]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
        assert done.returncode == 0, done.stderr
        both.append(json.loads(done.stdout))
    return both


@pytest.mark.parametrize("what", CASES)
def test_whole_tiles_come_to_what_each_element_does(found, what):
    whole, each = (one[what] for one in found)
    assert (whole["calls"], each["calls"]) == CASES[what]
    if isinstance(each["said"], str):
        assert whole["said"] == each["said"] and "no_such_name" in each["said"]
    else:
        assert any(each["said"])
        assert whole["said"] == pytest.approx(each["said"], rel=1e-5)
