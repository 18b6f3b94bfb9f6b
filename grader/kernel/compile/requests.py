"""Counts the sectors of memory that the requests of a launch's loads and stores take.

A request is what the 32 lanes of a warp ask for with one instruction: 1 to 16 bytes each. Memory
answers in sectors of 32 bytes, so that lanes whose bytes lie side by side share sectors, and lanes
that lie apart need one each. Source: "Coalesced Access to Global Memory" in NVIDIA's CUDA C++ Best
Practices Guide 13.0. The addresses are those that the machine computes, for three programs of the
launch; which lane asks for which, and how many bytes at a time, is what the compiler chose.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import torch

from grader.kernel.compile.layouts import Accessed, UnknownLayout, elements
from grader.kernel.compile.listing import Listing
from grader.kernel.machine.arrays import same_programs, whole
from grader.kernel.machine.visits import Seen
from grader.spec.kernel_report import SECTOR

_NOWHERE = -1
_LARGEST = 16  # bytes that a lane can ask for at once


@dataclasses.dataclass(frozen=True, eq=False)
class Requests:
    """The requests of one load or store in the kernel's text.

    `sectors` and `least` are means per request: of the sectors that it takes, and that its bytes
    would take side by side. `requests` is how many requests one program makes in one visit of the
    access, `bytes` what a lane asks for in one. `lanes` has the first byte of each lane of one
    request, counted from a sector's start, and -1 for a lane that asks for nothing; it takes
    `taken` sectors, and `needed` would do. `apart` is the usual distance of neighbours in bytes.
    """

    seen: Seen
    sectors: float
    least: float
    requests: float
    bytes: int
    lanes: tuple[int, ...]
    taken: int
    needed: int
    apart: int


def requests(
    code: Listing, layouts: Sequence[Accessed], accesses: Sequence[Seen]
) -> Iterator[Requests]:
    """Yield the requests of the accesses of which the compiler's layout is known."""
    by_place: dict[tuple, set[str]] = defaultdict(set)
    for laid in layouts:
        by_place[laid.kind, laid.place.file, laid.place.line, laid.shape].add(laid.encoding)
    for seen in accesses:
        place = seen.op.place
        encodings = by_place[seen.kind, place.file, place.line, seen.shape]
        if len(encodings) != 1:
            continue  # the compiler moved it, or it goes through TMA, whose lanes ask for nothing
        try:
            lanes = elements(*encodings, seen.shape)
        except UnknownLayout:
            continue
        size = _bytes_of(code, seen) or _contiguous(seen, lanes)
        stores = _first(lanes) if seen.kind == "store" else torch.ones_like(lanes, dtype=torch.bool)
        found = _counted(seen, lanes, stores, max(size, seen.width))
        if found is not None:
            yield found


def _bytes_of(code: Listing, seen: Seen) -> int:
    """Return how many bytes a lane moves at a time in the machine code, 0 if the line has none."""
    sizes: Counter[int] = Counter()
    for block in code.blocks:
        for (line, kind, size), count in block.widths.items():
            if (line, kind) == ((seen.op.place.file, seen.op.place.line), seen.kind):
                sizes[size] += count
    return sizes.most_common(1)[0][0] if sizes else 0


def _contiguous(seen: Seen, lanes: torch.Tensor) -> int:
    """Return how many bytes of a lane lie side by side, 16 at the most."""
    size = seen.width
    addresses = whole(seen.rounds[0][0], seen.shape, 1)[0].reshape(-1)[lanes]
    while size < _LARGEST and 2 * size // seen.width <= lanes.shape[2]:
        together = addresses.unflatten(2, (-1, 2 * size // seen.width))
        if not bool((together.diff(dim=3) == seen.width).all()):
            break
        size *= 2
    return size


def _first(lanes: torch.Tensor) -> torch.Tensor:
    """Return which lanes store: of lanes that hold the same element, the first."""
    numbers = torch.arange(lanes.numel())
    firsts = torch.full((int(lanes.max()) + 1,), lanes.numel())
    firsts.scatter_reduce_(0, lanes.reshape(-1), numbers, "amin")
    return firsts[lanes] == numbers.reshape(lanes.shape)


def _counted(seen: Seen, lanes: torch.Tensor, asking: torch.Tensor, size: int) -> Requests | None:
    each = min(size // seen.width, lanes.shape[2])
    addresses, active = [], []
    for pointers, mask in seen.rounds:
        mask = torch.ones((1,) * pointers.dim(), dtype=torch.bool) if mask is None else mask
        tiles = same_programs([pointers, mask], [seen.shape] * 2)
        flat, on = (tile.reshape(len(tile), -1)[:, lanes] for tile in tiles)
        addresses.append(flat)
        active.append(on & asking)
    every, on = torch.cat(addresses), torch.cat(active)
    visits, registers = len(every), every.shape[-1]
    # (visits, warps, lanes, requests, each) -> (requests of all, lanes, each)
    shape = (visits, *every.shape[1:3], registers // each, each)
    every = every.reshape(shape).movedim(3, 2).reshape(-1, every.shape[2], each)
    on = on.reshape(shape).movedim(3, 2).reshape(every.shape)
    made = on.flatten(1).any(1)
    if not bool(made.any()):
        return None
    every, on = every[made], on[made]
    taken = _distinct(every // SECTOR, on)
    least = -(-_distinct(every, on) * seen.width // SECTOR)
    shown = int((taken / least).argmax())
    first, asks = every[shown].amin(1), on[shown].any(1)
    low = int(first[asks].min()) // SECTOR * SECTOR
    places = torch.where(asks, first - low, _NOWHERE)
    steps = first.diff()[asks[1:] & asks[:-1]].abs()
    return Requests(
        seen,
        float(taken.double().mean()),
        float(least.double().mean()),
        len(every) / visits,
        each * seen.width,
        tuple(places.tolist()),
        int(taken[shown]),
        int(least[shown]),
        int(steps.mode()[0]) if len(steps) else 0,
    )


def _distinct(values: torch.Tensor, on: torch.Tensor) -> torch.Tensor:
    """Return how many different values each row has where it is on."""
    flat, chosen = values.flatten(1), on.flatten(1)
    ordered = torch.where(chosen, flat, _NOWHERE).sort(1)[0]
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return (new & (ordered != _NOWHERE)).sum(1)
