"""Finds heads of a group, or tiles of rows, that a wrong gradient leaves out or counts twice."""

from __future__ import annotations

import dataclasses
import math

import torch

from grader.causes.outputs import TILES, Outputs, factors_of, tiles_of, unexplained
from grader.causes.rules.head import ROWS, Head
from grader.causes.rules.sighting import Sighting, by_numbers
from grader.checks.correctness import named, ranges
from grader.spec.cases import Case
from reference.variants import Case as Known
from reference.variants import attend
from reference.variants_backward import row_delta

_MOST_HEADS = 32  # over all batches
_MOST_COUNT = 4
_EQUATIONS = 2  # and more for each unknown
_SAME = 5e-2  # of a count
_SHARE = 1e-3  # of a row: the count of a part with less is not clear
_ROWS = 24
_FEWEST_ROWS = 4  # that must agree on the factors
_ALIKE = 2e-2  # of two factors
_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class _Parts:
    """Parts of the rows that a gradient sums up, (parts, rows): query heads, or tiles of `what`."""

    rows: torch.Tensor
    what: str
    first_head: int | None = None

    def named(self, which: torch.Tensor) -> str:
        """Name some of the parts."""
        if self.first_head is None:
            return f"{self.what} {ranges(self.rows[which].any(0))}"
        return named("query head", [self.first_head + int(n) for n in torch.nonzero(which)])


def other_pairs(head: Head) -> Sighting | None:
    """Find query heads, or tiles of the rows that are summed up, that do not count once."""
    heads, queries, _ = head.probs.shape
    if head.name == "dq" or heads == 1:
        return _of_tiles(head, head.weights(head.probs))
    rows = torch.eye(heads).repeat_interleave(queries, 1) > 0
    return _of_counts(head, head.weights(head.probs), _Parts(rows, "query heads", head.first_head))


def parts_of_dq(head: Head) -> Sighting | None:
    """Find the one sum of dq, of (P * dP) k or of (P * delta) k, that lacks tiles or repeats them.

    Or that sums up rows of v in place of k.
    """
    if head.name != "dq":
        return None
    parts = {"P * dP": head.probs * head.dprobs, "P * delta": -head.probs * head.delta[..., None]}
    for of_sum, of_rest in (("P * dP", "P * delta"), ("P * delta", "P * dP")):
        rest = head.product(parts[of_rest])
        other = dataclasses.replace(head, got=head.got - rest, truth=head.truth - rest)
        numbers = other.solved([head.product(parts[of_sum], "v")])
        if numbers is not None and abs(numbers[0] - 1.0) <= _SAME:
            return by_numbers("OTHER-TERMS", variant="rows_of_v", of_sum=of_sum, where=head.where)
        found = _of_tiles(other, parts[of_sum], f"{of_sum} of ")
        if found is not None:
            return found
    return None


def _of_tiles(head: Head, weights: torch.Tensor, of_sum: str = "") -> Sighting | None:
    what, axis = ("keys", 2) if head.name == "dq" else ("queries", 1)
    tiles = (tiles_of(weights.shape[axis], tile) for tile in TILES)
    parts = (_Parts(rows, what) for rows in tiles if len(rows) > 1)
    return next(filter(None, (_of_counts(head, weights, of, of_sum) for of in parts)), None)


def _of_counts(
    head: Head, weights: torch.Tensor, parts: _Parts, of_sum: str = ""
) -> Sighting | None:
    """Find parts that do not count once; `weights` are (heads, queries, keys)."""
    if head.name != "dv":
        weights = head.scale * weights
    if head.name != "dq":
        weights = weights.mT
    of_rows = weights.transpose(0, 1).flatten(1)  # (rows, what is summed up)
    summed = getattr(head, ROWS[head.name][0]).flatten(0, -2)
    wrong = (head.got - head.truth).norm(dim=-1)
    # Rows close to 0, such as dq of the first query, may be wrong by rounding alone.
    least = torch.maximum(1e-2 * head.truth.norm(dim=-1), _SHARE * wrong.max())
    chosen = torch.nonzero(wrong > least).flatten()
    if not len(chosen) or len(parts.rows) * _EQUATIONS > summed.shape[1]:
        return None
    chosen = chosen[:: -(-len(chosen) // _ROWS)]
    shares = (of_rows[chosen][:, None, :] * parts.rows) @ summed  # (rows, parts, head_dim)
    got, truth = head.got[chosen], head.truth[chosen]
    counts = factors_of(shares, got, unexplained(got, truth))
    if counts is None:
        return None
    size = shares.norm(dim=-1).clamp(min=1e-300)
    clear = size > _SHARE * size.amax(1, keepdim=True)
    whole = (counts - counts.round()).abs() <= _SAME
    if not bool((whole | ~clear).all()):
        return _shares(head, parts, counts.masked_fill(~clear, math.nan))
    counts = counts.round()
    odd = clear & (counts != 1.0)
    low, high = float(counts[clear].min()), float(counts[clear].max())
    if low < 0 or high > _MOST_COUNT or not odd.any():
        return None
    row = int(odd.any(1).int().argmax())
    pieces = []
    for number in counts[row][odd[row]].unique().tolist():
        word = {0.0: "left out", 2.0: "counted twice"}.get(number, f"counted {number:.0f} times")
        pieces.append(f"{parts.named(odd[row] & (counts[row] == number))} {word}")
    of_row = f"{'query' if head.name == 'dq' else 'key'} {int(chosen[row])}"
    return by_numbers(
        "OTHER-PAIRS",
        variant="of_dq" if head.name == "dq" else "of_dk_or_dv",
        name=head.name,
        of_sum=of_sum,
        row=of_row,
        counts=" and ".join(pieces),
        where=head.where,
    )


def _shares(head: Head, parts: _Parts, counts: torch.Tensor) -> Sighting | None:
    """Find a factor for each part that is the same in all rows; `counts` are (rows, parts)."""
    known = ~counts.isnan()
    mean = counts.nanmean(0)
    off = (counts - mean).abs() > _ALIKE * mean.abs().clamp(min=_SAME)
    there = known.any(0)
    if bool((off & known).any()) or int(there.sum()) < 2 or len(counts) < _FEWEST_ROWS:
        return None
    factors = mean[there]
    if float(factors.max() - factors.min()) < _SAME * float(factors.abs().max()):
        return None  # one factor for all parts
    shown = [
        f"{parts.named(torch.arange(len(mean)) == part)} {float(mean[part]):.3g} times"
        for part in torch.nonzero(there).flatten().tolist()[:_SHOWN]
    ]
    return by_numbers(
        "SHARES-OF-A-GRADIENT",
        name=head.name,
        parts=parts.what if parts.first_head is not None else f"tiles of {parts.what}",
        where=head.where,
        shares=", ".join(shown) + (", ..." if int(there.sum()) > _SHOWN else ""),
    )


def other_heads(wrong: Outputs, head: Head) -> Sighting | None:
    """Find query heads whose whole share is added to a kv head that is not their own."""
    case = wrong.case
    heads = case.batch * case.num_q_heads
    if head.name == "dq" or not 1 < heads <= _MOST_HEADS:
        return None
    shares = _of_heads(wrong.known, head).flatten(0, 1)
    numbers = head.solved(list(shares))
    if numbers is None:
        return None
    times = torch.tensor(numbers)
    counts = times.round()
    if bool(((times - counts).abs() > _SAME).any()):
        return None
    group = case.num_q_heads // case.num_kv_heads
    own = torch.zeros(heads, dtype=torch.bool)
    own[(first := head.batch * case.num_q_heads + head.first_head) : first + group] = True
    others = bool((counts[~own] != 0).any())
    if not others or bool((counts < 0).any()) or bool((counts > _MOST_COUNT).any()):
        return None  # only heads of its own group: `other_pairs` names these
    got = _counted_heads(counts, case)
    return by_numbers(
        "GROUP-OF-OTHER-HEADS",
        name=head.name,
        where=head.where,
        got=got,
        group=_counted_heads(own.double(), case),
    )


def _of_heads(known: Known, head: Head) -> torch.Tensor:
    """Return the share of each query head in the gradient, (batch, q heads, keys, columns)."""
    lse = attend(known)["lse"][..., None]
    weights = torch.exp(known.masked() - lse)
    rows = known.dout
    if head.name == "dk":
        weights = weights * (known.dout @ known.values().mT - row_delta(known)[..., None])
        weights, rows = known.scale * weights, known.q
    return weights.mT @ rows[..., : head.got.shape[-1]]


def _counted_heads(counts: torch.Tensor, case: Case) -> str:
    """Name the heads that count, with the number of times if that is not one."""
    parts = []
    for batch, of_batch in enumerate(counts.unflatten(0, (case.batch, case.num_q_heads))):
        heads = [
            f"{head}{f' ({int(of_batch[head])} times)' if of_batch[head] > 1 else ''}"
            for head in torch.nonzero(of_batch).flatten().tolist()
        ]
        if heads:
            of = f" of batch {batch}" if case.batch > 1 else ""
            parts.append(f"query head{'s'[: len(heads) > 1]} {', '.join(heads)}{of}")
    return " and ".join(parts)
