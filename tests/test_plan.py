"""Host code runs on tensors without data, its plan is carried out: questions, and hostile plans.

What a session makes of whole answers the tests of the corpora show; here is what they do not have.
"""

import mmap
import textwrap
from typing import Any

import pytest
import torch

from grader.isolate import plan
from grader.isolate.executing import Replay
from grader.isolate.operators import OperatorAudit
from grader.isolate.placing import place
from grader.isolate.session import Budget, Session
from grader.kernel.machine.engine import Engine
from grader.kernel.machine.ttir import BadText
from grader.source.policy.operators import opened
from grader.source.submission import Source
from grader.spec.grade_record import Verdict
from grader.spec.inputs import make_inputs
from grader.spec.problem import load_problem
from grader.spec.protocol import Reply, Status
from tests import forked
from tests.harness import judge
from tests.shares import drawn

P02 = load_problem("p02")
_quick = forked.quick

KERNEL = """
import torch
import triton
import triton.language as tl

@triton.jit
def count(rows_ptr, rows):
    row = tl.program_id(0)
    tl.store(rows_ptr + row, row)

@triton.jit
def sums(x_ptr, w_ptr, y_ptr, rows_ptr, cols, x_row, x_col, w_col, BLOCK: tl.constexpr):
    row = tl.load(rows_ptr + tl.program_id(0)).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_row + col * x_col, mask=col < cols, other=0.0)
        w = tl.load(w_ptr + col * w_col, mask=col < cols, other=0.0)
        total += x.to(tl.float32) * w
    tl.store(y_ptr + row, tl.sum(total))

def run(x, w, y, rows):
    if len(rows):
        places = x.stride(0), x.stride(1), w.stride(0)
        sums[(len(rows),)](x, w, y, rows, x.shape[1], *places, BLOCK=128)

KEPT = {}

def weighted_row_sum(x, w):
    y = torch.empty(x.shape[:1], dtype=x.dtype, device=x.device)
    every = torch.arange(len(x), device=x.device)
"""
# Right answers; a question that is answered with zero, or not at all, makes each of them wrong.
ASKS = {
    "rows by a mask": """
        negative = x[:, 0] < 0
        run(x, w, y, every[negative])
        run(x, w, y, torch.nonzero(~negative).flatten())
    """,
    "a look at what a kernel has computed": """
        run(x, w, y, every)
        if float(y.abs().max()) == 0.0 or y.isnan().any():
            y.fill_(3.0)
    """,
    "a list of numbers, some of them computed": """
        first = every[:4].tolist() + [int(n) for n in (x[:4, 0] > 1e9)]
        run(x, w, y, every + first[0] + sum(first[4:]))
    """,
    "a table of the launch before": """
        if len(x) not in KEPT:
            KEPT[len(x)] = torch.empty(len(x), dtype=torch.int64, device=x.device)
            count[(len(x),)](KEPT[len(x)], len(x))
        run(x, w, y, KEPT[len(x)])
    """,
    "rows at indices that a kernel has computed": """
        order = torch.empty_like(every)
        count[(len(x),)](order, len(x))
        run(x, w, y, every.index_select(0, order))
    """,
    "a choice by what is equal": """
        run(x, w, y, every if not torch.equal(x, torch.zeros_like(x)) else every[:0])
    """,
    "bytes": "run(x, w, y, every + (every[-1:].view(torch.uint8).tolist()[7]))",
    "a constant of Python's that is changed": """
        places = torch.tensor([5, 7])
        places += 1
        places[0] -= 6
        run(x, w, y, every[places[0]:] if int(places[1]) == 8 else every[:0])
    """,
    "a result in memory that grows": """
        places, more = torch.empty(0, dtype=torch.int64), every[:0].clone()
        torch.sub(every, 0, out=places)
        run(x, w, y, more.resize_(len(x)).copy_(places))
    """,
    "values where a mask is true": """
        places, some = torch.empty_like(every), every % 2 == 0
        places[some] = every[some]
        places[~some] = every[~some]
        run(x, w, y, places)
    """,
    "two questions, of which one is caught": """
        try:
            found = bool((x == 0).all())
        except Exception:
            found = True
        run(x, w, y, every[:0] if found or y.numel() != y.shape[0] else every)
    """,
}


def answer(body: str) -> str:
    return KERNEL + textwrap.indent(textwrap.dedent(body).strip(), "    ") + "\n    return y\n"


@pytest.mark.parametrize("name", drawn(ASKS, 2))
def test_host_code_that_asks_for_values_is_answered(name: str) -> None:
    judged = judge(answer(ASKS[name]), P02, checks={"plain", "ragged_rows", "half"})
    assert [f.message.headline for f in judged.wrong.values()] == []


def test_what_is_empty_may_lie_past_its_storage() -> None:
    source = answer("run(x, w, y, torch.cat([every, every.new_empty(2, 0, 4)[1].flatten()]))")
    assert not judge(source, P02, checks={"plain"}).wrong


def test_the_values_of_tensors_are_printed() -> None:
    source = answer("run(x, w, y, every[:1]); print('first', every[:3], y.shape)")
    message = judge(source, P02, checks={"plain"}).of("plain").message
    assert "first tensor([0, 1, 2]) torch.Size" in str(message.output)


def test_host_code_finds_zeros_where_it_looks_past_pytorch() -> None:
    """Without the source policy, and by ctypes: it is where the values are not."""
    look = "seen = any(ctypes.string_at(x.data_ptr(), 4 * x.shape[1]))"
    source = "import ctypes\n" + answer(
        f"run(x, w, y, every); {look}; print(seen); return y.fill_(float(seen))"
    )
    judged = judge(source, P02, checks={"plain"}, policy=False)
    assert {f.verdict for f in judged.wrong.values()} == {Verdict.FAIL}
    assert {f.message.output for f in judged.wrong.values()} == {"False"}


@pytest.mark.parametrize(("answer", "rounds"), [("[1.0, 2.0, 3.0]", 11), ("0.5", 33)])
def test_who_plans_is_given_few_values_whatever_it_has_counted(answer, rounds, monkeypatch):
    """With all of them it could compute the result and hand it in."""
    asked = []

    def ask(session, sandbox, what, *rest):
        asked.append(what)
        status = Status.ASKS if what == "plan" else Status.OK
        return Reply(1, status, text="" if what == "plan" else answer)

    monkeypatch.setattr(Session, "_ask", ask)
    source = Source("p02", KERNEL.encode(), policy=True)
    session = Session(P02, source, device="cpu", machine=True, budget=Budget(P02.limits))
    session._workers = [None, None]
    reply = session._plan_and_carry_out(9.0, (0,), {})
    assert reply.status is Status.FORBIDDEN_OPERATOR and asked.count("plan") == rounds


def test_an_error_that_only_values_make_has_its_line() -> None:
    source = answer("run(x, w, y, every)\nrows = (y * 0 + 1e6).long(); y = y[rows]")
    message = judge(source, P02, checks={"plain"}).of("plain").message
    assert message.headline.startswith("IndexError: index 1000000 is out of bounds")
    assert "rows = (y" in source.splitlines()[message.line - 1]


TTIR = """module {
  tt.func public @k(%arg0: !tt.ptr<f32> loc(unknown)) attributes {noinline = false} {
    %c = arith.constant dense<1.000000e+00> : tensor<4xf32> loc(unknown)
    %r = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32> loc(unknown)
    %p = tt.splat %arg0 : !tt.ptr<f32> -> tensor<4x!tt.ptr<f32>> loc(unknown)
    %q = tt.addptr %p, %r : tensor<4x!tt.ptr<f32>>, tensor<4xi32> loc(unknown)
    tt.store %q, %c : tensor<4x!tt.ptr<f32>> loc(unknown)
    tt.return loc(unknown)
  } loc(unknown)
} loc(unknown)
"""
Y = [1, 0, [4], [1], "float32"]
EMPTY = ["op", [], "aten::empty", "memory_format", [[4]], {"dtype": {"dtype": "float32"}}, [Y]]
LAUNCH = ["launch", [], 0, [1, 1, 1], [["y_ptr", {"tensor": Y}]]]
PLAN = {
    "alive": [],
    "storages": {"0": [64, 16], "1": [128, 16]},
    "inputs": {"x": [0, 0, [2, 2], [2, 1], "float32"]},
    "kernels": {"0": ["k", TTIR, False, 1]},
    "steps": [EMPTY, LAUNCH],
    "outputs": {"y": Y},
}


X, WIDE = {"tensor": PLAN["inputs"]["x"]}, [0, 0, [2, 9], [2, 1], "float32"]


def carried_out(*changed: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Carry out plans, one after the other; return the outputs of the last."""
    replay = Replay(Engine("answer.py"), OperatorAudit(opened(P02), "answer.py"))
    case = next(iter(P02.cases(P02.check("plain"), "5eed").values()))
    layout = place(case, make_inputs(P02, case, 0), ("y",))
    assert replay._audit is not None
    with replay._audit.noting(layout, {"gradients": False}):
        return [replay.run(plan, {"x": torch.ones(2, 2)}) for plan in changed][-1]


def test_a_plan_is_carried_out() -> None:
    assert carried_out(PLAN)["y"].tolist() == [1.0] * 4
    negated = ["op", [], "aten::neg", "", [X], {}, [[1, 0, [2, 2], [2, 1], "float32"]]]
    plan = PLAN | {"steps": [negated], "outputs": {"y": [1, 0, [4], [1], "float32"]}}
    assert carried_out(plan)["y"].tolist() == [-1.0] * 4


def _op(name: str, *args: Any, overload: str = "") -> list[Any]:
    return ["op", [], name, overload, list(args), {}, []]


def kernel(old: str, new: str) -> tuple[str, Any]:
    assert old in TTIR
    return "kernels", {"0": ["k", TTIR.replace(old, new), False, 1]}


DEEP: Any = 0
for _ in range(5000):
    DEEP = [DEEP]
# What is put in the place of which part of a plan; none of it may be computed with.
HOSTILE: dict[str, tuple[str, Any]] = {
    "no inputs": ("inputs", {}),
    "inputs of another name": ("inputs", {"q": PLAN["inputs"]["x"]}),
    "an input of other sizes": ("inputs", {"x": [0, 0, [4, 4], [4, 1], "float32"]}),
    "an input of other strides": ("inputs", {"x": [0, 0, [2, 2], [1, 1], "float32"]}),
    "an input of another type": ("inputs", {"x": [0, 0, [2, 2], [2, 1], "float64"]}),
    "an input that begins before its memory": ("inputs", {"x": [0, -9, [2, 2], [2, 1], "float32"]}),
    "a tensor of no storage": ("outputs", {"y": [7, 0, [4], [1], "float32"]}),
    "a tensor past its storage": ("outputs", {"y": [1, 0, [5], [1], "float32"]}),
    "a tensor far past it": ("outputs", {"y": [1, 1 << 62, [4], [1], "float32"]}),
    "a tensor before it": ("outputs", {"y": [1, -1, [4], [1], "float32"]}),
    "negative sizes": ("outputs", {"y": [1, 0, [-4], [1], "float32"]}),
    "negative strides": ("outputs", {"y": [1, 3, [4], [-1], "float32"]}),
    "sizes without end": ("outputs", {"y": [1, 0, [1 << 62, 1 << 62], [1, 1], "float32"]}),
    "strides without end": ("outputs", {"y": [1, 0, [4], [1 << 62], "float32"]}),
    "wider elements": ("outputs", {"y": [1, 0, [4], [1], "float64"]}),
    "a type of objects": ("outputs", {"y": [1, 0, [4], [1], "object"]}),
    "a type that is none": ("outputs", {"y": [1, 0, [4], [1], "load"]}),
    "an input past its end": ("outputs", {"y": WIDE}),
    "a storage that says it is large": ("storages", {"0": [0, 1 << 60], "1": [0, -1]}),
    "a step that is none": ("steps", [["system", [], "true"]]),
    "a step that is a method": ("steps", [["_init__", [], ""]]),
    "a launch of no kernel": ("steps", [["launch", [], 3, [1, 1, 1], []]]),
    "a grid of two axes": ("steps", [["launch", [], 0, [1, 1], []]]),
    "a grid of text": ("steps", [["launch", [], 0, ["a", 1, 1], []]]),
    "a grid without end": ("steps", [EMPTY, ["launch", [], 0, [1 << 40, 1, 1], LAUNCH[4]]]),
    "too few arguments": ("steps", [EMPTY, ["launch", [], 0, [1, 1, 1], []]]),
    "an address as an argument": ("steps", [["launch", [], 0, [1, 1, 1], [["y_ptr", 1 << 40]]]]),
    "an argument that is text": ("steps", [["launch", [], 0, [1, 1, 1], [["y_ptr", "x"]]]]),
    "a file that is read": ("steps", [_op("aten::from_file", "/etc/passwd", False, 4)]),
    "a product": ("steps", [_op("aten::mm", X, X)]),
    "attention": ("steps", [_op("aten::scaled_dot_product_attention", X, X, X)]),
    "a softmax": ("steps", [_op("aten::_softmax", X, 1, False)]),
    "an operator of nobody's": ("steps", [_op("mine::op", X)]),
    "an operator that is not there": ("steps", [_op("aten::nothing", X)]),
    "an attribute that is no operator": ("steps", [_op("aten::__class__", X)]),
    "an overload that is not there": ("steps", [_op("aten::neg", X, overload="other")]),
    "too few operands": ("steps", [_op("aten::neg")]),
    "gigabytes": ("steps", [_op("aten::empty", [1 << 45], overload="memory_format")]),
    "a dtype that is a function": ("steps", [_op("aten::neg", {"dtype": "load"})]),
    "an argument of no kind": ("steps", [_op("aten::neg", {"code": "print()"})]),
    "an argument of two kinds": ("steps", [_op("aten::neg", {"dtype": "int8", "layout": "x"})]),
    "lists without end": ("steps", [_op("aten::cat", DEEP)]),
    "a constant that is no text": ("steps", [["constant", [], 1, 5]]),
    "a constant that is not base64": ("steps", [["constant", [], 1, "~"]]),
    "a kernel that is no text": ("kernels", {"0": ["k", 5, False, 1]}),
    "a kernel that is no TTIR": ("kernels", {"0": ["k", "import os", False, 1]}),
    "a kernel of nothing": ("kernels", {"0": ["k", "", False, 1]}),
    "a kernel of megabytes": ("kernels", {"0": ["k", "x" * (9 << 20), False, 1]}),
    "a kernel with an operation nobody has": kernel("tt.splat", "tt.system"),
    "a kernel that stores outside": kernel("end = 4 : i32, start = 0", "end = 13 : i32, start = 9"),
    "a kernel with a tile without end": kernel("4", "4294967296"),
    "a kernel with a line that is text": ("kernels", {"0": ["k", TTIR, False, "x"]}),
    "a name that is a list": ("kernels", {"0": [[], TTIR, False, 1, 2]}),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_no_hostile_plan_is_computed_with(name: str) -> None:
    part, instead = HOSTILE[name]
    with pytest.raises(Exception):  # noqa: B017
        carried_out(PLAN | {part: instead})


def test_a_storage_of_an_earlier_plan_makes_no_input_larger() -> None:
    x, large = PLAN["inputs"]["x"], [0, 0, [64], [1], "float32"]
    made = [*EMPTY[:4], [[64]], EMPTY[5], [large]]
    before = PLAN | {"inputs": {"x": [9, *x[1:]]}, "storages": {"0": [64, 256]}, "steps": [made]}
    before |= {"outputs": {"y": large}}
    after = PLAN | {"alive": [0], "steps": [], "outputs": {"y": x}}
    assert carried_out(before, after)["y"].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    with pytest.raises(BadText, match="past its storage"):
        carried_out(before, after | {"outputs": {"y": WIDE}})


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"1" * 99, b"[" * 100_000, b"\xff\xfe"])
def test_a_text_that_is_no_plan_is_refused(text: bytes) -> None:
    memory = mmap.mmap(-1, plan.MAX_BYTES)
    memory[: 8 + len(text)] = len(text).to_bytes(8, "little") + text
    with pytest.raises(BadText):
        plan.read(memory)
