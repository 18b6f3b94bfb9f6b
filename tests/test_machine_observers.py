"""What observers of the tile machine see in small kernels: each mistake, and no mistake."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from grader.kernel.machine.engine import Engine
from grader.kernel.observers.watch import Races, Watch
from tests.on_machine import machine_in_process


@pytest.fixture
def observed() -> Iterator[Any]:
    """Let kernels run on the machine, seen by what it is called with."""
    own = Engine(__file__)
    own.reset(far=True)
    with machine_in_process(own, globals()) as engine, contextlib.ExitStack() as stack:

        def observe(observer: Any) -> Any:
            stack.enter_context(engine.watched(observer))
            return observer

        yield observe


@triton.jit
def rows(x, y, stride, columns, n: tl.constexpr, kind: tl.constexpr):
    p = tl.program_id(0)
    i = tl.arange(0, n)
    v = tl.load(x + p * stride + i, mask=i < columns, other=0.0)
    if kind == "store":
        tl.store(y + p * columns + i, v, mask=i < columns)
    elif kind == "overlap":
        tl.store(y + p * (columns - 1) + i, v + p, mask=i < columns)
    elif kind == "alike":
        tl.store(y + i, v * 0, mask=i < columns)
    elif kind == "sum":
        tl.atomic_add(y + i, v, mask=i < columns)
    elif kind == "in place":
        tl.store(x + p * columns + i, v + 1, mask=i < columns)
    elif kind == "neighbour":
        w = tl.load(y + (p + 1) % tl.num_programs(0) * columns + i, mask=i < columns)
        tl.store(y + p * columns + i, v + w, mask=i < columns)
    elif kind == "close":  # another order of sums
        tl.store(y + i, 1.0 + 2e-7 * p, mask=i < columns)
    elif kind == "update":
        tl.store(y + i, tl.load(y + i, mask=i < columns) + v, mask=i < columns)
    elif kind == "update of one":  # the others only read
        w = tl.load(y + i, mask=i < columns)
        tl.store(y + i, v + w, mask=(i < columns) & (p == 1))
    elif kind == "bounds":
        tl.store(y + i, tl.where(i == 0, float("nan"), float("-inf")), mask=i < columns)
    elif kind == "apart":
        tl.store(y + i, 1.0 + 0.03 * p, mask=i < columns)
    elif kind == "infinite":
        tl.store(y + i, tl.where(p == 1, float("inf"), 1.0), mask=i < columns)
    elif kind == "locked":
        lock = (y + 4 * columns).to(tl.pointer_type(tl.int32))
        while tl.atomic_cas(lock, 0, 1) == 1:
            pass
        tl.store(y + i, tl.load(y + i, mask=i < columns) + v, mask=i < columns)
        tl.atomic_xchg(lock, 0)
    elif kind == "told":
        tl.store(y + p * columns + i, v, mask=i < columns)
        if tl.atomic_add((y + 4 * columns).to(tl.pointer_type(tl.int32)), 1) == 3:
            tl.store(y + i, tl.load(y + columns + i, mask=i < columns), mask=i < columns)


@pytest.mark.parametrize(
    ("kind", "does"),
    [
        *[(kind, None) for kind in ("store", "alike", "sum", "in place", "told")],
        *[(kind, None) for kind in ("close", "bounds", "locked")],
        *[(kind, "stores to") for kind in ("apart", "infinite")],
        ("overlap", "stores to"),
        *[(kind, "reads") for kind in ("neighbour", "update", "update of one")],
    ],
)
def test_races(observed: Any, kind: str, does: str | None) -> None:
    races = observed(Races())
    x = torch.randn(4, 6)
    rows[(4,)](x, torch.zeros(25), 6, 6, 8, kind)
    assert [(race.does, race.name) for race in races.found] == ([(does, "y")] if does else [])
    assert [number for number, _ in races.updates] == [0] * (kind == "update")


@triton.jit
def both(x, y, z, n: tl.constexpr):
    p, i = tl.program_id(0), tl.arange(0, n)
    v = tl.load(x + p * n + i)
    tl.store(y + p * n + i, v)
    tl.store(z + i, v)


def test_a_race_is_told_of_the_results_that_it_reaches(observed: Any) -> None:
    watch = observed(Watch(__file__))
    x, y, z, of_y, of_z = torch.randn(4, 8), *(torch.zeros(4, 8) for _ in range(4))
    both[(4,)](x, y, z, 8)
    rows[(4,)](y, of_y, 8, 8, 8, "store")
    rows[(4,)](z, of_z, 8, 8, 8, "store")
    results = {"x": x, "y": y, "z": z, "of_y": of_y, "of_z": of_z}
    ((line, text, does, names),) = watch.races_of(results)
    assert names == ["z", "of_z"] and "race for z" in text and does == "stores to"
    assert "tl.store(z + i, v)" in Path(__file__).read_text("utf-8").splitlines()[line - 1]
    assert not watch.races_of({"x": x, "y": y, "of_y": of_y})
    both[(4,)](x, of_y, y, 8)  # another one, and the first still reaches what it reached
    told = watch.races_of(results)
    assert [names for *_, names in told] == [["z", "of_z"], ["y"]]


@triton.jit
def far(x, y, stride, n: tl.constexpr, wide: tl.constexpr):
    p = tl.program_id(0)
    if wide:
        p = p.to(tl.int64)
    hashed = tl.program_id(0) * 2000000011 + 5
    place = p * stride
    for _ in range(2):
        place += stride
    tl.store(y + tl.arange(0, n) + place % 4, hashed.to(tl.float32))


@pytest.mark.parametrize("wide", [False, True])
def test_offsets_that_wrap_around(wide: bool) -> None:
    engine = Engine(__file__)
    engine.reset(far=True)
    with machine_in_process(engine, globals()):
        far[(3,)](torch.zeros(4), torch.zeros(9), 2**30, 4, wide)
    assert [place.name for place in engine.wraps] == ([] if wide else ["place"])
