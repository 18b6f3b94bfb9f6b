"""Kernels that a watch keeps: what is compiled again, what is not, and how many there are."""

import collections
import dataclasses
import json
import os
import shutil

import pytest

from grader.isolate.compiled import call_of, compile_calls
from grader.isolate.processes import Children
from grader.judge.testrun import TestRun
from grader.kernel.compile import stages
from grader.kernel.compile.listing import listing
from grader.source.submission import Source
from grader.spec.cases import resolve
from grader.spec.problem import load_problem
from tests import once
from tests.forked import forked_workers
from tests.harness import model_answer
from tests.test_testrun import asked

P02, P03 = load_problem("p02"), load_problem("p03")
SOURCE = """\
import torch, triton
import triton.language as tl

@triton.jit
def product(a, b):
    return tl.dot(a, b)

@triton.jit
def squared(q_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    a = tl.load(q_ptr + at)
    tl.store(out_ptr + at, product(a, a))

@triton.jit
def fill(out_ptr):
    tl.store(out_ptr + tl.arange(0, 64), 0.0)

def attention(q, k, v, softmax_scale=None):
    out = torch.empty_like(q)
    squared[(1,)](q, out, SIZE=32)
    fill[(1,)](out)
    return out
"""
CALL = call_of(P03, resolve({"seqlen": 64, "head_dim": 64}, "fp16", ""), ("out",))


@pytest.fixture
def folder(tmp_path):
    """Where the kernels of SOURCE are kept: they are compiled once for all tests."""
    made, folder = once.folder("kept kernels", reports), tmp_path / "compiled"
    shutil.copytree(made, folder)
    for path in folder.glob("*/__grp__*"):  # Triton names files by their whole paths
        path.write_text(path.read_text().replace(str(made), str(folder)))
    return folder


def reports(folder, text=SOURCE):
    with forked_workers():
        (found,) = compile_calls(
            Source("p03", text.encode()), P03, [CALL], capabilities=(80,), kernels=folder
        )
    assert not found.refused and len(found.kernels) == 2, found
    return {k.kernel.kernel: k.kernel for k in found.kernels}


def figures(folder):
    return {json.loads(p.read_text())["registers"]: p for p in folder.glob("*.json")}


def test_a_kernel_is_not_compiled_again_and_its_report_is_the_same(folder):
    first = reports(folder)
    assert [dot.instruction for dot in first["squared"].dots] == ["mma"]
    assert first == reports(folder)  # with the milliseconds of the first time
    for path in folder.glob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"registers": 7}))
    assert {k.registers for k in reports(folder).values()} == {7}


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("product(a, a)", "product(a, a * 2)", 9),
        ("tl.dot(a, b)", "tl.dot(a, b * 2)", 9),  # what it calls
        ("SIZE=32", "SIZE=16", 9),
    ],
)
def test_a_changed_kernel_is_compiled_again(folder, old, new, line):
    first, kept = reports(folder), set(folder.iterdir())
    changed = reports(folder, SOURCE.replace(old, new))
    assert len(set(folder.iterdir()) - kept) == 2  # by its text and by its code
    assert changed["squared"].line == line
    assert changed["squared"].dots[0].line == 6
    assert changed["squared"].compile_ms != first["squared"].compile_ms
    assert changed["fill"] == first["fill"]


@pytest.mark.parametrize(
    ("old", "new", "moved"),
    [
        ("import triton.language as tl", "import triton.language as tl\n", {"squared", "fill"}),
        ("def fill(out_ptr):\n", "def fill(out_ptr):\n    # all of it\n\n", set()),
        ("def product(a, b):\n", "def product(a, b):  # a tile\n", set()),
    ],
)
def test_what_only_looks_otherwise_is_not_compiled_again(folder, old, new, moved):
    first = reports(folder)
    for path in folder.glob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"stack_bytes": 8}))
    for name, report in reports(folder, SOURCE.replace(old, new)).items():
        down = name in moved
        dots = [d.model_copy(update={"line": d.line + down}) for d in first[name].dots]
        update = {"line": first[name].line + down, "stack_bytes": 8, "dots": tuple(dots)}
        assert report == first[name].model_copy(update=update)


def test_dots_of_one_line_that_were_parted_are_looked_at_again(folder):
    both = "product(a, a) + tl.dot(a, a)"
    text = SOURCE.replace("product(a, a)", both)
    first = reports(folder, text)
    text = text.replace(both, "product(\n        a, a) + tl.dot(a, a)")
    again = reports(folder, text)
    assert [dot.line for dot in first["squared"].dots] == [6, 12]
    assert [dot.line for dot in again["squared"].dots] == [6, 13]
    one_line = text.replace("return tl.dot(a, b)", "return tl.dot(a, b) + tl.dot(b, b)")
    parted = one_line.replace("+ tl.dot(b, b)", "+ \\\n        tl.dot(b, b)")
    assert [dot.line for dot in reports(folder, one_line)["squared"].dots] == [6, 13]
    assert [dot.line for dot in reports(folder, parted)["squared"].dots] == [6, 7, 14]


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_figures_that_are_damaged_do_not_serve(folder, text):
    first = reports(folder)
    for path in folder.glob("*.json"):
        path.unlink()
        if text is not None:
            path.write_text(text)
    again = reports(folder)
    assert {n: k.registers for n, k in again.items()} == {n: k.registers for n, k in first.items()}
    assert again["squared"].dots == first["squared"].dots


def test_those_that_were_used_last_are_kept(folder, monkeypatch):
    reports(folder)
    reports(folder, SOURCE.replace("0.0", "1.0"))
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    used = reports(folder)
    monkeypatch.setattr(stages, "MOST_KEPT", 2)
    stages.make_room(folder)
    assert figures(folder).keys() == {k.registers for k in used.values()}
    assert reports(folder) == used
    stages.make_room(folder / "none yet")


def test_machine_code_is_disassembled_once_and_again_where_that_is_damaged(folder, monkeypatch):
    how = {"capabilities": (80,), "kernels": folder, "predicts": CALL}
    with forked_workers():
        compile_calls(Source("p03", SOURCE.encode()), P03, [CALL], **how)
    codes = [stages.CachedKernel(path).read_code()["cubin"] for path in folder.glob("*.code")]
    assert len(codes) == len([*folder.glob("*.sass")]) == 2
    monkeypatch.setattr("subprocess.run", None)  # nothing is disassembled again
    (found,) = filter(None, (listing(code, "fill", folder) for code in codes))
    monkeypatch.undo()
    kept = {path: path.read_bytes() for path in folder.glob("*.sass")}
    for damaged in (lambda data: b"x", lambda data: data[:-20]):
        for path, data in kept.items():
            path.write_bytes(damaged(data))
        assert found in [listing(code, "fill", folder) for code in codes]
        assert kept == {path: path.read_bytes() for path in kept}


def test_a_grading_keeps_them_and_tells_of_the_chips_that_it_was_asked_for(tmp_path):
    folder = tmp_path / "compiled"
    children, told = Children(kernels=folder), []
    with forked_workers():
        children.open_server()
        source = model_answer("p02").encode()
        request = dataclasses.replace(asked(P02, "1"), chips=(942,))
        run = TestRun(P02, source, request, children, on_phase=told.append)
        found = run.run()
    assert {f.verdict for f in found.cases.values()} == {"pass"}
    (compiled,) = (f.kernels for f in found.cases.values() if f.kernels)
    assert [kernel.capability for kernel in compiled] == [80, 90, 942]
    assert told == ["compiling for gfx942"]
    kinds = collections.Counter(path.suffix for path in folder.iterdir())
    assert kinds.pop(".ttir") > 2  # of what the machine ran: tests/test_ttir_cache.py
    assert kinds == {".json": 2 * 3, ".code": 2, ".sass": 2}  # as predicted
