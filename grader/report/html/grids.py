"""Maps as SVG: which tiles a kernel visited, and where in a head the numbers are wrong.

Every letter of a map is one path, so that a map of 1024 cells takes 15 KB at the most. A map is no
wider than a phone. Letters in the cells, the legend and the text below say what the colours say.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence

from grader.base.text import clean
from grader.report.tiles import subject, tile_lines
from grader.report.tiles import words as words_of
from grader.spec.grade_record import ErrorMap, TileMap

_WIDTH = 300  # of the cells, in CSS pixels
_LEFT, _TOP = 46, 18
_LARGEST, _SMALLEST = 22, 3
_LABEL_EVERY = 14, 40  # pixels between labels: down, across
_LETTERS_FROM = 12  # pixels: a smaller cell has no room for its letter
_RULES_FROM = 6  # pixels: smaller cells stand without lines between them
_MOST_CELLS = 96  # along a side; what is beyond is not drawn, and said not to be
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


@dataclasses.dataclass(frozen=True)
class Layer:
    """The cells of one letter: an SVG path, their colour's class, and what they are in words."""

    letter: str
    css: str
    word: str
    count: int
    path: str


@dataclasses.dataclass(frozen=True)
class Label:
    """A number at the edge of a map, or a letter in a cell."""

    x: float
    y: float
    text: str
    anchor: str = "middle"


@dataclasses.dataclass(frozen=True)
class Grid:
    """A map as it is drawn; `data` is what the page's script needs to tell of a cell, as JSON."""

    title: str
    summary: str
    width: int
    height: int
    layers: tuple[Layer, ...]
    labels: tuple[Label, ...]
    letters: tuple[Label, ...]
    rules: str
    text: str
    data: str


def tile_grid(tiles: TileMap, line: int | None = None) -> Grid:
    """Return the map of the tiles; `line` is that of the mistake, where it is known."""
    words = words_of(tiles) | {TileMap.NOTHING: "not visited, not needed"}
    down = ("queries", tiles.tile_q, tiles.tile_q * len(tiles.rows))
    longest = max(map(len, tiles.rows), default=0)
    across = ("keys", tiles.tile_k, tiles.tile_k * longest)
    program = "the program of these queries" if tiles.product in ("out", "dq") else ""
    if not program:
        program = "the program of these keys"
    place = f"line {line}" if line else ""
    head = f"Tiles of {clean(subject(tiles), 60)}"
    classes = {letter: f"t-{css}" for letter, css in _PALETTE.items()}
    known = tuple("".join(c if c in words else TileMap.NOTHING for c in row) for row in tiles.rows)
    first, *others = tile_lines(tiles.model_copy(update={"rows": known or (TileMap.NOTHING,)}))
    text = "\n".join([clean(first), *others])
    return _grid(
        f"{head}: queries down, keys across, {tiles.tile_q} x {tiles.tile_k} to a cell",
        known,
        down,
        across,
        words,
        classes,
        text,
        note=", ".join(filter(None, (program, place))),
    )


def error_grid(errors: ErrorMap, what: str) -> Grid:
    """Return the map of the errors; `what` is what its rows are: queries, keys or rows."""
    words = {ErrorMap.OK: "within the tolerance", ErrorMap.NOT_FINITE: "NaN or infinite"}
    for k in range(1, 10):
        first, last = _factor(k), _factor(k + 1)
        words[str(k)] = f"{first} to {last} times what is allowed"
    words["9"] = f"{_factor(9)} times what is allowed, or more"
    classes = {ErrorMap.OK: "e-ok", ErrorMap.NOT_FINITE: "e-nan"}
    classes |= {str(k): f"e-{k}" for k in range(1, 10)}
    place = [f"batch {errors.batch}" if errors.batch else ""]
    place += [f"head {errors.head}" if errors.head is not None else ""]
    of_head = " ".join(filter(None, place))
    name = clean(errors.output, 40)
    rows, down, across = errors.rows, (what, errors.cell_rows, errors.num_rows), None
    cell = f"{errors.cell_rows} x {errors.cell_columns}"
    if errors.num_columns == 1:  # a vector lies on its side
        rows, down, across = ("".join(rows),), ("", 1, 1), down
        title, cell = f"{what} across", str(errors.cell_rows)
    else:
        across = ("head_dim", errors.cell_columns, errors.num_columns)
        title = f"{what} down, head_dim across"
    head = f"Error of {name}" + (f", {of_head}" if of_head else "")
    return _grid(
        f"{head}: {title}, {cell} to a cell, the worst of a cell shown",
        rows,
        down,
        across,
        words,
        classes,
        "\n".join(rows),
        note="",
    )


def _factor(k: int) -> str:
    return f"{10 ** ((k - 1) / 2):,.2g}" if k < 5 else f"{round(10 ** ((k - 1) / 2), -1):,.0f}"


def _grid(
    title: str,
    rows: Sequence[str],
    down: tuple[str, int, int],
    across: tuple[str, int, int],
    words: Mapping[str, str],
    classes: Mapping[str, str],
    text: str,
    *,
    note: str,
) -> Grid:
    cut = len(rows) > _MOST_CELLS or any(len(row) > _MOST_CELLS for row in rows)
    rows = [row[:_MOST_CELLS] for row in rows[:_MOST_CELLS]]
    columns = max(map(len, rows), default=1)
    cell = max(_SMALLEST, min(_LARGEST, _WIDTH // max(columns, 1)))
    left = _LEFT if down[0] else 4
    counts = Counter("".join(rows))
    layers = tuple(
        Layer(letter, classes[letter], word, counts[letter], _path(rows, letter, cell, left))
        for letter, word in words.items()
        if counts[letter]
    )
    told = [f"{layer.count} {layer.word}" for layer in layers]
    summary = "; ".join(told) + ("; only the first cells are drawn" if cut else "")
    letters = ()
    if cell >= _LETTERS_FROM:
        letters = tuple(
            Label(left + (c + 0.5) * cell, _TOP + (r + 0.5) * cell + 4, letter)
            for r, row in enumerate(rows)
            for c, letter in enumerate(row)
            if letter not in _QUIET
        )
    data = {
        "rows": rows,
        "words": dict(words),
        "down": down,
        "across": across,
        "cell": cell,
        "left": left,
        "top": _TOP,
        "note": note,
    }
    return Grid(
        title=title,
        summary=summary,
        width=left + columns * cell + 4,
        height=_TOP + len(rows) * cell + 2,
        layers=layers,
        labels=(*_side_labels(down, len(rows), cell), *_top_labels(across, columns, cell, left)),
        letters=letters,
        rules=_rules(len(rows), columns, cell, left) if cell >= _RULES_FROM else "",
        text=text,
        data=json.dumps(data),
    )


def _path(rows: Sequence[str], letter: str, cell: int, left: int) -> str:
    """Return rectangles around the runs of a letter."""
    parts = []
    for r, row in enumerate(rows):
        c = row.find(letter)
        while c >= 0:
            end = c
            while end < len(row) and row[end] == letter:
                end += 1
            x, y, length = left + c * cell, _TOP + r * cell, (end - c) * cell
            parts.append(f"M{x} {y}h{length}v{cell}h-{length}z")
            c = row.find(letter, end)
    return "".join(parts)


def _rules(rows: int, columns: int, cell: int, left: int) -> str:
    """Return the lines between the cells."""
    across = "".join(f"M{left} {_TOP + r * cell}h{columns * cell}" for r in range(1, rows))
    down = "".join(f"M{left + c * cell} {_TOP}v{rows * cell}" for c in range(1, columns))
    return across + down


def _side_labels(axis: tuple[str, int, int], count: int, cell: int) -> list[Label]:
    if not axis[0]:
        return []
    every = -(-_LABEL_EVERY[0] // cell)
    return [
        Label(_LEFT - 5, _TOP + (n + 0.5) * cell + 4, str(n * axis[1]), "end")
        for n in range(0, count, every)
    ]


def _top_labels(axis: tuple[str, int, int], count: int, cell: int, left: int) -> list[Label]:
    every = -(-_LABEL_EVERY[1] // cell)
    return [
        Label(left + n * cell, _TOP - 5, str(n * axis[1]), "start") for n in range(0, count, every)
    ]
