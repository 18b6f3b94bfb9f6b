"""Computes what a launch asks of a chip, from how often each part of its machine code runs.

The counts are known for regions of the kernel's text. This module matches blocks and loops of the
machine code with them by the source lines that they come from, and loops by their order, too.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import torch

from grader.kernel.compile.listing import Listing, Mix
from grader.kernel.machine.visits import Region, Visited

Place = tuple[str, int]
_LEAST_ALIKE = 0.05


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of the programs of a launch.

    `kinds` (programs,) has one number for all programs that do the same, and `sizes` the number of
    programs of each kind. `mixes` has all that a warp of each kind asks for, `by_line` the sum over
    one warp of each program, by source line. `macs`, `loaded` and `stored` (bytes) are those of all
    programs by the kernel's text; `tensor_cores` says that the machine code uses them.
    """

    kinds: torch.Tensor
    sizes: torch.Tensor
    mixes: tuple[Mix, ...]
    by_line: dict[Place, Mix]
    macs: float
    loaded: float
    stored: float
    tensor_cores: bool = True


def work(code: Listing, visits: Visited, num_warps: int) -> Work:
    """Return what a launch asks for, given how often its programs run the regions of its text."""
    loops = _matched(code, visits.regions)
    unrolled = {
        number: _unrolled(code, code.loops[number], region, visits.regions, num_warps)
        for number, region in loops.items()
    }
    counts, kinds, sizes = torch.unique(
        visits.counts, dim=1, return_inverse=True, return_counts=True
    )
    runs = torch.zeros((len(code.blocks), counts.shape[1]), dtype=torch.float64)
    outside = [region for region in visits.regions if region.around is None]
    for number, block in enumerate(code.blocks):
        inside = _innermost(code.loops, number)
        if inside is None:
            region, factor = _region_of(block.lines, outside), 1
        elif inside not in loops:  # the remainder of a loop that the assembler unrolled
            continue
        else:
            within = [region for region in visits.regions if region.around is loops[inside]]
            region, factor = _region_of(block.lines, within), unrolled[inside]
        runs[number] = counts[region.number] / factor
    mixes, by_line = [Mix() for _ in range(counts.shape[1])], collections.defaultdict(Mix)
    for number, block in enumerate(code.blocks):
        whole = block.mix
        for kind, mix in enumerate(mixes):
            mix += whole * float(runs[number, kind])
        total = float((runs[number] * sizes).sum())
        for line, mix in block.mixes.items():
            by_line[line] += mix * total
    totals = visits.counts.sum(1).tolist()
    macs, loaded, stored = (
        float(sum(getattr(r, name) * totals[r.number] for r in visits.regions))
        for name in ("macs", "loaded", "stored")
    )
    dots = any(block.mix.macs for block in code.blocks)
    return Work(kinds, sizes, tuple(mixes), dict(by_line), macs, loaded, stored, dots)


def _innermost(loops: Sequence[tuple[int, int]], block: int) -> int | None:
    around = [(last - first, n) for n, (first, last) in enumerate(loops) if first <= block <= last]
    return min(around)[1] if around else None


def _around(region: Region | None) -> list[Region]:
    """Return a region and those around it."""
    return [region, *_around(region.parent)] if region is not None else []


def _region_of(lines: collections.Counter[Place], regions: Sequence[Region]) -> Region:
    """Return the region of most instructions, by lines that only one region has."""
    votes: collections.Counter[int] = collections.Counter()
    for line, count in lines.items():
        having = [region for region in regions if line in region.lines]
        if len(having) == 1:
            votes[having[0].number] += count
    best = votes.most_common(1)
    return next((r for r in regions if best and r.number == best[0][0]), regions[0])


def _matched(code: Listing, regions: Sequence[Region]) -> dict[int, Region]:
    """Map the number of each loop of the machine code to its loop in the text."""
    texts = [region for region in regions if region.loop]
    lines = [
        {line for region in regions if loop in _around(region) for line in region.lines}
        for loop in texts
    ]
    codes = [
        set().union(*(block.lines for block in code.blocks[first : last + 1]))
        for first, last in code.loops
    ]
    depths = [sum(one.loop for one in _around(region)) for region in texts]
    deep = [sum(a <= first and last <= b for a, b in code.loops) for first, last in code.loops]
    alike = [
        [len(a & b) / max(1, len(a | b)) if deep[i] == depths[j] else 0.0
         for j, b in enumerate(lines)]
        for i, a in enumerate(codes)
    ]  # fmt: skip
    # Choose the pairs, in the order of both, whose likenesses have the largest sum.
    best = [[(0.0, ())] * (len(texts) + 1) for _ in range(len(codes) + 1)]
    for i in range(len(codes)):
        for j in range(len(texts)):
            choices = [best[i][j + 1], best[i + 1][j]]
            if alike[i][j] > _LEAST_ALIKE:
                before = best[i][j]
                choices.append((before[0] + alike[i][j], (*before[1], (i, j))))
            best[i + 1][j + 1] = max(choices, key=lambda choice: choice[0])
    return {i: texts[j] for i, j in best[-1][-1][1]}


def _unrolled(
    code: Listing, loop: tuple[int, int], region: Region, regions: Sequence[Region], num_warps: int
) -> int:
    """Return how many rounds of the text one round of the machine code does."""
    mix = Mix()
    for number, block in enumerate(code.blocks):
        if loop[0] <= number <= loop[1] and code.loops[_innermost(code.loops, number)] == loop:
            mix += block.mix
    inside = [r for r in regions if r.around is region]
    expected = sum(r.macs for r in inside), sum(r.loaded for r in inside)
    found = mix.macs, mix.global_bytes
    # Warps that repeat work raise one of these, loads of another loop the other: the least counts.
    rounds = [f * num_warps / e for f, e in zip(found, expected, strict=True) if f and e]
    return max(1, round(min(rounds, default=1.0)))
