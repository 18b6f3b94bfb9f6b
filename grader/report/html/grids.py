"""Maps as SVG: which tiles a kernel visited, and where in a head the numbers are wrong.

All cells of one letter form one path, so that a map of 1024 cells takes 15 KB at the most. A map is
no wider than a phone. Letters in cells, the legend and the text below repeat the colours' meaning.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import NamedTuple

from grader.base.text import clean
from grader.report.tiles import subject, tile_lines
from grader.report.tiles import words as words_of
from grader.spec.grade_record import ErrorMap, TileMap
from grader.spec.kernel_report import SECTOR, Access

_WIDTH = 300  # of the cells, in CSS pixels
_LEFT, _TOP = 46, 18
_LARGEST, _SMALLEST = 22, 3
_LABEL_EVERY = 14, 40  # pixels between labels: down, across
_LETTERS_FROM = 12  # pixels: a smaller cell has no room for its letter
_RULES_FROM = 6  # pixels: smaller cells have no lines between them
_MOST_CELLS = 96  # along a side; the summary says that the rest is not drawn
_PALETTE = {
    TileMap.FULL: "full",
    TileMap.MASKED: "masked",
    TileMap.WASTED: "wasted",
    TileMap.MISSED: "missed",
    TileMap.TAKEN: "taken",
    TileMap.TWICE: "twice",
    TileMap.NOTHING: "nothing",
}
_QUIET = {TileMap.FULL, TileMap.MASKED, TileMap.NOTHING, ErrorMap.OK}


class Layer(NamedTuple):
    """The cells of one letter: the class of their colour, their meaning, number and SVG path."""

    letter: str
    css: str
    word: str
    count: int
    path: str


class Label(NamedTuple):
    """A number at the edge of a map, or a letter in a cell."""

    x: float
    y: float
    text: str
    anchor: str = "middle"


# A side of a map: the name of its unit, units per cell, and units in all.
_Side = tuple[str, int, int]


def tile_grid(tiles: TileMap, line: int | None = None) -> SimpleNamespace:
    """Return the map of the tiles; `line` is the line of the mistake, if it is known."""
    words = words_of(tiles) | {TileMap.NOTHING: "not loaded, not needed"}
    known = tuple("".join(c if c in words else TileMap.NOTHING for c in row) for row in tiles.rows)
    first, *others = tile_lines(tiles.model_copy(update={"rows": known or (TileMap.NOTHING,)}))
    sides = f"queries down, keys across, {tiles.tile_q} x {tiles.tile_k} to a cell"
    program = "queries" if tiles.product in ("out", "dq") else "keys"
    return _grid(
        f"Tiles of {clean(subject(tiles), 60)}: {sides}",
        known,
        ("queries", tiles.tile_q, tiles.tile_q * len(known)),
        ("keys", tiles.tile_k, tiles.tile_k * max(map(len, known), default=0)),
        {letter: (f"t-{css}", words[letter]) for letter, css in _PALETTE.items()},
        "\n".join([clean(first), *others]),
        f"the program of these {program}" + (f", line {line}" if line else ""),
    )


def error_grid(errors: ErrorMap, what: str) -> SimpleNamespace:
    """Return the map of the errors; `what` names its rows: queries, keys, heads or rows."""
    kinds = {
        ErrorMap.OK: ("e-ok", "within the tolerance"),
        ErrorMap.NOT_FINITE: ("e-nan", "NaN or infinite"),
    }
    for k in range(1, 9):
        words = f"{_factor(k)} to {_factor(k + 1)} times what is allowed"
        kinds[str(k)] = f"e-{k}", words
    kinds["9"] = "e-9", f"{_factor(9)} times what is allowed, or more"
    place = f"batch {errors.batch} " * bool(errors.batch)
    place += f"head {errors.head}" * (errors.head is not None)
    head = ", ".join(filter(None, (clean(errors.output, 40), place.strip())))
    rows, down = errors.rows, (what, errors.cell_rows, errors.num_rows)
    across = ("head_dim", errors.cell_columns, errors.num_columns)
    title = f"{what} down, head_dim across, {errors.cell_rows} x {errors.cell_columns}"
    if errors.num_columns == 1:  # a vector lies on its side
        rows, down, across = ("".join(rows),), ("", 1, 1), down
        title = f"{what} across, {errors.cell_rows}"
    title = f"Error of {head}: {title} to a cell, the worst of a cell shown"
    return _grid(title, rows, down, across, kinds, "\n".join(rows))


def request_grid(access: Access) -> SimpleNamespace:
    """Return the map of one memory request: sectors down, lanes of a warp across."""
    last = access.lane_bytes - 1
    sectors = [
        {(first + byte) // SECTOR for byte in (0, last)} if first >= 0 else set()
        for first in access.lanes
    ]
    every = sorted(set().union(*sectors))
    rows = ["".join("#" if one in own else "." for own in sectors) for one in every]
    where = f"{clean(access.file)} line {access.line}".strip()
    would = f", {access.needed} would do" if access.needed < len(every) else ""
    css = "t-missed" if would else "t-full"
    return _grid(
        f"One request of {where}: its {len(every)} sectors down{would}; the lanes of a warp across",
        rows,
        ("sector", 1, len(every)),
        ("lane", 1, len(sectors)),
        {"#": (css, "bytes that the lane asks for"), ".": ("t-nothing", "nothing")},
        "\n".join(rows),
    )


def _factor(k: int) -> str:
    return f"{10 ** ((k - 1) / 2):,.2g}" if k < 5 else f"{round(10 ** ((k - 1) / 2), -1):,.0f}"


def _grid(
    title: str,
    rows: Sequence[str],
    down: _Side,
    across: _Side,
    kinds: Mapping[str, tuple[str, str]],
    text: str,
    note: str = "",
) -> SimpleNamespace:
    """Return the view of a map; `kinds` has by letter the class of its colour and its meaning.

    Its `data` is JSON from which the page's script describes the cell under the pointer.
    """
    cut = len(rows) > _MOST_CELLS or any(len(row) > _MOST_CELLS for row in rows)
    rows = [row[:_MOST_CELLS] for row in rows[:_MOST_CELLS]]
    columns = max(map(len, rows), default=1)
    cell = max(_SMALLEST, min(_LARGEST, _WIDTH // max(columns, 1)))
    left = _LEFT if down[0] else 4
    counts = Counter("".join(rows))
    layers = tuple(
        Layer(letter, css, word, counts[letter], _path(rows, letter, cell, left))
        for letter, (css, word) in kinds.items()
        if counts[letter]
    )
    parts = [f"{layer.count} {layer.word}" for layer in layers]
    parts += ["only the first cells are drawn"] * cut
    every_row, every_column = (-(-pixels // cell) for pixels in _LABEL_EVERY)
    labels = [
        Label(_LEFT - 5, _TOP + (n + 0.5) * cell + 4, str(n * down[1]), "end")
        for n in range(0, len(rows) if down[0] else 0, every_row)
    ]
    labels += [
        Label(left + n * cell, _TOP - 5, str(n * across[1]), "start")
        for n in range(0, columns, every_column)
    ]
    letters = [
        Label(left + (c + 0.5) * cell, _TOP + (r + 0.5) * cell + 4, letter)
        for r, row in enumerate(rows if cell >= _LETTERS_FROM else ())
        for c, letter in enumerate(row)
        if letter not in _QUIET
    ]
    rules = [f"M{left} {_TOP + r * cell}h{columns * cell}" for r in range(1, len(rows))]
    rules += [f"M{left + c * cell} {_TOP}v{len(rows) * cell}" for c in range(1, columns)]
    words = {letter: word for letter, (_, word) in kinds.items()}
    data = {"rows": rows, "words": words, "down": down, "across": across, "cell": cell}
    return SimpleNamespace(
        title=title,
        summary="; ".join(parts),
        width=left + columns * cell + 4,
        height=_TOP + len(rows) * cell + 2,
        layers=layers,
        labels=labels,
        letters=letters,
        rules="".join(rules) if cell >= _RULES_FROM else "",
        text=text,
        data=json.dumps(data | {"left": left, "top": _TOP, "note": note}),
    )


def _path(rows: Sequence[str], letter: str, cell: int, left: int) -> str:
    """Return an SVG path of rectangles, one per horizontal run of a letter."""
    parts = []
    for r, row in enumerate(rows):
        for run in re.finditer(f"{re.escape(letter)}+", row):
            x, y, length = left + run.start() * cell, _TOP + r * cell, len(run[0]) * cell
            parts.append(f"M{x} {y}h{length}v{cell}h-{length}z")
    return "".join(parts)
