"""What Python does in a kernel is forgotten when it ends, but for what the kernel stores."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from grader.source.policy.rules import violations
from grader.spec.problem import ROOT, load_problem
from tests import forked
from tests.harness import judge, model_answer
from tests.hostile import keeping

P02 = load_problem("p02")
TOLD = {
    "numbers in a dictionary that a grid has": "'mappingproxy' object does not support",
    "numbers in the shape of a pointer that a grid has": "'torch.Size' object has no attribute",
    "numbers in the list of a function's arguments": "'tuple' object has no attribute 'append'",
    "numbers that an exit carries out": "cannot be interpreted as an integer",
    "numbers in an attribute of a class": "IndexError",
    "numbers in an attribute of an enum": "IndexError",
    "an argument that has no name": "'tuple' object does not support item assignment",
    "a number by which classes are related": "a kernel registers nothing with Number",
}

_quick = forked.quick


@pytest.mark.parametrize("entry", keeping.ENTRIES, ids=lambda entry: entry.name)
def test_nothing_is_kept(entry):
    assert not violations(P02, ast.parse(entry.source))
    judged = judge(entry.source, P02, checks={"one_program"}).of("one_program")
    told = TOLD.get(entry.name, "'mappingproxy' object does not support")
    assert judged.verdict == "error" and told in judged.message.headline


WALK = """
import importlib, math, types
from collections import deque
import torch, triton
import triton.language as tl
from grader.source.given_imports import given_modules
from grader.spec.problem import load_problem
from grader.source.policy import tables
from grader.kernel import given
from grader.kernel.compile import asked_gpu
from grader.kernel.interpreter import constants, interpreting, own_kernels

interpreting.install()
asked_gpu.install()
constants.install(own_kernels.install("none", b"", "none.py"))
given.offer_given()
triton.cdiv.cache_key
opened = tables.open_modules(load_problem("p02"))
closed = tables.LEADING | tables.FRAMES | tables.HANDLES
roots = [tl, math, triton, torch.cuda, torch.version]
roots += [importlib.import_module(f"given.{name}") for name in given_modules()]
waiting = deque((root.__name__, root) for root in roots)
seen = {}
while waiting:
    path, value = waiting.popleft()
    if id(value) in seen or path.count(".") > 8:
        continue
    seen[id(value)] = value
    if isinstance(value, (list, dict, set, bytearray, deque)):
        print(path, type(value).__name__)
        continue
    name = getattr(value, "__name__", "") if isinstance(value, types.ModuleType) else None
    if name is not None and name not in opened and not name.startswith("given"):
        continue
    for part in dir(value):
        if part.startswith("_") or part in closed:
            continue
        if name in opened and not tables.is_open(opened[name], name, part):
            continue
        try:
            waiting.append((f"{path}.{part}", getattr(value, part)))
        except Exception:
            pass
print(len(seen), "objects")
"""


def test_a_kernel_reaches_no_list_and_no_dictionary_of_triton_or_given():
    """By public names, in the modules that are open to submissions."""
    done = subprocess.run(
        [sys.executable, "-c", WALK],
        cwd=ROOT,
        env={"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    *found, count = done.stdout.splitlines()
    assert found == [] and int(count.split()[0]) > 2000


GRID = """
TABLE = {"rows": 1}


def grid(meta):
    assert meta["x_ptr"].shape == (meta["rows"], meta["cols"]) and type(meta["rows"]) is int
    assert meta["X_EVICTION"] in ("", "evict_first", "evict_last", "evict_normal")
    assert meta["table"] is TABLE and meta["row"] == 0
    return [triton.cdiv(meta["rows"], meta["BLOCK_M"]) * meta["table"]["rows"] + meta["row"]]


def weighted_row_sum(x"""


def test_a_grid_gets_what_the_launch_was_given():
    source = model_answer("p02").replace("\ndef weighted_row_sum(x", GRID, 1)
    at = "X_EVICTION: tl.constexpr,\n):"
    source = source.replace(at, f"{at[:-3]}\n    table: tl.constexpr, row=0,\n):", 1)
    source = source.replace("w.stride(0), **tiles", "w.stride(0), table=TABLE, **tiles")
    line = "    grid = (triton.cdiv(rows, tiles["
    assert line in source and at not in source
    source = source.replace(line, f"    _ = {line.strip().partition(' = ')[2]}", 1)
    assert judge(source, P02, checks={"plain", "ragged_rows"}).wrong == {}
