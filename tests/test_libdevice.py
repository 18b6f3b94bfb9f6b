"""Kernels that call libdevice, and grids that are lists, run in the interpreter as on a GPU."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from grader.checks.translations import translation
from grader.spec.problem import ROOT

# Launches each function of libdevice, by either of its modules, and grids of several kinds.
LIBDEVICE = """\
import json, sys
import torch, triton
import triton.language as tl

sys.path.insert(0, sys.argv[1])
from grader.kernel.interpreter import interpreting

interpreting.install()
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda
from triton.language.extra.libdevice import fma as taken

called = []

@triton.jit
def kernel(x_ptr, y_ptr, out_ptr):
    lanes = tl.program_id(0) * 4 + tl.arange(0, 4)
    called[0](out_ptr + lanes, tl.load(x_ptr + lanes), tl.load(y_ptr + lanes))

def launch(make, dtype=torch.float32, grid=(2,)):
    x = torch.tensor([0.125, 0.25, 0.5, 0.75, 0.875, 1.0, 0.3, 0.9]).to(dtype)
    out = torch.full_like(x, -1.0)
    called[:] = [lambda to, x, y: tl.store(to, make(x, y))]
    try:
        kernel[grid](x, x.flip(0), out)
    except Exception as error:
        return repr(error)
    return out.tolist()

results = {}
for name in json.loads(sys.argv[2]):
    for module in (libdevice, cuda):
        function = getattr(module, name, None)
        for dtype in (torch.float32, torch.float64):
            told = launch(lambda x, y: function(x), dtype)
            if isinstance(told, str):
                told = launch(lambda x, y: function(x, y), dtype)
            results[f"{name} {module.__name__} {str(dtype)[-2:]}"] = told
results["mixed"] = launch(lambda x, y: taken(x, 2.0, tl.max(y, 0)))
results["unknown"] = launch(lambda x, y: libdevice.j0(x))
results["nan"] = launch(lambda x, y: libdevice.isnan(libdevice.sqrt(x - 0.5)))
results["half"] = launch(lambda x, y: libdevice.exp(x), torch.float16)
results["list"] = launch(lambda x, y: x, grid=[2])
results["list of a function"] = launch(lambda x, y: x, grid=lambda meta: [2, 1])
results["number"] = launch(lambda x, y: x, grid=2)
print(json.dumps(results))
"""
ONE = {
    **{name: getattr(np, name) for name in ("exp", "exp2", "expm1", "log", "log2", "log10")},
    **{name: getattr(np, name) for name in ("log1p", "sqrt", "cbrt", "floor", "ceil", "trunc")},
    **{name: getattr(np, name) for name in ("rint", "sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{"asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh},
    **{"rsqrt": lambda x: x**-0.5, "exp10": lambda x: 10**x, "abs": np.abs, "sqrt_rn": np.sqrt},
    **{"isnan": np.isnan, "isinf": np.isinf},
    **{"rcp_rn": lambda x: 1 / x, "erf": lambda x: [math.erf(number) for number in x]},
}
TWO = {
    **{"pow": np.power, "fmod": np.fmod, "atan2": np.arctan2, "hypot": np.hypot},
    **{"copysign": np.copysign, "fdim": lambda x, y: np.maximum(x - y, 0), "add_rn": np.add},
    **{"sub_rn": np.subtract, "mul_rn": np.multiply, "div_rn": np.divide},
    **{"fast_dividef": np.divide, "fast_powf": np.power},
}
ONE |= {"fast_expf": np.exp, "fast_logf": np.log, "fast_log2f": np.log2, "saturatef": np.abs}
ONE |= {"rsqrt_rn": lambda x: x**-0.5, "finitef": np.isfinite}
ONLY_FP32 = {name for name in (*ONE, *TWO) if name[:5] == "fast_"} | {
    *("saturatef", "rsqrt_rn", "finitef"),
}
NUMBERS = np.array([0.125, 0.25, 0.5, 0.75, 0.875, 1.0, 0.3, 0.9])


@pytest.fixture(scope="module")
def libdevice(tmp_path_factory):
    """What libdevice comes to in the interpreter, and what grids do."""
    path = tmp_path_factory.mktemp("libdevice") / "launches.py"
    path.write_text(LIBDEVICE)
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(path), str(ROOT), json.dumps([*ONE, *TWO])]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_a_function_of_libdevice_comes_to_what_its_name_says(libdevice, name):
    due = ONE[name](NUMBERS) if name in ONE else TWO[name](NUMBERS, NUMBERS[::-1])
    for module in ("triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice"):
        assert np.allclose(libdevice[f"{name} {module} 32"], due, rtol=3e-6)
        if name not in ONLY_FP32:
            assert np.allclose(libdevice[f"{name} {module} 64"], due, rtol=1e-6)


def test_libdevice_takes_and_refuses_what_it_does_on_a_gpu(libdevice):
    tops = np.repeat([max(NUMBERS[4:]), max(NUMBERS[:4])], 4)
    assert np.allclose(libdevice["mixed"], 2 * NUMBERS + tops)
    assert "KeyError" in libdevice["half"]
    assert ".to(tl.float32)" in translation(libdevice["half"])
    assert libdevice["nan"] == [float(number < 0) for number in NUMBERS - 0.5]
    assert "there is no __nv_j0f of libdevice" in libdevice["unknown"]
    assert "tl.math" in translation(libdevice["unknown"])


def test_a_grid_may_be_a_list_and_not_a_number(libdevice):
    assert np.allclose(libdevice["list"], NUMBERS)
    assert np.allclose(libdevice["list of a function"], NUMBERS)
    assert "a grid is a tuple" in translation(libdevice["number"])
