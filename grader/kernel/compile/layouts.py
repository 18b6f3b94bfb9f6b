"""Reads in TTGIR which lane of a warp holds which element of a tile that is loaded or stored.

A layout is written as Triton's linear layouts are: an element's place is the exclusive or of one
base for each bit that is set in the numbers of its register, its lane and its warp. Source: the
header include/triton/Tools/LinearLayout.h of Triton 3.6, and Dialect/TritonGPU/IR of its encodings.
Triton's own bindings end the process on a layout that they do not know.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import torch

from grader.kernel.machine.parse import Places, types_of
from grader.kernel.machine.ttir import NotMeasured, Place, split

_ALIAS = re.compile(r"^(#\w+) = (#ttg\..*)$", re.MULTILINE)
_ACCESS = re.compile(
    r"\b(tt\.load|tt\.store|ttg\.async_copy_global_to_local) .* : (.*) loc\((#loc\d*)\)$"
)
_SLICE = re.compile(r"#ttg\.slice<\{dim = (\d+), parent = (.*)\}>")
_POINTERS = re.compile(r"tensor<((?:\d+x)+)(!tt\.ptr<.*?>), (#.*)>")
_LISTS = re.compile(r"(\w+) = \[([^a-zA-Z]*)\]")
_MMA_LANES = ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0))
Bases = dict[str, list[tuple[int, ...]]]


class UnknownLayout(NotMeasured):
    """A layout is of a kind that this module cannot read."""


@dataclasses.dataclass(frozen=True)
class Accessed:
    """A load or a store of pointers, as the compiler lays it out; `encoding` has no aliases."""

    kind: str
    place: Place
    shape: tuple[int, ...]
    encoding: str


def accessed(text: str) -> list[Accessed]:
    """Return the loads and stores in a text of TTGIR that go through pointers of their lanes."""
    places, aliases = Places(text), dict(_ALIAS.findall(text))
    found = []
    for row in text.splitlines():
        match = _ACCESS.search(row)
        pointers = _POINTERS.fullmatch(split(match[2].partition(" -> ")[0])[0]) if match else None
        if match is None or pointers is None:
            continue
        encoding = re.sub(r"#\w+\b(?!\.)", lambda m: aliases.get(m[0], m[0]), pointers[3])
        kind = "store" if match[1] == "tt.store" else "load"
        shape = types_of(f"tensor<{pointers[1]}{pointers[2]}>")[0].shape
        found.append(Accessed(kind, places.of(match[3]), shape, encoding))
    return found


def elements(encoding: str, shape: Sequence[int]) -> torch.Tensor:
    """Return which element of a tile each register of each lane holds: (warps, lanes, registers).

    Elements are numbered with the last axis first; registers that repeat others are left out.

    Raises:
        UnknownLayout: the encoding is none of blocked, slice, linear and nvidia_mma, or one for
            several thread blocks.
    """
    bases = bases_of(encoding, shape)
    found = torch.zeros(1, dtype=torch.int64)
    for part in ("register", "lane", "warp"):
        for base in bases[part]:
            number = 0
            for size, at in zip(shape, base, strict=True):
                number = number * size + at
            found = torch.cat([found, found ^ number])
    registers, lanes = (2 ** len(bases[part]) for part in ("register", "lane"))
    return found.reshape(-1, lanes, registers)


def bases_of(encoding: str, shape: Sequence[int]) -> Bases:
    """Return the bases of registers, lanes and warps for a tile, repetitions by warps included."""
    if match := _SLICE.fullmatch(encoding):
        dim = int(match[1])
        whole = bases_of(match[2], (*shape[:dim], 1, *shape[dim:]))
        cut = {part: [(*b[:dim], *b[dim + 1 :]) for b in those] for part, those in whole.items()}
        return cut | {"register": [b for b in cut["register"] if any(b)]}
    lists = {name: text for name, text in _LISTS.findall(encoding)}
    if _numbers(lists.get("CGALayout", "")) or _numbers(lists.get("block", "")):
        raise UnknownLayout("a layout over several thread blocks")
    grown = _Grown(tuple(shape))
    if encoding.startswith("#ttg.blocked"):
        order = _numbers(lists["order"])
        for part, name in (("register", "sizePerThread"), ("lane", "threadsPerWarp"),
                           ("warp", "warpsPerCTA")):  # fmt: skip
            grown.add(part, _numbers(lists[name]), order)
    elif encoding.startswith("#ttg.linear"):
        order = range(len(shape))
        for part in grown.bases:
            grown.give(part, re.findall(r"\[([\d, ]+)\]", lists[part]))
    elif encoding.startswith("#ttg.nvidia_mma") and len(shape) == 2:
        hopper = "versionMajor = 3" in encoding
        columns = _numbers(lists["instrShape"])[1]
        grown.give("register", ("0, 1", "8, 0"))
        grown.give("lane", (f"{row}, {column}" for row, column in _MMA_LANES))
        grown.size = [16, 8]
        order = (1, 0)
        grown.add("register", (1, columns // 8), order)
        grown.add("warp", _numbers(lists["warpsPerCTA"]), (0, 1) if hopper else order)
    else:
        raise UnknownLayout(f"a layout {encoding[:60]}")
    grown.fill(order)
    return grown.bases


class _Grown:
    """Bases that cover a growing part of a tile, and repeat elements beyond the tile's size."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.bases: Bases = {"register": [], "lane": [], "warp": []}
        self.size = [1] * len(shape)
        self._shape = shape

    def add(self, part: str, times: Sequence[int], order: Sequence[int]) -> None:
        """Repeat the covered part `times` along each axis, in the order of the axes."""
        for axis in order:
            for _ in range(times[axis].bit_length() - 1):
                self._put(part, tuple(self.size[axis] * (axis == n) for n in range(len(self.size))))
                self.size[axis] *= 2

    def give(self, part: str, texts: Sequence[str]) -> None:
        """Add bases from their texts."""
        for base in map(_numbers, texts):
            self._put(part, base)
            self.size = [max(old, 2 * at) for old, at in zip(self.size, base, strict=True)]

    def fill(self, order: Sequence[int]) -> None:
        """Let registers cover the rest of the tile."""
        left = [max(1, all_ // size) for all_, size in zip(self._shape, self.size, strict=True)]
        self.add("register", left, order)

    def _put(self, part: str, base: tuple[int, ...]) -> None:
        inside = tuple(at if at < size else 0 for at, size in zip(base, self._shape, strict=True))
        if any(inside) or part != "register":
            self.bases[part].append(inside)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))
