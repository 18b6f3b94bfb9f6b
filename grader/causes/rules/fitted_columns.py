"""Scores that only some columns of head_dim are multiplied for, or the same ones of q again."""

from __future__ import annotations

import math

import torch

from grader.causes.rules.sighting import Sighting, by_numbers
from grader.causes.rules.wrong_rows import Rows
from grader.spec.cases import Case

_WIDTHS = (64, 32, 16)


def other_columns(case: Case, rows: Rows) -> Sighting | None:
    """Try the first and the last columns of each width, and the first ones repeated."""
    every = torch.arange(case.head_dim)
    for width in (w for w in _WIDTHS if w < case.head_dim):
        ends = {"": every[:width], "last": every[-width:], "repeated": every % width}
        for variant, taken in ends.items():
            keys = rows.keys if variant == "repeated" else rows.keys[:, taken]
            scores = rows.scale * rows.rows_of_q[:, taken] @ keys.T
            weights = scores.masked_fill(~rows.visible, -math.inf).softmax(-1)
            if rows.explained(weights @ rows.values):
                columns = f"{int(taken.min())}-{int(taken.max())}"
                return by_numbers(
                    "OTHER-COLUMNS",
                    variant=variant if variant == "repeated" else "",
                    columns=columns,
                    of=case.head_dim,
                )
    return None
