"""What each operation of TTIR computes on the tile machine, beside numbers that were worked out.

Rows of a table: operation, element types of operands and result, operands, result. Texts that are
no TTIR, or too much of it, and what the machine does not model are refused.
"""

import math
import time

import pytest
import torch
import triton

from grader.kernel.machine.arrays import DTYPES
from grader.kernel.machine.capture import Kernel, Launch
from grader.kernel.machine.engine import Engine
from grader.kernel.machine.flow import stored_to
from grader.kernel.machine.parse import parse
from grader.kernel.machine.program import Program
from grader.kernel.machine.steps import Failed, Limits, Stopped
from grader.kernel.machine.ttir import BadText, Unmodelled

INF, NAN = math.inf, math.nan
LEAST, MOST = -(2**31), 2**31 - 1
N = 4


def module(lines: str, kinds: list[str], result: str) -> str:
    """A kernel that loads %a, %b, ... and stores %out, between which `lines` stand."""
    names = "abcdef"[: len(kinds)]
    arguments = [f"%{n}_ptr: !tt.ptr<{k}>" for n, k in zip(names, kinds, strict=True)]
    text = [f"tt.func public @kernel({', '.join([*arguments, f'%out_ptr: !tt.ptr<{result}>'])})"]
    text[0] += " attributes {noinline = false} {"
    text.append(f"%at = tt.make_range {{end = {N} : i32, start = 0 : i32}} : tensor<{N}xi32>")
    for name, kind in [*zip(names, kinds, strict=True), ("out", result)]:
        pointers = f"tensor<{N}x!tt.ptr<{kind}>>"
        text.append(f"%{name}_s = tt.splat %{name}_ptr : !tt.ptr<{kind}> -> {pointers}")
        text.append(f"%{name}_p = tt.addptr %{name}_s, %at : {pointers}, tensor<{N}xi32>")
        if name != "out":
            text.append(f"%{name} = tt.load %{name}_p : {pointers}")
    text += [lines, f"tt.store %out_p, %out : tensor<{N}x!tt.ptr<{result}>>", "tt.return", "}"]
    return "module {\n" + "\n".join(text) + "\n}\n"


def computed(lines: str, kinds: list[str], result: str, values: list[list]) -> torch.Tensor:
    """What such a kernel stores."""
    tensors = [torch.tensor(v, dtype=DTYPES[k]) for v, k in zip(values, kinds, strict=True)]
    out = torch.zeros(N, dtype=DTYPES[result])
    Program(parse(module(lines, kinds, result))).launch(
        (1, 1, 1), [(f"x{i}", t) for i, t in enumerate([*tensors, out])]
    )
    return out


def same(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


BINARY = [
    ("arith.addi", "i32", [[MOST, 1, -1, 5], [1, 2, 1, -9]], [LEAST, 3, 0, -4]),
    ("arith.muli", "i32", [[65536, 3, -4, 2**30], [65536, 5, 6, 2]], [0, 15, -24, LEAST]),
    ("arith.divsi", "i32", [[7, -7, 7, LEAST], [2, 2, -2, -1]], [3, -3, -3, LEAST]),
    ("arith.divsi", "i64", [[-9, 9, 1, 8], [2, -2, 3, 8]], [-4, -4, 0, 1]),
    ("arith.remsi", "i32", [[7, -7, 7, LEAST], [2, 2, -2, -1]], [1, -1, 1, 0]),
    ("arith.divui", "i32", [[-1, 9, -2, 8], [2, 2, -1, 8]], [MOST, 4, 0, 1]),
    ("arith.remui", "i32", [[-1, 9, 5, 8], [10, 2, -1, 3]], [5, 1, 5, 2]),
    ("arith.maxui", "i32", [[-1, 1, 5, 0], [1, 2, -9, 0]], [-1, 2, -9, 0]),
    ("arith.minsi", "i32", [[-1, 1, 5, 0], [1, 2, -9, 0]], [-1, 1, -9, 0]),
    ("arith.shrsi", "i32", [[-8, 8, -1, 5], [1, 1, 4, 0]], [-4, 4, -1, 5]),
    ("arith.shrui", "i32", [[-8, 8, -1, 5], [1, 1, 28, 0]], [0x7FFFFFFC, 4, 15, 5]),
    ("arith.shli", "i32", [[1, 3, 1, -1], [31, 30, 0, 4]], [LEAST, -(2**30), 1, -16]),
    ("tt.mulhiui", "i32", [[-1, 2**31 - 1, 1, -1], [-1, 4, 1, 2]], [-2, 1, 0, 1]),
    ("tt.mulhiui", "i64", [[-1, 2**62, 1, -1], [-1, 8, 1, 2]], [-2, 2, 0, 1]),
    ("arith.xori", "i1", [[1, 1, 0, 0], [1, 0, 1, 0]], [0, 1, 1, 0]),
    ("arith.addi", "i1", [[1, 1, 0, 0], [1, 0, 1, 0]], [0, 1, 1, 0]),
    ("arith.maxnumf", "f32", [[NAN, 1, NAN, 2], [1, NAN, NAN, 3]], [1, 1, NAN, 3]),
    ("arith.maximumf", "f32", [[NAN, 1, NAN, 2], [1, NAN, NAN, 3]], [NAN, NAN, NAN, 3]),
    ("arith.minnumf", "f32", [[NAN, 1, -INF, 2], [1, NAN, 0, 3]], [1, 1, -INF, 2]),
    ("arith.divf", "f32", [[1, -1, 0, 3], [0, 0, 0, 2]], [INF, -INF, NAN, 1.5]),
    ("arith.remf", "f32", [[7.5, -7.5, 1, 3], [2, 2, INF, 2]], [1.5, -1.5, 1, 1]),
    ("arith.addf", "f16", [[2048, 65504, 1, 0.1], [1, 65504, 1, 0.2]], [2048, INF, 2, 0.29980469]),
    ("arith.mulf", "bf16", [[1.0078125, 3, 1, 0], [1.0078125, 5, 1, 1]], [1.015625, 15, 1, 0]),
    ("arith.cmpi slt,", "i32", [[-1, 1, 5, 0], [1, -2, 5, 0]], [1, 0, 0, 0]),
    ("arith.cmpi ult,", "i32", [[-1, 1, 5, 0], [1, -2, 5, 0]], [0, 1, 0, 0]),
    ("arith.cmpi uge,", "i64", [[-1, 1, 5, 0], [1, -2, 5, 0]], [1, 0, 1, 1]),
    ("arith.cmpf olt,", "f32", [[NAN, 1, 1, -INF], [1, NAN, 2, 0]], [0, 0, 1, 1]),
    ("arith.cmpf une,", "f32", [[NAN, 1, 1, 0], [NAN, 1, 2, -0.0]], [1, 0, 1, 0]),
    ("arith.cmpf ult,", "f32", [[NAN, 1, 1, 3], [1, NAN, 2, 0]], [1, 1, 1, 0]),
    ("arith.cmpf one,", "f32", [[NAN, 1, 1, 3], [1, 1, 2, NAN]], [0, 0, 1, 0]),
    ("arith.cmpf uno,", "f32", [[NAN, 1, 1, 3], [1, 1, 2, NAN]], [1, 0, 0, 1]),
]


@pytest.mark.parametrize(("name", "kind", "values", "expected"), BINARY)
def test_binary_operations(name: str, kind: str, values: list[list], expected: list) -> None:
    result = "i1" if "cmp" in name else kind
    got = computed(f"%out = {name} %a, %b : tensor<{N}x{kind}>", [kind, kind], result, values)
    same(got, torch.tensor(expected, dtype=got.dtype))


CASTS = [
    ("arith.extsi", "i8", "i32", [-1, 127, -128, 0], [-1, 127, -128, 0]),
    ("arith.extui", "i8", "i32", [-1, 127, -128, 0], [255, 127, 128, 0]),
    ("arith.extsi", "i1", "i32", [1, 0, 1, 0], [-1, 0, -1, 0]),
    ("arith.trunci", "i64", "i32", [2**31, 5, -1, 2**32], [LEAST, 5, -1, 0]),
    ("arith.trunci", "i32", "i1", [2, 3, -1, 0], [0, 1, 1, 0]),
    ("arith.uitofp", "i32", "f32", [-1, 1, 0, LEAST], [2.0**32, 1, 0, 2.0**31]),
    ("arith.uitofp", "i64", "f64", [-1, 1, 0, 2**62], [2.0**64, 1, 0, 2.0**62]),
    ("arith.fptosi", "f32", "i32", [1.9, -1.9, NAN, 1e20], [1, -1, 0, MOST]),
    ("arith.fptosi", "f32", "i8", [1.9, 300, -1, 0], [1, 44, -1, 0]),
    ("arith.fptoui", "f32", "i32", [4e9, -5, NAN, 1.5], [4_000_000_000 - 2**32, 0, 0, 1]),
    ("arith.truncf", "f32", "f16", [1e6, 1.0 + 2**-11, 1, 2**-25], [INF, 1, 1, 0]),
    ("arith.truncf", "f32", "bf16", [1 + 2**-8, 1 + 3 * 2**-8, 1, NAN], [1, 1.015625, 1, NAN]),
    ("tt.fp_to_fp", "f32", "f8E4M3FN", [1e6, 1.0625, -17, 0], [448, 1, -16, 0]),
    ("tt.fp_to_fp", "f32", "f8E5M2", [1.1, 6, -17, 0], [1, 6, -16, 0]),
    ("tt.bitcast", "f32", "i32", [1.0, -0.0, 0.0, INF], [0x3F800000, LEAST, 0, 0x7F800000]),
]


@pytest.mark.parametrize(("name", "kind", "result", "values", "expected"), CASTS)
def test_casts(name: str, kind: str, result: str, values: list, expected: list) -> None:
    more = ", rounding = rtne" if name == "tt.fp_to_fp" else ""
    arrow = "to" if name.startswith("arith") else "->"
    lines = f"%out = {name} %a{more} : tensor<{N}x{kind}> {arrow} tensor<{N}x{result}>"
    got = computed(lines, [kind], result, [values]).double()
    same(got, torch.tensor(expected, dtype=torch.float64))


def test_a_multiply_add_rounds_once() -> None:
    a, exact = 1 + 2.0**-23, 2.0**-46
    lines = f"%out = math.fma %a, %a, %b : tensor<{N}xf32>"
    got = computed(lines, ["f32", "f32"], "f32", [[a] * N, [-(1 + 2.0**-22)] * N])
    assert got.tolist() == [exact] * N


def test_a_clamp_keeps_nan_where_it_is_told_to() -> None:
    text = "%out = tt.clampf %a, %b, %c, propagateNan = {} : tensor<4xf32>"
    values = [[NAN, 5, -5, 0.5], [0] * N, [1] * N]
    plain = computed(text.format("none"), ["f32"] * 3, "f32", values)
    kept = computed(text.format("all"), ["f32"] * 3, "f32", values)
    assert plain.tolist() == [0, 1, 0, 0.5] and kept.isnan().tolist() == [True, False, False, False]


def reduced(operation: str, kind: str, values: list, *, scan: bool = False) -> torch.Tensor:
    """The result of a reduction in all four places, or that of a scan."""
    name = "tt.scan" if scan else "tt.reduce"
    more = ", reverse = false" if scan else ""
    into = f"tensor<{N}x{kind}>" if scan else kind
    lines = f'%r = "{name}"(%a) <{{axis = 0 : i32{more}}}> ({{\n^bb0(%x: {kind}, %y: {kind}):\n'
    lines += f"%z = {operation} %x, %y : {kind}\n{name}.return %z : {kind}\n"
    lines += f"}}) : (tensor<{N}x{kind}>) -> {into}\n"
    lines += f"%zero = arith.constant dense<0> : tensor<{N}xi32>\n" if scan else ""
    lines += "" if scan else f"%out = tt.splat %r : {kind} -> tensor<{N}x{kind}>"
    lines = lines.replace("%r =", "%out =") if scan else lines
    return computed(lines, [kind], kind, [values])


def test_reductions_and_scans() -> None:
    assert reduced("arith.addf", "f32", [1, 2, 3, 4]).tolist() == [10] * N
    assert reduced("arith.maxnumf", "f32", [NAN, 2, NAN, 1]).tolist() == [2] * N
    assert reduced("arith.maximumf", "f32", [NAN, 2, 3, 1]).isnan().all()
    assert reduced("arith.addi", "i32", [MOST, 1, 1, 1]).tolist() == [LEAST + 2] * N
    assert reduced("arith.mulf", "f32", [1, 2, 3, 4]).tolist() == [24] * N
    assert reduced("arith.subf", "f32", [1, 2, 3, 5]).tolist() == [(1 - 2) - (3 - 5)] * N
    assert reduced("arith.mulf", "f32", [1, 2, 3, 4], scan=True).tolist() == [1, 2, 6, 24]
    assert reduced("arith.addi", "i32", [MOST, 1, 2, 3], scan=True)[1:].tolist() == [
        LEAST, LEAST + 2, LEAST + 5,
    ]  # fmt: skip


def test_a_sum_in_16_bits_rounds_as_it_goes() -> None:
    assert reduced("arith.addf", "f16", [2048, 1, 0, 1]).tolist() == [2048] * N
    assert reduced("arith.addf", "f32", [2048, 1, 0, 1]).tolist() == [2050] * N


HUGE = f"%out = arith.constant dense<1> : tensor<{2**21}xi32>"
REFUSED = [
    ('%out = tt.elementwise_inline_asm "x" {pure = true} %a : tensor<4xf32> -> tensor<4xf32>',
     Unmodelled, "tt.elementwise_inline_asm"),
    ("%out = tt.no_such_thing %a : tensor<4xf32>", Unmodelled, "tt.no_such_thing"),
    ("%out = arith.addf %a, %a {new = 1 : i32} : tensor<4xf32>", Unmodelled, "arith.addf new"),
    ("%out = arith.cmpf nearly, %a, %a : tensor<4xf32>", Unmodelled, "arith.cmpf nearly"),
    ("%out = math.exp2 %a : tensor<4xf4>", Unmodelled, "type tensor<4xf4>"),
    ("%out = arith.addf %a, %nowhere : tensor<4xf32>", BadText, "%nowhere"),
    ("scf.if %a {", BadText, "%out is used and not defined"),
    ("?", BadText, "no operation"),
    (HUGE, BadText, "2,097,152 elements"),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "error", "words"), REFUSED)
def test_what_is_not_modelled_is_refused(lines: str, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        Program(parse(module(lines, ["f32"], "f32")))


FOREVER = """%yes = arith.constant true
%n = arith.constant 0 : i32
%r = scf.while (%i = %n) : (i32) -> i32 {
scf.condition(%yes) %i : i32
} do {
^bb0(%j: i32):
scf.yield %j : i32
}
%out = arith.addf %a, %a : tensor<4xf32>"""
NESTED = """%n0 = arith.constant 0 : i32
%n1 = arith.constant 1 : i32
%n2 = arith.constant 2000000000 : i32
scf.for %i = %n0 to %n2 step %n1  : i32 {
scf.for %j = %n0 to %n2 step %n1  : i32 {
}
}
%out = arith.addf %a, %a : tensor<4xf32>"""


@pytest.mark.parametrize("lines", [FOREVER, NESTED])
@pytest.mark.parametrize("limits", [Limits(steps=1000), Limits(seconds=0.05)])
def test_a_loop_without_end_is_stopped(lines: str, limits: Limits) -> None:
    program = Program(parse(module(lines, ["f32"], "f32")))
    tensors = [("a", torch.zeros(N)), ("out", torch.zeros(N))]
    with pytest.raises(Stopped, match=r"steps of a program|s of computing"):
        program.launch((1, 1, 1), tensors, limits=limits)


@triton.jit
def _given():
    pass


ADD = "%out = arith.addf %a, %a : tensor<4xf32>"
DEEP = "\n".join(["%c = arith.constant true", *["scf.if %c {"] * 100, *["}"] * 100, ADD])
CALLED = f"%z = tt.call @kernel(%a_ptr, %out_ptr) : (!tt.ptr<f32>, !tt.ptr<f32>) -> i32\n{ADD}"
HOSTILE = {
    "long text": "x" * (9 << 20),
    "long line": module("%c = arith.constant true " + "x" * (1 << 17), ["f32"], "f32"),
    "many lines": module("\n".join(["%c = arith.constant true"] * 250_000), ["f32"], "f32"),
    "deep regions": module(DEEP, ["f32"], "f32"),
    "calls itself": module(CALLED, ["f32"], "f32"),
    "a range of 2**40": module(
        "%big = tt.make_range {end = 1099511627776 : i32, start = 0 : i32} : tensor<4xi32>\n" + ADD,
        ["f32"], "f32",
    ),
    "a table of code": module("%out = arith.constant dense<[__import__, 1]> : tensor<2xf32>",
                              ["f32"], "f32"),
    "a number of digits": module(f"%i = arith.constant {'9' * 15_000} : i32\n{ADD}",
                                 ["f32"], "f32"),
    "numbers and floats": module("%out = arith.addf %a, %at : tensor<4xf32>", ["f32"], "f32"),
    "another shape": module("%b = tt.reshape %a : tensor<4xf32> -> tensor<8xf32>\n" + ADD,
                            ["f32"], "f32"),
    "axes that are none": module(
        "%b = tt.expand_dims %a {axis = 9 : i32} : tensor<4xf32> -> tensor<4x1xf32>\n" + ADD,
        ["f32"], "f32",
    ),
    "places without end": module(ADD + " loc(#loc1)", ["f32"], "f32")
    + "#loc1 = loc(callsite(#loc1 at #loc1))\n",
    "places that double": module(ADD + " loc(#loc0)", ["f32"], "f32")
    + "".join(f"#loc{n} = loc(callsite(#loc{n + 1} at #loc{n + 1}))\n" for n in range(5000)),
    "no kernel": "module {\n}\n",
    "no TTIR": "\0\xff {{{ (((",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_do_no_harm(name: str) -> None:
    tensors = (("a", torch.zeros(N)), ("out", torch.zeros(N)))
    engine = Engine("", limits=Limits(steps=10_000, seconds=1.0))
    kernel = Kernel(_given, "kernel", HOSTILE[name], {}, by_blocks=False)
    start = time.process_time()
    if name.startswith(("places", "numbers")):
        engine.launch(Launch(kernel, (1, 1, 1), tensors))
    else:
        with pytest.raises((BadText, Unmodelled, Stopped, Failed)):
            engine.launch(Launch(kernel, (1, 1, 1), tensors))
    assert time.process_time() - start < 5.0


HANDED = """module {
tt.func public @kernel(%q: !tt.ptr<f32>, %k: !tt.ptr<f32>, %dq: !tt.ptr<f32>, %dk: !tt.ptr<f32>, %out: !tt.ptr<f32>, %n: i32) {
%c0 = arith.constant 0 : i32
%c1 = arith.constant 1 : i32
%yes = arith.cmpi slt, %c0, %n : i32
%ends:2 = scf.for %i = %c0 to %n step %c1 iter_args(%a = %q, %b = %dq) -> (!tt.ptr<f32>, !tt.ptr<f32>)  : i32 {
%v = tt.load %a : !tt.ptr<f32>
tt.store %b, %v : !tt.ptr<f32>
%a2 = tt.addptr %a, %c1 : !tt.ptr<f32>, i32
%b2 = tt.addptr %b, %c1 : !tt.ptr<f32>, i32
scf.yield %a2, %b2 : !tt.ptr<f32>, !tt.ptr<f32>
}
%moved:2 = tt.call @"moved"(%k, %dk) : (!tt.ptr<f32>, !tt.ptr<f32>) -> (!tt.ptr<f32>, !tt.ptr<f32>)
%w = tt.load %moved#0 : !tt.ptr<f32>
cf.cond_br %yes, ^bb1(%moved#1 : !tt.ptr<f32>), ^bb2
^bb1(%here: !tt.ptr<f32>):
tt.store %here, %w : !tt.ptr<f32>
cf.br ^bb2
^bb2:
tt.return
}
tt.func private @"moved"(%r: !tt.ptr<f32>, %s: !tt.ptr<f32>) -> (!tt.ptr<f32>, !tt.ptr<f32>) {
tt.return %r, %s : !tt.ptr<f32>, !tt.ptr<f32>
}
}
"""  # noqa: E501  (a line of TTIR is one line)


ANYWHERE = "%p = tt.int_to_ptr %n64 : i64 -> !tt.ptr<f32>\n%yes ="


@pytest.mark.parametrize(
    ("old", "new", "stored"),
    [
        ("%yes =", "%yes =", "dq dk"),
        ("store %b,", "store %a,", "q dk"),
        ("scf.yield %a2, %b2", "scf.yield %b2, %a2", "q dq dk"),
        ("store %here,", "store %moved#0,", "k dq"),
        ("return %r, %s", "return %s, %r", "k dq"),
        ("%yes =", "%n64 = arith.extsi %n : i32 to i64\n" + ANYWHERE, "q k dq dk out n"),
    ],
)
def test_loops_calls_and_jumps_keep_what_is_loaded_from_what_is_stored_to(old, new, stored) -> None:
    parsed = parse(HANDED.replace(old, new))
    assert {parsed.names[value] for value in stored_to(parsed)} == set(stored.split())
