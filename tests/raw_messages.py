"""Makes Triton say what it says of wrong kernels: `python -m tests.raw_messages` prints it as JSON.

They are launched on the machine, in whose front end a worker meets them.
"""

# ruff: noqa: F821 - names that are missing are the point
import json
import sys
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from grader.checks.outcome import of_result
from grader.kernel.compile import faults
from grader.kernel.machine.engine import Engine
from tests.on_machine import machine_in_process

SIZE = 16


def plain(a):
    return a * 2


@triton.jit
def nothing(x, y):
    pass


@triton.jit
def bitcast(x, y, n):
    tl.store(y + tl.arange(0, 16), tl.load(x + tl.arange(0, 16)).to(tl.int16, bitcast=True))


@triton.jit
def shapes(x, y, n):
    tl.store(y + tl.arange(0, 16), tl.load(x + tl.arange(0, 16)) + tl.load(x + tl.arange(0, 32)))


@triton.jit
def not_a_power(x, y, n):
    tl.store(y + tl.arange(0, 48), 1.0)


@triton.jit
def size_at_run_time(x, y, n):
    tl.store(y + tl.arange(0, n), 1.0)


@triton.jit
def shape_at_run_time(x, y, n):
    tl.store(y, tl.zeros((n, 16), tl.float32))


@triton.jit
def type_changes(x, y, n):
    acc = 0
    for i in range(n):
        acc += tl.load(x + i)
    tl.store(y, acc)


@triton.jit
def shape_changes(x, y, n):
    acc = tl.zeros((16,), tl.float32)
    for _ in range(n):
        acc = tl.zeros((32,), tl.float32)
    tl.store(y + tl.arange(0, 16), acc)


@triton.jit
def small_dot(x, y, n):
    at = tl.arange(0, 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(y + at, tl.dot(tl.load(x + at), tl.load(x + at)))


@triton.jit
def dot_of_an_axis_more(x, y, n):
    tile = tl.load(x + tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :])
    tl.store(y, tl.sum(tl.dot(tile, tile[None, :, :])))


@triton.jit
def dot_not_transposed(x, y, n):
    at = tl.arange(0, 16)[:, None] * 32 + tl.arange(0, 32)[None, :]
    tl.store(y + at, tl.dot(tl.load(x + at), tl.load(x + at)))


@triton.jit
def dot_of_two_types(x, y, n):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(y + at, tl.dot(tl.load(x + at), tl.load(x + at).to(tl.float16)))


@triton.jit
def dot_of_offsets(x, y, n):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(y + at, tl.dot(tl.load(x + at), at))


@triton.jit
def transposed_pointer(x, y, n):
    tl.store(y, tl.trans(x))


@triton.jit
def offset_with_a_fraction(x, y, n):
    tl.store(y, tl.load(x + n / 2))


@triton.jit
def maximum_of_a_pointer(x, y, n):
    tl.store(y, tl.maximum(tl.load(x), x * 2.0))


@triton.jit
def arguments_exchanged(x, y, n):
    tl.store(y, tl.load(tl.arange(0, 1) * x + n))


@triton.jit
def no_such_function(x, y, n):
    tl.store(y, tl.softplus(tl.load(x)))


@triton.jit
def global_value(x, y, n):
    tl.store(y + tl.arange(0, SIZE), 1.0)


@triton.jit
def undefined(x, y, n):
    tl.store(y, tl.load(x) * scale)


@triton.jit
def assigned_in_an_if(x, y, n):
    if n > 3:
        a = tl.load(x)
    tl.store(y, a)


@triton.jit
def helper_without_jit(x, y, n):
    tl.store(y, plain(tl.load(x)))


@triton.jit
def chained(x, y, n):
    tl.store(y + tl.arange(0, 16), 1.0, mask=0 < tl.arange(0, 16) < n)


@triton.jit
def if_of_a_tile(x, y, n):
    if tl.arange(0, 16) < n:
        tl.store(y, 1.0)


@triton.jit
def index(x, y, n):
    tl.store(y, tl.load(x + tl.arange(0, 16))[0])


@triton.jit
def slice_of_a_tile(x, y, n):
    tl.store(y, tl.load(x + tl.arange(0, 16))[:4])


@triton.jit
def break_in_a_loop(x, y, n):
    for i in range(n):
        if i > 3:
            break
    tl.store(y, 1.0)


@triton.jit
def return_from_a_loop(x, y, n):
    for i in range(n):
        if i > 3:
            return
    tl.store(y, 1.0)


@triton.jit
def list_of_tiles(x, y, n):
    tl.store(y, [tl.load(x + i) for i in range(4)])


@triton.jit
def load_of_a_number(x, y, n):
    tl.store(y, tl.load(n))


@triton.jit
def tile_to_one_pointer(x, y, n):
    tl.store(y, tl.load(x + tl.arange(0, 16)))


@triton.jit
def exponential_of_an_integer(x, y, n):
    tl.store(y, tl.exp(n))


@triton.jit
def bounds_of_fractions(x, y, n):
    for _ in range(0, n / 2):
        tl.store(y, 1.0)


@triton.jit
def dim_for_axis(x, y, n):
    tl.store(y, tl.max(tl.load(x + tl.arange(0, 16)), dim=0))


@triton.jit
def method_of(x, y, number):
    tl.store(y + number.to(tl.int64), 1.0)


def method_of_an_argument_that_is_1(x, y, n):
    method_of[(1,)](x, y, 1)


class Tile(NamedTuple):
    rows: int


@triton.jit
def zeros_of_a_tile(x, y, tile: tl.constexpr):
    tl.store(y + tl.arange(0, tile.rows), tl.zeros((tile.rows,), tl.float32))


def field_of_a_constexpr(x, y, n):
    zeros_of_a_tile[(1,)](x, y, Tile(16))


def launch_without_a_grid(x, y, n):
    bitcast(x, y, n)


def grid_of_a_number(x, y, n):
    nothing[4](x, y)


def function_of_tl_outside(x, y, n):
    tl.load(x)


def argument_left_out(x, y, n):
    bitcast[(1,)](None, y, n)


@triton.jit
def helper_that_calls_itself(n):
    return helper_that_calls_itself(n - 1) if n > 0 else n


@triton.jit
def recursion(x, y, n):
    tl.store(y, helper_that_calls_itself(n))


def main() -> None:
    told = {}
    for name, case in dict(globals()).items():
        function = getattr(case, "fn", case)
        arguments = getattr(getattr(function, "__code__", None), "co_varnames", ())[:3]
        if getattr(function, "__module__", None) != __name__ or arguments != ("x", "y", "n"):
            continue
        launched = case[(1,)] if isinstance(case, triton.JITFunction) else case
        try:
            launched(torch.ones(4096), torch.zeros(4096), 9)
            told[name] = None
        except Exception as error:
            reply = faults.explain(0, error, __file__, importing=False)
            outcome = of_result(reply)
            told[name] = [f"{reply.error_type}: {reply.text}", outcome.help if outcome else None]
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    with machine_in_process(Engine(__file__)):
        main()
