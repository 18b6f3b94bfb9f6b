"""Chooses some wrong rows of out of one head, and finds how much groups of keys count in them."""

from __future__ import annotations

import dataclasses
import math

import torch

from grader.causes.outputs import TILES, Outputs, factors_of, unexplained
from grader.spec.cases import Case

_WRONG = 1e-2  # relative error of a row
_OF_COLUMN = 1e-3  # of the error of the worst column: less is rounding
_ROWS = 24  # of one head, at most, in a fit
_SHARE = 1e-3  # of the weights of a row: the count of a group with less is not clear
_EQUATIONS = 2  # and more for each unknown


@dataclasses.dataclass(frozen=True)
class Rows:
    """Some wrong rows of out of one head, in fp64; `scores` are neither scaled nor masked."""

    case: Case
    got: torch.Tensor  # (rows, head_dim)
    truth: torch.Tensor
    scores: torch.Tensor  # (rows, keys)
    visible: torch.Tensor  # (rows, keys)
    lse: torch.Tensor  # (rows, 1)
    rows_of_q: torch.Tensor  # (rows, head_dim)
    keys: torch.Tensor  # (keys, head_dim)
    values: torch.Tensor  # (keys, head_dim)
    queries: list[int]
    scale: float
    tiles: tuple[int, ...]  # sizes in keys to try
    sees: torch.Tensor  # (all queries, keys)

    @property
    def weights(self) -> torch.Tensor:
        """The right weights; those of hidden keys are relative to the sum of the visible ones."""
        return torch.exp(self.scale * self.scores - self.lse)

    @property
    def wrong_columns(self) -> torch.Tensor:
        """The numbers of the wrong columns of out."""
        off = (self.got - self.truth).norm(dim=0)
        return torch.nonzero(off > _OF_COLUMN * off.max()).flatten()

    def of_columns(self, columns: torch.Tensor) -> Rows:
        """Return the same rows with some columns of out alone."""
        got, truth, values = self.got, self.truth, self.values
        cut = (tensor[:, columns] for tensor in (got, truth, values))
        return dataclasses.replace(self, **dict(zip(("got", "truth", "values"), cut, strict=True)))

    def attention(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the rows of scores, (..., rows, keys), under the right mask."""
        return scores.masked_fill(~self.visible, -math.inf).softmax(-1) @ self.values

    def explained(self, made: torch.Tensor) -> bool:
        """Whether `made` explains the wrong rows."""
        return float((made - self.got).norm()) <= unexplained(self.got, self.truth)


def wrong_rows(wrong: Outputs) -> Rows | None:
    truth = wrong.expected.truth.get("out")
    if truth is None:
        return None
    out = wrong.got["out"].double()
    off = (out - truth).norm(dim=-1) / truth.norm(dim=-1)
    batch, head = divmod(int(off.amax(-1).argmax()), off.shape[1])
    queries = torch.nonzero(off[batch, head] > _WRONG).flatten()
    if not len(queries):
        return None
    queries = queries[:: -(-len(queries) // _ROWS)]
    known = wrong.known
    kv_head = int(known.kv_heads[head])
    rows_of_q, keys = known.q[batch, head, queries], known.k[batch, kv_head]
    scores = rows_of_q @ keys.T
    sees = known.visible().expand(known.seqlen_q, known.seqlen_k)
    visible = sees[queries]
    lse = torch.logsumexp((known.scale * scores).masked_fill(~visible, -math.inf), -1, True)
    if known.sink_logits is not None or not lse.isfinite().all():
        return None
    return Rows(
        wrong.case,
        out[batch, head, queries],
        truth[batch, head, queries],
        scores,
        visible,
        lse,
        rows_of_q,
        keys,
        known.v[batch, kv_head],
        queries.tolist(),
        known.scale,
        (known.tile_k,) if known.problem_id == "p01" else TILES,
        sees,
    )


def counts_of(rows: Rows, groups: torch.Tensor) -> torch.Tensor | None:
    """Return the factor with which each group of keys counts in each row, which should be 1.

    Args: groups: (groups, keys) or (rows, groups, keys), bool. The factor is NaN where a group has
    too little weight; the result is None where no factors explain the rows.
    """
    parts = (rows.weights[:, None, :] * groups) @ rows.values  # (rows, groups, head_dim)
    share = (rows.weights[:, None, :] * groups).sum(-1)
    if groups.shape[-2] * _EQUATIONS > parts.shape[-1] or not parts.isfinite().all():
        return None
    counts = factors_of(parts, rows.got, unexplained(rows.got, rows.truth))
    if counts is None:
        return None
    return counts.masked_fill((share < _SHARE) & (counts.abs() * share < _SHARE), math.nan)
