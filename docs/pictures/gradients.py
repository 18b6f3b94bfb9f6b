"""The backward pass: its graph, its transposed tile (p08), and the queries of a key tile (p09)."""

from __future__ import annotations

from .backward import SINK_PAIR, WINDOW_PAIR, draw_pair, pair_kinds
from .canvas import MARGIN, WIDTH, Canvas, Picture
from .tiles import visible

# p09's example: the keys 4 to 7, and the tile of sinks before it
SEQLEN, WINDOW_SIZE, NUM_SINK_TOKENS, BLOCK_M, BLOCK_N, CHUNK = 20, 9, 2, 2, 4, 6
TILE = 4  # queries and keys of the tile that p08's picture turns
PAIR = (2, 1)  # the query and key of the pair that it marks


def graph() -> Picture:
    """From q, k, v to out and back: what each gradient needs (p08)."""
    canvas = Canvas(
        "gradient-graph",
        title="The backward pass goes through the forward pass from right to left",
        desc="Above, the forward pass: S from q and k, P from S by a softmax, O from P and v. "
        "Below, the backward pass from right to left: dP from dO and v, dS from P, dP and delta, "
        "then dQ from dS and k and dK from dS and q. dV comes from P and dO, and delta from dO "
        "and O. q, k, v, O, lse and the gradients are in memory; S, P, dP and dS exist as tiles "
        "on the chip, and the backward pass computes S and P again.",
        height=612,
    )
    canvas.heading("Forward from left to right,", "backward from right to left")
    boxes = {
        "q": (52, 116), "k": (52, 166), "v": (52, 246), "S": (180, 156), "P": (306, 156),
        "lse": (306, 100), "O": (428, 196), "dO": (428, 386), "delta": (306, 282), "dP": (306, 336),
        "dS": (180, 336), "dQ": (52, 304), "dK": (52, 354), "dV": (52, 434),
    }  # fmt: skip
    on_chip = {"S", "P", "dP", "dS"}
    for start, end in (("q", "S"), ("k", "S"), ("S", "P"), ("P", "O"), ("v", "O"), ("S", "lse")):
        _arrow(canvas, boxes[start], boxes[end], "blue-ink")
    for start, end in (
        ("dO", "dP"), ("dP", "dS"), ("delta", "dS"), ("dO", "delta"), ("O", "delta"),
        ("dS", "dQ"), ("dS", "dK"), ("dO", "dV"),
    ):  # fmt: skip
        _arrow(canvas, boxes[start], boxes[end], "plum-ink")
    for name, (x, y) in boxes.items():
        paint = canvas.hatched if name in on_chip else canvas.box
        paint(x - 32, y - 16, 64, 32, "teal" if name in on_chip else "blue")
        if name in on_chip:
            canvas.box(x - 20, y - 12, 40, 24, stroke="none")
        canvas.text(x, y + 5, f"`{name}`", anchor="middle", bold=True)
    formulas = [
        "`S = scale q kᵀ`, masked", "`P = exp(S - lse)`", "`O = P v`",
        "`dV = Pᵀ dO`", "`dP = dO vᵀ`", "`delta = row sum of dO · O`",
        "`dS = P (dP - delta)`", "`dQ = scale dS k`", "`dK = scale dSᵀ q`",
    ]  # fmt: skip
    y = 486.0
    for number, words in enumerate(formulas[:3]):
        canvas.text(MARGIN, y + 22 * number, words, size=14, fill="blue-ink")
    for number, words in enumerate(formulas[3:]):
        canvas.text(250, y + 22 * number, words, size=14, fill="plum-ink")
    canvas.box(MARGIN, 552, 24, 18, "blue")
    canvas.text(MARGIN + 34, 566, "in memory")
    canvas.hatched(MARGIN, 578, 24, 18, "teal")
    canvas.text(MARGIN + 34, 592, "a tile, on the chip")
    return canvas.finish()


def _arrow(canvas: Canvas, start: tuple[float, float], end: tuple[float, float], stroke: str):
    """An arrow between the sides of two boxes that face each other."""
    (x1, y1), (x2, y2) = start, end
    if x1 == x2:
        side = 16 if y2 > y1 else -16
        canvas.line([(x1, y1 + side), (x2, y2 - side)], stroke=stroke, arrow=True)
    else:
        side = 32 if x2 > x1 else -32
        canvas.line([(x1 + side, y1), (x2 - side, y2)], stroke=stroke, arrow=True)


def transposed() -> Picture:
    """The same tile with queries down, for dq, and with keys down, for dk and dv (p08)."""
    seen = visible("p08", TILE)
    query, key = PAIR
    canvas = Canvas(
        "transposed-tile",
        title="The kernel for dk and dv holds the same tile with keys down and queries across",
        desc=f"A tile on the diagonal with {TILE} queries and {TILE} keys, twice. In the kernel "
        "for dq, queries run down and keys across, and lse and delta are columns beside it. In "
        "the kernel for dk and dv, keys run down and queries across, and lse and delta are rows "
        f"above it. The pair of query {query} and key {key} is in row {query}, column {key} on "
        f"the left and in row {key}, column {query} on the right.",
        height=522,
    )
    canvas.heading("One tile, two layouts: so each product", "has its left operand ready")
    top, cell = 178, 34
    left, right = MARGIN + 62, WIDTH - MARGIN - TILE * cell
    for x, name, words in (
        (MARGIN, "`dq`", "queries down"),
        (right - 52, "`dk`, `dv`", "keys down"),
    ):
        canvas.text(x, 96, f"for {name}: {words}", bold=True, size=14)
    canvas.text(left, 126, "keys →", size=14, fill="soft")
    canvas.text(right, 126, "queries →", size=14, fill="soft")
    for number in range(TILE):
        canvas.box(left - 34, top + number * cell, cell - 3, cell - 3, "green")
        canvas.box(right + number * cell, top - 34, cell - 3, cell - 3, "green")
        for x, y in (
            (left - 18.5, top + number * cell + 21),
            (right + number * cell + 15.5, top - 13),
        ):
            canvas.text(x, y, str(number), anchor="middle", size=14)
        middle = number * cell + 21
        canvas.text(left + number * cell + 15.5, top - 10, str(number), anchor="middle", size=14)
        canvas.text(right - 14, top + middle, str(number), anchor="middle", size=14)
    for i in range(TILE):
        for j in range(TILE):
            for x, y in ((left + j * cell, top + i * cell), (right + i * cell, top + j * cell)):
                fill, stroke = ("teal", "line") if seen[i, j] else ("none", "faint")
                canvas.box(x, y, cell - 3, cell - 3, fill, stroke=stroke, dashed=not seen[i, j])
    for x, y in ((left + key * cell, top + query * cell), (right + query * cell, top + key * cell)):
        canvas.box(x - 1, y - 1, cell - 1, cell - 1, "none", stroke="plum-ink", stroke_width=4)
    y = top + TILE * cell + 30
    canvas.lines(MARGIN, y, ["`lse[:, None]`", "`keys[None, :]`", "`(BLOCK_M, BLOCK_N)`"], size=14)
    canvas.lines(
        right - 52, y, ["`lse[None, :]`", "`keys[:, None]`", "`(BLOCK_N, BLOCK_M)`"], size=14
    )
    canvas.text(MARGIN, y + 74, "`dq += dS k`", bold=True)
    canvas.lines(right - 52, y + 74, ["`dv += Pᵀ dO`", "`dk += dSᵀ q`"], bold=True)
    canvas.box(MARGIN, y + 114, 24, 24, "green")
    canvas.text(MARGIN + 34, y + 131, "`lse` and `delta`, one number per query")
    words = f"the pair of query {query} and key {key}, in both"
    canvas.box(MARGIN + 2, y + 144, 20, 20, "teal", stroke="plum-ink", stroke_width=4)
    canvas.text(MARGIN + 34, y + 159, words)
    return canvas.finish()


def letters(key_start: int) -> list[list[str]]:
    """The kind of each pair of a key tile, queries down."""
    kinds = pair_kinds(SEQLEN, WINDOW_SIZE, NUM_SINK_TOKENS)
    return [row[key_start : key_start + BLOCK_N] for row in kinds]


def ranges_of(key_start: int) -> dict[str, tuple[int, int]]:
    """The three ranges of queries of a key tile's window pairs, from its mask: whole query tiles
    in which every pair is a window pair, and what lies before and behind them."""
    seen = [[letter == WINDOW_PAIR for letter in row] for row in letters(key_start)]
    with_pairs = [i for i, row in enumerate(seen) if any(row)]
    full = [i for i in range(key_start, SEQLEN, BLOCK_M) if all(map(all, seen[i : i + BLOCK_M]))]
    begin, end = with_pairs[0], with_pairs[-1] + 1
    return {
        "diagonal": (begin, full[0]),
        "full": (full[0], full[-1] + BLOCK_M),
        "right edge": (full[-1] + BLOCK_M, end),
    }


def query_ranges() -> Picture:
    """The queries of a key tile: three ranges of its window, and the chunks of its sinks (p09)."""
    ranges = ranges_of(BLOCK_N)
    (_, diagonal_end), (_, full_end), (_, end_query) = ranges.values()
    chunks = [(first, min(first + CHUNK, SEQLEN)) for first in range(WINDOW_SIZE, SEQLEN, CHUNK)]
    spans = " and ".join(f"{first} to {stop - 1}" for first, stop in chunks)
    canvas = Canvas(
        "query-ranges",
        title="A key tile has three ranges of queries, and a tile of sinks has chunks besides",
        desc=f"Two key tiles of {BLOCK_N} keys with window_size {WINDOW_SIZE} and "
        f"{NUM_SINK_TOKENS} sink tokens; queries run down from 0 to {SEQLEN - 1}. The keys 4 to 7 "
        f"form window pairs with the queries 4 to {end_query - 1}: the diagonal, masked, to "
        f"{diagonal_end - 1}; full tiles, without a mask, to {full_end - 1}; the right edge, "
        f"masked, to {end_query - 1}. The sinks in the keys 0 to 3 also form sink pairs, with the "
        f"queries from {WINDOW_SIZE} on, in chunks: {spans}.",
        height=656,
    )
    canvas.heading("dk and dv of a key tile: ranges of queries,", "and chunks for its sinks")
    top, cell, first, second = 112, 22, 150, 270
    canvas.text(first - 34, top - 12, "queries ↓", size=14, fill="soft", anchor="end")
    for i in range(SEQLEN):
        canvas.text(first - 10, top + i * cell + 16, str(i), size=14, anchor="end", fill="soft")
    for left, key_start in ((first, 0), (second, BLOCK_N)):
        words = f"keys {key_start} to {key_start + BLOCK_N - 1}"
        canvas.text(left, top - 12, words, size=14, bold=True)
        for i, row in enumerate(letters(key_start)):
            for j, letter in enumerate(row):
                draw_pair(canvas, letter, left + j * cell, top + i * cell, cell - 2)
    words = {"diagonal": "masked", "full": "no mask", "right edge": "masked"}
    for name, (begin, end) in ranges.items():
        _range(
            canvas, second + BLOCK_N * cell, top, cell, begin, end, "blue-ink", [name, words[name]]
        )
    for number, (begin, end) in enumerate(chunks):
        span = [f"chunk {number}", f"{begin} to {end - 1}"]
        _range(canvas, first - 40, top, cell, begin, end, "orange-ink", span)
    y = top + SEQLEN * cell + 26
    bounds = f"`diagonal_end` {diagonal_end}, `full_end` {full_end}, `end_query` {end_query}"
    canvas.text(MARGIN, y, f"keys 4 to 7: {bounds}", size=14)
    draw_pair(canvas, WINDOW_PAIR, MARGIN, y + 14, 20)
    canvas.text(MARGIN + 28, y + 29, "window pair")
    draw_pair(canvas, SINK_PAIR, MARGIN + 150, y + 14, 20)
    canvas.text(MARGIN + 178, y + 29, "sink pair")
    sizes = f"`window_size` {WINDOW_SIZE}, {NUM_SINK_TOKENS} sinks, query tiles of {BLOCK_M}"
    canvas.text(MARGIN, y + 58, sizes, size=14, fill="soft")
    return canvas.finish()


def _range(canvas: Canvas, x, top, cell, begin, end, stroke, words) -> None:
    """A bracket beside the queries from begin to end, to the left of x if it is a chunk's."""
    upper, lower = top + begin * cell + 1, top + end * cell - 3
    side = 1 if stroke == "blue-ink" else -1
    corner = [(x, upper), (x + 8 * side, upper), (x + 8 * side, lower), (x, lower)]
    canvas.line(corner, stroke=stroke, width=2)
    middle = (upper + lower) / 2
    for number, line in enumerate(words):
        canvas.text(
            x + 15 * side, middle - 3 + 19 * number, line, size=14, fill=stroke, bold=number == 0,
            anchor="start" if side == 1 else "end",
        )  # fmt: skip
