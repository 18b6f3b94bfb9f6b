"""What a wrong output is made of: a few numbers that are fitted to it.

Each fit has far more equations than unknowns: one scale for all rows, or one weight for each group
of keys in a row of head_dim numbers. What it says is then so, whatever the answer looks like. It is
asked when nothing else is known, about a few cases.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import torch

from grader.cases import Case
from grader.checks.correctness import Expected, ranges
from grader.inputs import Inputs
from grader.sightings.sighting import Sighting
from reference.variants import case_of

_UNEXPLAINED = 1e-2  # of the error of the rows, at most
_ROWS = 24  # of one head, that a fit looks at
_MOST_KEYS = 1024
_SHARE = 1e-3  # of the weights of a row: what has less is not told
_SAME = 1e-2  # relative, of two weights
_NAMES = 4  # of one number, at most: more say nothing
_EQUATIONS = 2  # and more for each unknown
_TILES = (128, 64, 32, 16)
_ONE_MAXIMUM = (
    "weights are exp(score - new max); the sums so far are multiplied by exp(old - new), once"
)
_OCTAVES = torch.arange(-10.0, 10.25, 0.25, dtype=torch.float64)


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Some wrong rows of out of one head, in fp64; `scores` are neither scaled nor masked."""

    got: torch.Tensor  # (rows, head_dim)
    truth: torch.Tensor
    scores: torch.Tensor  # (rows, keys)
    visible: torch.Tensor  # (rows, keys)
    lse: torch.Tensor  # (rows, 1)
    values: torch.Tensor  # (keys, head_dim)
    queries: list[int]
    scale: float
    tiles: tuple[int, ...]  # sizes in keys to try

    @property
    def weights(self) -> torch.Tensor:
        """The right weights; those of hidden keys are what they would be beside them."""
        return torch.exp(self.scale * self.scores - self.lse)

    def explained(self, made: torch.Tensor) -> bool:
        """Whether `made` is what came out."""
        return bool((made - self.got).norm() <= _UNEXPLAINED * (self.got - self.truth).norm())


def fittable(case: Case, got: dict[str, torch.Tensor]) -> bool:
    """Whether there are enough numbers, and digits of them."""
    if case.dtype != "fp32" or case.rows is not None or not 2 <= case.seqlen_k <= _MOST_KEYS:
        return False
    return "out" in got and bool(got["out"].isfinite().all())


def fitted(
    problem_id: str,
    case: Case,
    inputs: Inputs,
    got: dict[str, torch.Tensor],
    expected: Expected,
) -> Sighting | None:
    """Return what the rows of a wrong `out` are made of, if few numbers say it."""
    rows = _wrong_rows(problem_id, case, inputs, got, expected)
    if rows is None:
        return None
    asked: tuple[Callable[[Case, _Rows], Sighting | None], ...] = (
        _other_scale,
        _shares_of_tiles,
        _other_keys,
        _mixed_exponentials,
    )
    for ask in asked:
        found = ask(case, rows)
        if found is not None:
            return found
    return None


def _wrong_rows(
    problem_id: str,
    case: Case,
    inputs: Inputs,
    got: dict[str, torch.Tensor],
    expected: Expected,
) -> _Rows | None:
    if "out" not in expected.truth:
        return None
    out, truth = got["out"].double(), expected.truth["out"]
    off = (out - truth).norm(dim=-1) / truth.norm(dim=-1)
    batch, head = divmod(int(off.amax(-1).argmax()), off.shape[1])
    queries = torch.nonzero(off[batch, head] > _UNEXPLAINED).flatten()
    if not len(queries):
        return None
    queries = queries[:: -(-len(queries) // _ROWS)]
    known = case_of(problem_id, inputs.all, case.kwargs)
    kv_head = int(known.kv_heads[head])
    scores = known.q[batch, head, queries] @ known.k[batch, kv_head].T
    visible = known.visible().expand(known.seqlen_q, known.seqlen_k)[queries]
    lse = torch.logsumexp((known.scale * scores).masked_fill(~visible, -math.inf), -1, True)
    if known.sink_logits is not None or not lse.isfinite().all():
        return None
    return _Rows(
        out[batch, head, queries],
        truth[batch, head, queries],
        scores,
        visible,
        lse,
        known.v[batch, kv_head],
        queries.tolist(),
        known.scale,
        (known.tile_k,) if problem_id == "p01" else _TILES,
    )


# -- the scale ------------------------------------------------------------------------------------


def _other_scale(case: Case, rows: _Rows) -> Sighting | None:
    """Scores may have another factor than they should: look for it over twenty octaves."""

    def made(scale: torch.Tensor) -> torch.Tensor:
        scores = scale[:, None, None] * rows.scores
        return scores.masked_fill(~rows.visible, -math.inf).softmax(-1) @ rows.values

    sizes = (abs(rows.scale) or case.head_dim**-0.5) * torch.exp2(_OCTAVES)
    tried = torch.cat([sizes, -sizes])
    apart = (made(tried) - rows.got).norm(dim=(1, 2))
    scale = float(tried[apart.argmin()])
    for _ in range(6):  # Gauss-Newton in the logarithm of the scale
        step = 1e-5
        here, there = made(torch.tensor([scale, scale * (1.0 + step)], dtype=torch.float64))
        slope = (there - here) / step
        size = float((slope * slope).sum())
        if not size > 0.0:
            return None
        move = float((slope * (rows.got - here)).sum()) / size
        scale *= math.exp(max(-0.2, min(0.2, move)))
    if abs(scale - rows.scale) < _SAME * abs(rows.scale):
        return None
    if not rows.explained(made(torch.tensor([scale], dtype=torch.float64))[0]):
        return None
    return Sighting(
        "OTHER-SCALE",
        f"scores are multiplied by {scale:.4g}{_name(case, rows.scale, scale)}, not by"
        f" {rows.scale:.4g}",
        f"seen: out is the softmax of scores times {scale:.4g}; softmax_scale is {rows.scale:.4g}",
        "multiply q @ k^T by softmax_scale once, by default 1/sqrt(head_dim), and by nothing else",
        traced=False,
    )


def _name(case: Case, due: float, scale: float) -> str:
    """Return what has the value of a scale in this case."""
    log2e = 1.0 / math.log(2.0)
    lengths = {"head_dim": case.head_dim, "seqlen_q": case.seqlen_q, "seqlen_k": case.seqlen_k}
    lengths |= {name: case.kwargs[name] for name in ("tile_q", "tile_k") if name in case.kwargs}
    named = {"softmax_scale * log2(e)": due * log2e, "softmax_scale * ln(2)": due / log2e}
    named |= {"-softmax_scale": -due, "softmax_scale / 2": due / 2, "softmax_scale * 2": due * 2}
    named |= {"1": 1.0, "softmax_scale**2": due * due}
    named |= {"1 / softmax_scale": 1.0 / due} if due else {}
    for name, value in lengths.items():
        named |= {f"1/{name}": 1.0 / value, f"1/sqrt({name})": value**-0.5}
        named |= {f"sqrt({name})": value**0.5}
    named["head_dim**-0.25"] = case.head_dim**-0.25
    alike = [w for w, value in named.items() if abs(scale - value) <= _SAME / 10 * abs(value)]
    return f" ({' or '.join(alike)})" if 0 < len(alike) <= _NAMES else ""


# -- the keys -------------------------------------------------------------------------------------


def _counts(rows: _Rows, groups: torch.Tensor) -> torch.Tensor | None:
    """Return how much each group of keys counts in each row: 1 as it should.

    Args: groups: (groups, keys) or (rows, groups, keys), bool. NaN where too little hangs on it;
    None where the rows are not made of the groups.
    """
    parts = (rows.weights[:, None, :] * groups) @ rows.values  # (rows, groups, head_dim)
    share = (rows.weights[:, None, :] * groups).sum(-1)
    if groups.shape[-2] * _EQUATIONS > parts.shape[-1] or not parts.isfinite().all():
        return None
    size = parts.norm(dim=-1, keepdim=True).clamp(min=1e-300)
    basis = (parts / size).mT
    found = torch.linalg.lstsq(basis, rows.got[..., None], driver="gelsd").solution
    if not found.isfinite().all() or not rows.explained((basis @ found)[..., 0]):
        return None
    counts = found[..., 0] / size[..., 0]
    return counts.masked_fill((share < _SHARE) & (counts.abs() * share < _SHARE), math.nan)


def _tiles(case: Case, tile: int) -> torch.Tensor:
    keys = torch.arange(case.seqlen_k)
    return torch.arange(-(-case.seqlen_k // tile))[:, None] == keys // tile


def _shares_of_tiles(case: Case, rows: _Rows) -> Sighting | None:
    """Weights are right inside each tile of keys, and not from tile to tile."""
    for tile in rows.tiles:
        tiles = _tiles(case, tile)
        if len(tiles) < 2:
            continue
        counts = _counts(rows, tiles & rows.visible[:, None, :])
        if counts is None:
            continue
        told = _as_keys(rows, counts, tiles & rows.visible.any(0))
        if told is not None:
            return told
        known = ~counts.isnan()
        spread = counts.masked_fill(~known, -math.inf).amax(1) - counts.nan_to_num(1e300).amin(1)
        row = int((known.sum(1) + spread / (1.0 + spread.abs())).argmax())
        numbers = counts[row]
        if float(spread[row]) < 5 * _SAME * float(numbers.nan_to_num(0.0).abs().max()):
            return None  # a factor of the row
        of_tile = [t for t in range(len(tiles)) if known[row, t]]
        shown = ", ".join(f"{_span(tiles[t])} {float(numbers[t]):.3g}" for t in of_tile[:4])
        return Sighting(
            "TILE-SHARES",
            f"tiles of {tile} keys do not have the shares of out that are due to them",
            f"seen: in row {rows.queries[row]} weights are the right ones times, by tile: {shown}"
            + (", ..." if len(of_tile) > 4 else ""),
            _ONE_MAXIMUM,
            traced=False,
        )
    return None


def _mixed_exponentials(case: Case, rows: _Rows) -> Sighting | None:
    """Weights of a tile are exponentials to another base than those by which tiles are joined."""
    for name, factor in (("log2(e)", 1.0 / math.log(2.0)), ("ln(2)", math.log(2.0))):
        scale = factor * rows.scale
        scores = (scale * rows.scores).masked_fill(~rows.visible, -math.inf)
        lse = torch.logsumexp(scores, -1, keepdim=True)
        found = _shares_of_tiles(case, dataclasses.replace(rows, scale=scale, lse=lse))
        if found is not None and found.id == "TILE-SHARES":
            return dataclasses.replace(
                found,
                id="EXPONENTIALS-MIXED",
                title=f"inside a tile weights are exp(score * {name}), from tile to tile they are"
                " not",
                note=found.note.replace("the right ones", "such ones"),
                help="one exponential throughout: exp2 of scores, maximum and rescale in units of"
                " log2, or exp of natural ones",
            )
    return None


def _other_keys(case: Case, rows: _Rows) -> Sighting | None:
    """Single keys at the ends of tiles, or all where head_dim numbers can tell them apart."""
    keys = torch.arange(case.seqlen_k)
    tried = [torch.eye(case.seqlen_k, dtype=torch.bool)]
    for tile in rows.tiles:
        place, tiles = keys % tile, _tiles(case, tile)
        last = (place == tile - 1) | (keys == case.seqlen_k - 1)
        middle = ~last & (place > 0)
        parts = [place == 0, last & (place > 0), middle & (place < tile // 2)]
        parts.append(middle & (place >= tile // 2))
        groups = torch.cat([tiles & part for part in parts])
        tried.append(groups[groups.any(-1)])
    for groups in tried:
        counts = None
        if len(groups) * _EQUATIONS <= rows.values.shape[1]:
            counts = _counts(rows, groups & rows.visible[:, None, :])
        told = None if counts is None else _as_keys(rows, counts, groups & rows.visible.any(0))
        if told is not None:
            return told
    return None


def _as_keys(rows: _Rows, counts: torch.Tensor, groups: torch.Tensor) -> Sighting | None:
    """Say that a row is attention over other keys: each group counts as often in all rows."""
    weights = rows.weights * rows.visible
    shares = weights @ groups.double().T
    times = []
    for row, share in zip(counts, shares, strict=True):
        there = row[~row.isnan() & (row.abs() > _SAME)]
        if not len(there):
            return None
        times.append(row / there.abs().min())
        # Attention over these keys: the weights add up to one.
        if abs(float((row * share).nansum()) - 1.0) > 5 * _SAME:
            return None
    often = torch.stack(times)
    if bool(((often - often.round()).abs() > 5 * _SAME).any()) or bool((often < -0.5).any()):
        return None
    often = often.round()
    known = ~often.isnan()
    once = torch.where(known, often, -1.0).amax(0)
    of_row = ""
    if bool((known & (often != once)).any()):  # other keys in other rows
        row = int((often == 0.0).sum(1).argmax())
        once, of_row = often[row], f" in row {rows.queries[row]}"
    if bool((once > 2.0).any()):
        return None
    missing, twice = (groups[once == number].any(0).numpy() for number in (0.0, 2.0))
    if missing.all() or not (missing | twice).any():
        return None
    words = (("left out", missing), ("counted twice", twice))
    what = [f"{_keys(keys)} {word}" for word, keys in words if keys.any()]
    return Sighting(
        "OTHER-KEYS",
        f"out is attention over other keys: {' and '.join(what)}{of_row}",
        f"seen: the visible keys, but {' and '.join(what)}{of_row}",
        "tiles begin where the one before ended; the last ends at the last visible key; and what"
        " was added up stays when a later tile has no visible key",
        traced=False,
    )


def _keys(keys: np.ndarray) -> str:
    return ("key " if keys.sum() == 1 else "keys ") + ranges(keys)


def _span(tile: torch.Tensor) -> str:
    return _keys(tile.numpy())
