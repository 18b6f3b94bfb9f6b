"""Who owns which gradient (p08), and how p09 sorts its pairs."""

from __future__ import annotations

import torch

from .canvas import MARGIN, WIDTH, Canvas, Picture
from .masks import BLOCK, CAUSAL_SEQLEN
from .tiles import FULL, LETTERS, MASKED, NEVER, draw_map, kinds, visible

OWNED = 3  # the tile of queries, and of keys, that is shown
# p09's worked example
SEQLEN, WINDOW_SIZE, NUM_SINK_TOKENS, CHUNK = 12, 3, 2, 4
WINDOW_PAIR, SINK_PAIR, HIDDEN = "w", "s", ""


def owners() -> Picture:
    """A program for dq owns a row of tiles, one for dk and dv a column (p08)."""
    tiles = kinds(visible("p08", CAUSAL_SEQLEN), BLOCK, BLOCK)
    row = [j for j, kind in enumerate(tiles[OWNED]) if kind != NEVER]
    column = [i for i, line in enumerate(tiles) if line[OWNED] != NEVER]
    canvas = Canvas(
        "backward-owners",
        title="The program for dq owns a row of tiles, the program for dk and dv a column",
        desc=f"Two maps of the same causal tiles. On the left the program that owns dq of query "
        f"tile {OWNED} holds q, dout, lse and delta, and reads k and v of key tiles {row[0]} to "
        f"{row[-1]}. On the right the program that owns dk and dv of key tile {OWNED} holds k and "
        f"v, and reads q, dout, lse and delta of query tiles {column[0]} to {column[-1]}, for each "
        "query head of the group.",
        height=528,
    )
    canvas.heading("Backward: each gradient has one owner,", "so no sum needs atomics")
    side = (WIDTH - 2 * MARGIN - 28) / 2
    pitch = side / len(tiles)
    right, top = MARGIN + side + 28, 136
    for x, words in ((MARGIN, "`dq`: a row"), (right, "`dk`, `dv`: a column")):
        canvas.text(x, 92, words, bold=True, size=16)
        canvas.text(x, 120, "queries ↓   keys →", size=14, fill="soft")
        draw_map(canvas, tiles, x, top, pitch)
    _owned(canvas, MARGIN + row[0] * pitch, top + OWNED * pitch, len(row) * pitch, pitch)
    _owned(canvas, right + OWNED * pitch, top + column[0] * pitch, pitch, len(column) * pitch)
    y = top + side + 30
    held, read = ("`q`, `dout`", "`lse`, `delta`"), ("`k`, `v`",)
    _roles(canvas, MARGIN, y, held, read, "")
    _roles(canvas, right, y, read, held, "for each head of the group")
    legend = f"{LETTERS[FULL]} every pair is visible, {LETTERS[MASKED]} the diagonal crosses it"
    canvas.text(MARGIN, y + 130, legend, size=14, fill="soft")
    return canvas.finish()


def _owned(canvas: Canvas, x: float, y: float, width: float, height: float) -> None:
    canvas.box(x - 1.5, y - 1.5, width, height, "none", stroke="plum-ink", stroke_width=4)


def _roles(canvas: Canvas, x: float, y: float, held, read, note: str) -> None:
    """What one program holds from start to end, and what it reads on its way."""
    canvas.text(x, y, "holds", fill="soft")
    canvas.lines(x + 54, y, held)
    canvas.text(x, y + 52, "reads", fill="soft")
    canvas.lines(x + 54, y + 52, read)
    if note:
        canvas.text(x, y + 100, note, size=14, bold=True)


def pair_kinds(
    seqlen: int = SEQLEN, window_size: int = WINDOW_SIZE, num_sink_tokens: int = NUM_SINK_TOKENS
) -> list[list[str]]:
    """The kind of every pair, queries down, from the masks with and without sinks."""
    window = visible("p06", seqlen, window_size=window_size)
    options = {"window_size": window_size, "num_sink_tokens": num_sink_tokens}
    every = visible("p09", seqlen, **options)
    letters = torch.where(window, 2, torch.where(every, 1, 0)).tolist()
    return [[(HIDDEN, SINK_PAIR, WINDOW_PAIR)[letter] for letter in row] for row in letters]


def pairs() -> Picture:
    """Window pairs and sink pairs, and the chunks of queries of the sink pairs (p09)."""
    letters = pair_kinds()
    number = {kind: sum(row.count(kind) for row in letters) for kind in (WINDOW_PAIR, SINK_PAIR)}
    first = min(i for i, row in enumerate(letters) if SINK_PAIR in row)
    chunks = [range(i, min(i + CHUNK, SEQLEN)) for i in range(first, SEQLEN, CHUNK)]
    in_chunk = [sum(letters[i].count(SINK_PAIR) for i in chunk) for chunk in chunks]
    counts = ", ".join(map(str, in_chunk))
    canvas = Canvas(
        "backward-pairs",
        title="Every visible pair is a window pair or a sink pair, and counts once",
        desc=f"{SEQLEN} queries and keys, window_size {WINDOW_SIZE}, {NUM_SINK_TOKENS} sink "
        f"tokens. {number[WINDOW_PAIR]} window pairs lie in a band along the diagonal. "
        f"{number[SINK_PAIR]} sink pairs lie below it in the columns of the sinks; queries from "
        f"{first} on are cut into {len(chunks)} chunks with {counts} sink pairs.",
        height=574,
    )
    canvas.heading("p09: each visible pair is of one kind,", "so dk and dv count it once")
    left, top, pitch = 56, 108, 26
    canvas.text(MARGIN, top - 14, "queries ↓", fill="soft")
    canvas.text(left + 60, top - 14, "keys →", fill="soft")
    for i, row in enumerate(letters):
        canvas.text(left - 10, top + i * pitch + 17, str(i), size=14, anchor="end", fill="soft")
        for j, letter in enumerate(row):
            draw_pair(canvas, letter, left + j * pitch, top + i * pitch, pitch - 3)
    end = left + SEQLEN * pitch
    for index, chunk in enumerate(chunks):
        upper, lower = top + chunk[0] * pitch, top + (chunk[-1] + 1) * pitch - 3
        corner = [(end + 2, upper), (end + 10, upper), (end + 10, lower), (end + 2, lower)]
        canvas.line(corner, stroke="orange-ink", width=2)
        middle = (upper + lower) / 2
        canvas.text(end + 18, middle - 4, f"chunk {index}", fill="orange-ink", bold=True)
        canvas.text(end + 18, middle + 15, f"{in_chunk[index]} pairs", fill="orange-ink")
    return _pairs_legend(canvas, number, top + SEQLEN * pitch + 18)


def draw_pair(canvas: Canvas, letter: str, x: float, y: float, size: float) -> None:
    """One pair of a query and a key, with the letter of its kind."""
    if letter == HIDDEN:
        canvas.box(x, y, size, size, "none", stroke="faint", dashed=True)
        return
    canvas.box(x, y, size, size, "teal" if letter == WINDOW_PAIR else "orange")
    canvas.text(x + size / 2, y + size / 2 + 5, letter, bold=True, anchor="middle")


def _pairs_legend(canvas: Canvas, number: dict[str, int], y: float) -> Picture:
    words = {
        WINDOW_PAIR: "window pairs: a program per tile of keys",
        SINK_PAIR: "sink pairs: a program per chunk, then a sum",
    }
    for index, (letter, text) in enumerate(words.items()):
        draw_pair(canvas, letter, MARGIN, y + 30 * index, 23)
        canvas.text(MARGIN + 32, y + 30 * index + 17, f"{number[letter]} {text}")
    visible_pairs = f"{number[WINDOW_PAIR]} + {number[SINK_PAIR]} = {sum(number.values())}"
    canvas.text(MARGIN, y + 84, f"{visible_pairs} visible pairs", bold=True)
    sizes = f"`window_size` {WINDOW_SIZE}, `num_sink_tokens` {NUM_SINK_TOKENS}"
    canvas.text(MARGIN, y + 108, sizes, fill="soft")
    return canvas.finish()
