"""Which key tiles a query tile visits: causal, with a window, with a window and sinks."""

from __future__ import annotations

from .canvas import MARGIN, WIDTH, Canvas, Picture
from .tiles import (
    FULL,
    MASKED,
    NEVER,
    SINKS,
    bounds,
    count,
    draw_legend,
    draw_map,
    kinds,
    visible,
    with_sinks,
)

BLOCK = 64
CAUSAL_SEQLEN = 6 * BLOCK
SEQLEN = 10 * BLOCK
WINDOW_SIZE = 192
NUM_SINK_TOKENS = 4
MARKED = 5  # the query tile whose bounds are shown
MAP_X, MAP_Y, GAP = 78, 112, 3
# p07's worked example
POSITION_SEQLEN, POSITION_WINDOW, POSITION_SINKS, POSITION_BLOCK = 16, 7, 3, 2
POSITION_ROWS = range(12, 16)
LEGEND = {
    FULL: "full: every query sees every key, no mask",
    MASKED: "masked: an edge crosses the tile",
    NEVER: "never visited",
    SINKS: "masked, visited for the sinks alone",
}


def causal() -> Picture:
    """Full tiles below the diagonal, masked ones on it, none above (p01, p04)."""
    tiles = kinds(visible("p04", CAUSAL_SEQLEN), BLOCK, BLOCK)
    visited, masked, side = count(tiles, FULL, MASKED), count(tiles, MASKED), len(tiles)
    canvas = Canvas(
        "causal-tiles",
        title=f"A causal mask leaves {visited} of {side**2} tiles, and only {masked} need a mask",
        desc=f"{side} query tiles down, {side} key tiles across. Tiles below the diagonal are "
        "full, tiles on it are masked, tiles above it are never visited. One masked tile is "
        "enlarged: key <= query separates its visible pairs from the hidden ones.",
        height=520,
    )
    canvas.heading(f"Causal: {visited} of {side**2} tiles are visited,", f"{masked} need a mask")
    pitch = 46
    _axes(canvas)
    draw_map(canvas, tiles, MAP_X, MAP_Y, pitch, GAP)
    corner = 2 * pitch
    _enlarged(canvas, MAP_X + corner, MAP_Y + corner, pitch - GAP)
    entries = [(kind, LEGEND[kind]) for kind in (FULL, MASKED, NEVER)]
    draw_legend(canvas, entries, MARGIN, 416)
    return canvas.finish()


def window_bounds() -> Picture:
    """The band of a sliding window and the four bounds of one query tile (p06)."""
    mask = visible("p06", SEQLEN, window_size=WINDOW_SIZE)
    tiles = kinds(mask, BLOCK, BLOCK)
    found = bounds(mask, MARKED * BLOCK, BLOCK, BLOCK)
    queries = f"{MARKED * BLOCK} to {(MARKED + 1) * BLOCK - 1}"
    canvas = Canvas(
        "window-bounds",
        title="Four bounds say which key tiles a query tile visits, and which of them are masked",
        desc=f"A map of {SEQLEN} keys in tiles of {BLOCK} with window_size {WINDOW_SIZE}: a band "
        f"along the diagonal. For the queries {queries}, first_key is {found.first_key}, "
        f"full_start is {found.full_start}, full_end is {found.full_end} and end_key "
        f"is {found.end_key}. Tiles from full_start to full_end are full, the others from "
        "first_key to end_key are masked.",
        height=734,
    )
    canvas.heading("A window visits a band of tiles;", "four bounds cut it into three parts")
    pitch = (WIDTH - MARGIN - MAP_X) / len(tiles)
    _axes(canvas)
    draw_map(canvas, tiles, MAP_X, MAP_Y, pitch, GAP)
    top = MAP_Y + MARKED * pitch
    canvas.box(
        MAP_X - 3, top - 2.5, WIDTH - MARGIN - MAP_X + 3, pitch + 2, "none", stroke="ink",
        stroke_width=2,
    )  # fmt: skip
    canvas.lines(MARGIN, top + 12, [str(MARKED * BLOCK), f"to {(MARKED + 1) * BLOCK - 1}"], size=14)
    y = MAP_Y + len(tiles) * pitch + 24
    for name in ("end_key", "full_end", "full_start", "first_key"):
        key = getattr(found, name)
        x = MAP_X + key / BLOCK * pitch - GAP / 2
        canvas.line([(x, top - 2), (x, y + 4)], stroke="plum-ink", width=2)
        canvas.text(x + 7, y + 4, f"`{name}` = {key}", fill="plum-ink", bold=True)
        y += 26
    canvas.text(
        MARGIN, y + 12, f"`window_size` {WINDOW_SIZE}, tiles of {BLOCK} x {BLOCK}", fill="soft"
    )
    draw_legend(canvas, [(kind, LEGEND[kind]) for kind in (FULL, MASKED)], MARGIN, y + 28)
    return canvas.finish()


def window_sinks() -> Picture:
    """Sink tokens add one tile per query tile, unless the window holds them (p07)."""
    window = kinds(visible("p06", SEQLEN, window_size=WINDOW_SIZE), BLOCK, BLOCK)
    options = {"window_size": WINDOW_SIZE, "num_sink_tokens": NUM_SINK_TOKENS}
    tiles = with_sinks(kinds(visible("p07", SEQLEN, **options), BLOCK, BLOCK), window)
    column = [row[0] for row in tiles]
    first, last = column.index(SINKS), len(tiles) - 1
    canvas = Canvas(
        "window-sinks",
        title="Sink tokens add one key tile to each query tile whose window has left them",
        desc=f"The band of a window of {WINDOW_SIZE} keys with {NUM_SINK_TOKENS} sink tokens. In "
        f"query tiles 0 to {first - 1} the sinks lie in a tile of the window. From query tile "
        f"{first} on, key tile 0 is visited for the sinks alone and is masked. The tiles between "
        "sinks and window are never visited.",
        height=686,
    )
    canvas.heading("Sinks: one more tile per query tile,", "once the window has left them")
    pitch = (WIDTH - MARGIN - MAP_X) / len(tiles)
    _axes(canvas)
    draw_map(canvas, tiles, MAP_X, MAP_Y, pitch, GAP)
    for row in range(len(tiles)):
        canvas.text(
            MAP_X - 12, MAP_Y + row * pitch + pitch / 2 + 4, str(row), size=14, anchor="end",
            fill="soft",
        )  # fmt: skip
    y = MAP_Y + len(tiles) * pitch + 26
    notes = [
        f"query tiles 0 to {first - 1}: the window holds the sinks",
        f"query tiles {first} to {last}: a tile for the sinks alone",
    ]
    canvas.lines(MARGIN, y, notes)
    entries = [(kind, LEGEND[kind]) for kind in (FULL, MASKED, SINKS)]
    draw_legend(canvas, entries, MARGIN, y + 38)
    sizes = f"`window_size` {WINDOW_SIZE}, `num_sink_tokens` {NUM_SINK_TOKENS}"
    canvas.text(MARGIN, y + 146, f"{sizes}, tiles of {BLOCK} x {BLOCK}", size=14, fill="soft")
    return canvas.finish()


def positions() -> Picture:
    """One loop over positions: those before first_key stand for the tiles of the sinks (p07)."""
    found = positions_of()
    window = [start for position, start in found if position == start]
    sinks = [position for position, start in found if position != start]
    begin, first_key = sinks[0], window[0]
    canvas = Canvas(
        "sink-positions",
        title="Positions before first_key stand for the tiles of the sinks",
        desc=f"p07's worked example: {len(found)} tiles of {POSITION_BLOCK} keys for the queries "
        f"{POSITION_ROWS[0]} to {POSITION_ROWS[-1]}. Above, the positions of the loop from begin, "
        f"{begin}, to end_key; below, the keys. An arrow leads from each position to the tile of "
        f"keys that is loaded. The positions {begin} to {first_key - 1} lead to the tiles of the "
        f"sinks, from key 0 on; from first_key, {first_key}, on a position is the key itself.",
        height=424,
    )
    canvas.heading("One loop over positions:", "sink tiles first, then the window")
    pitch = (WIDTH - 2 * MARGIN) / POSITION_SEQLEN
    above, below, height = 148, 268, 40
    canvas.text(MARGIN, above - 44, "position", bold=True)
    canvas.text(MARGIN, below + height + 22, "key", bold=True)
    for position, start in found:
        kind = "blue" if position == start else "orange"
        for x, y, number in ((position, above, position), (start, below, start)):
            width = POSITION_BLOCK * pitch - 3
            canvas.box(MARGIN + x * pitch, y, width, height, kind)
            words = f"{number}, {number + 1}" if y == below else str(number)
            canvas.text(MARGIN + x * pitch + width / 2, y + 26, words, anchor="middle", size=14)
        ends = [
            (MARGIN + (x + POSITION_BLOCK / 2) * pitch - 1.5, y)
            for x, y in ((position, above + height + 2), (start, below - 2))
        ]
        canvas.line(ends, stroke="orange-ink" if kind == "orange" else "blue-ink", arrow=True)
    keys = {start for _, start in found}
    for start in range(0, POSITION_SEQLEN, POSITION_BLOCK):
        if start not in keys:
            width = POSITION_BLOCK * pitch - 3
            canvas.box(
                MARGIN + start * pitch, below, width, height, "none", stroke="faint", dashed=True
            )
    for name, key in (("begin", begin), ("first_key", first_key)):
        x = MARGIN + key * pitch - 1.5
        canvas.line([(x, above - 30), (x, above + height)], stroke="plum-ink", width=2)
        canvas.text(x + 6, above - 14, f"`{name}` = {key}", fill="plum-ink", bold=True, size=14)
    y = below + height + 48
    canvas.box(MARGIN, y - 2, 22, 22, "orange")
    canvas.text(
        MARGIN + 32, y + 14, f"tiles of the {POSITION_SINKS} sinks: key = position - `begin`"
    )
    canvas.box(MARGIN, y + 28, 22, 22, "blue")
    canvas.text(MARGIN + 32, y + 44, "tiles of the window: key = position")
    return canvas.finish()


def positions_of() -> list[tuple[int, int]]:
    """Position and first key of each tile of p07's worked example, from its mask: the tiles before
    those of the window get the positions right before first_key."""
    options = {"window_size": POSITION_WINDOW, "num_sink_tokens": POSITION_SINKS}
    rows = visible("p07", POSITION_SEQLEN, **options)[list(POSITION_ROWS)]
    near = visible("p06", POSITION_SEQLEN, window_size=POSITION_WINDOW)[list(POSITION_ROWS)]

    def starts(mask) -> list[int]:
        return sorted(
            {int(key) // POSITION_BLOCK * POSITION_BLOCK for key in mask.any(0).nonzero()}
        )

    window = starts(near)
    sinks = [start for start in starts(rows) if start < window[0]]
    begin = window[0] - len(sinks) * POSITION_BLOCK
    return [(begin + start, start) for start in sinks] + [(start, start) for start in window]


def _axes(canvas: Canvas) -> None:
    canvas.text(MARGIN, MAP_Y - 14, "queries ↓", fill="soft")
    canvas.text(MAP_X + 34, MAP_Y - 14, "keys →", fill="soft")


def _enlarged(canvas: Canvas, tile_x: float, tile_y: float, size: float) -> None:
    """A tile on the diagonal, drawn as if it had 8 queries and 8 keys."""
    mask = visible("p04", 8)
    left, top, cell = 364, MAP_Y, 12.5
    for i, row in enumerate(mask.tolist()):
        for j, shown in enumerate(row):
            fill, stroke = ("teal", "line") if shown else ("none", "faint")
            place = (left + j * cell, top + i * cell, cell - 2, cell - 2)
            canvas.box(*place, fill, stroke=stroke, radius=1)
    bottom = top + 8 * cell
    canvas.line([(tile_x + size, tile_y), (left - 4, top)], stroke="soft", dashed=True)
    canvas.line([(tile_x + size, tile_y + size), (left - 4, bottom)], stroke="soft", dashed=True)
    canvas.lines(left, bottom + 22, ["inside one M:", "key ≤ query"])
