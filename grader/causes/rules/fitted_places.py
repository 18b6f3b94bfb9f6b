"""Finds results whose numbers, or the parts that are summed up in them, are in other places.

A tensor that is stored with its axes in one order and read in another holds the right numbers in
wrong places. If it holds the partial results of programs that share a sum, each sum is made of
parts of other rows or heads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from grader.causes.outputs import TILES, Outputs
from grader.causes.rules.head import NAMES
from grader.causes.rules.sighting import Sighting, by_numbers
from reference.variants import attend
from reference.variants_backward import row_delta

_SAME = 1e-4  # relative, of two numbers that fp32 computes
_UNEXPLAINED = 2e-3  # of the error of a result, at most
_AXES = ("batch", "heads", "seqlen", "head_dim")
_OF_GROUPS = ("batch", "kv_heads", "group", "seqlen", "head_dim")
_COLUMNS = 4  # of head_dim: parts of an output show their order in a few
_SPLITS = (2, 3, 4, 8, 16)
_LENGTHS = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # what a split is a multiple of


class _Parts(NamedTuple):
    """Numbers with named axes, and a last axis without a name; those in `summed` are added up."""

    numbers: torch.Tensor
    axes: tuple[str, ...]
    summed: tuple[str, ...]
    of: str  # in words

    def reordered(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Yield two orders of the axes, and the sums where one is stored and the other read.

        The axes of a result are read, or were stored, as they are named.
        """
        sizes = dict(zip(self.axes, self.numbers.shape, strict=False))
        axes = [name for name in self.axes if sizes[name] > 1]
        numbers = self.numbers.reshape(*(sizes[name] for name in axes), -1)
        summed = [axes.index(name) for name in self.summed if name in axes]
        named, last = tuple(range(len(axes))), len(axes)
        for stored, read in itertools.product(itertools.permutations(named), repeat=2):
            if stored == read or (not self.summed and named not in (stored, read)):
                continue
            memory = numbers.permute(*stored, last).reshape(
                *(numbers.shape[axis] for axis in read), -1
            )
            found = memory.permute(*(read.index(axis) for axis in named), last)
            words = (", ".join(axes[axis] for axis in order) for order in (stored, read))
            yield *words, found.sum(summed) if summed else found


def in_other_places(wrong: Outputs) -> Sighting | None:
    """Find a result whose numbers are the right ones, in another order."""
    for name in ("out", "lse", *NAMES):
        if not _is_wrong(wrong, name):
            continue
        got, truth = wrong.got[name], wrong.expected.truth[name]
        axes, numbers, group = _AXES, truth, wrong.known.group_size
        if truth.shape[1] == wrong.known.num_q_heads > group > 1:
            axes, numbers = _OF_GROUPS, truth.unflatten(1, (-1, group))
        axes = axes[: numbers.dim()]  # lse has no head_dim
        for stored, read, made in _Parts(numbers[..., None], axes, (), "").reordered():
            if _explains(wrong, name, made.reshape(truth.shape)):
                return by_numbers(
                    "OUTPUT-REORDERED", variant="permuted", name=name, memory=stored, read=read
                )
        # Other numbers of the same distribution, sorted, are within the tolerance of TF32.
        values, due = (one.double().flatten().sort().values for one in (got, truth))
        if torch.allclose(values, due, rtol=_SAME, atol=0.1 * _SAME * float(truth.abs().max())):
            moved, number = int((~wrong.right[name]).sum()), got.numel()
            return by_numbers("OUTPUT-REORDERED", name=name, moved=moved, number=number)
    return None


def of_other_parts(wrong: Outputs) -> Sighting | None:
    """Find a result that is made of the right parts, stored in one order and read in another."""
    for name, parts_of in (("y", _of_rows), ("out", _of_keys), ("dsink_logits", _of_sinks)):
        if not _is_wrong(wrong, name):
            continue
        for parts in parts_of(wrong):
            for stored, read, sums in parts.reordered():
                made = sums[..., :-1] / sums[..., -1:] if name == "out" else sums
                if _explains(wrong, name, made):
                    return by_numbers(
                        "PARTS-REORDERED", name=name, of=parts.of, stored=stored, read=read
                    )
    return None


def _is_wrong(wrong: Outputs, name: str) -> bool:
    there = name in wrong.got and name in wrong.expected.truth
    return there and bool(wrong.got[name].isfinite().all()) and not bool(wrong.right[name].all())


def _explains(wrong: Outputs, name: str, made: torch.Tensor) -> bool:
    """Whether a result is `made`, of which there may be a few columns of head_dim alone."""
    got, truth = wrong.got[name].double(), wrong.expected.truth[name]
    if name == "out":
        made = made.reshape(*truth.shape[:-1], -1)
        got, truth = (one[..., : made.shape[-1]] for one in (got, truth))
    left = float((made.reshape(truth.shape) - got).norm())
    return left <= _UNEXPLAINED * float((truth - got).norm())  # false for NaN


def _splits(count: int) -> Iterator[tuple[int, int]]:
    """Yield into how many splits, of which length, `count` columns or keys may be divided."""
    every = set()
    for number, multiple in itertools.product(_SPLITS, _LENGTHS):
        length = math.ceil(count / number / multiple) * multiple
        every.add((number, min(count, length)))
    yield from sorted(every)


def _divided(numbers: torch.Tensor, axis: int, number: int, length: int) -> torch.Tensor:
    """Return numbers with an axis divided into (number, length), with zeros at its end."""
    numbers = numbers.movedim(axis, -1)
    padded = torch.nn.functional.pad(numbers, (0, number * length - numbers.shape[-1]))
    return padded.unflatten(-1, (number, length)).movedim((-2, -1), (axis, axis + 1))


def _of_rows(wrong: Outputs) -> Iterator[_Parts]:
    x, w = (wrong.inputs.all[name].double() for name in ("x", "w"))
    for number, length in _splits(x.shape[1]):
        parts = _divided(x * w, 1, number, length).sum(2).mT
        yield _Parts(parts[..., None], ("split", "row"), ("split",), f"{length} columns")


def _of_keys(wrong: Outputs) -> Iterator[_Parts]:
    known = wrong.known
    heads = known.kv_heads
    scores = known.scale * known.q @ known.k[:, heads].mT
    scores = scores.masked_fill(~known.visible(), -float("inf")).flatten(0, 1)
    weights = (scores - scores.amax()).exp()  # partial results are weighted by their own lse
    values = known.v[:, heads, :, :_COLUMNS].flatten(0, 1)
    values = torch.cat([values, torch.ones_like(values[..., :1])], -1)
    for number, length in _splits(known.seqlen_k):
        of_weights, of_values = (_divided(x, 1, number, length) for x in (weights.mT, values))
        parts = (of_weights.mT @ of_values).movedim(1, 0)
        axes = ("split", "batch * heads", "seqlen")
        yield _Parts(parts, axes, ("split",), f"{length} keys")


def _of_sinks(wrong: Outputs) -> Iterator[_Parts]:
    known = wrong.known
    if known.sink_logits is None or known.dout is None:
        return
    terms = -torch.exp(known.sink_column() - attend(known)["lse"]) * row_delta(known)
    for tile in TILES:
        parts = _divided(terms, 2, -(-terms.shape[2] // tile), tile).sum(3)
        summed = ("batch", "tile")
        yield _Parts(parts[..., None], ("batch", "head", "tile"), summed, f"{tile} queries")
