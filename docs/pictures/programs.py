"""What one program does: its block of rows (p02), its query tile against all keys (p03)."""

from __future__ import annotations

import torch

import reference

from .canvas import MARGIN, WIDTH, Canvas, Picture

# p02's worked example
ROWS, COLS, BLOCK_M, BLOCK_N = 3, 5, 2, 4
WEIGHTS = (1.0, 2.0, 0.0, -1.0, 3.0)
CELL = 36
# p03's fourth question
SEQLEN_K, KEY_TILE = 200, 64


def grid_strides() -> Picture:
    """Programs own blocks of rows; strides are steps in memory (p02)."""
    x = 10.0 * torch.arange(ROWS)[:, None] + torch.arange(COLS)
    y = reference.weighted_row_sum(x, torch.tensor(WEIGHTS))
    programs, steps = -(-ROWS // BLOCK_M), -(-COLS // BLOCK_N)
    lanes = programs * steps * BLOCK_M * BLOCK_N
    stride_xm, stride_xn = x.stride()
    canvas = Canvas(
        "grid-strides",
        title="Each program owns a block of rows; a stride is a step in memory",
        desc=f"A matrix x of {ROWS} rows and {COLS} columns is covered by {programs} programs of "
        f"{BLOCK_M} rows, each in {steps} tiles of {BLOCK_N} columns. Of {lanes} lanes {x.numel()} "
        "load an element, the others are masked. Below, the same elements in memory, in one line: "
        f"one column further is {stride_xn} step, one row further is {stride_xm} steps.",
        height=564,
    )
    canvas.heading("Programs own rows of x;", "strides are steps in memory")
    left, top = 112, 162
    canvas.text(left, top - 64, "tile 1", fill="soft")
    canvas.text(_lane(left, BLOCK_N), top - 64, "tile 2", fill="soft")
    canvas.text(left - 24, top - 29, "`w`", bold=True)
    canvas.text(WIDTH - MARGIN, top - 29, "`y`", bold=True, anchor="end")
    for j, weight in enumerate(WEIGHTS):
        canvas.box(_lane(left, j), top - 52, CELL - 3, CELL - 3, "green")
        words = f"{weight:g}".replace("-", "−")
        canvas.text(_lane(left, j) + 16.5, top - 30, words, anchor="middle")
    for program in range(programs):
        _program(canvas, program, x, y, left, top + program * (BLOCK_M * CELL + 12))
    bottom = top + programs * (BLOCK_M * CELL + 12) + 14
    canvas.text(left, bottom, f"masked lanes, {lanes - x.numel()} of {lanes}: no access")
    canvas.box(left - 32, bottom - 16, 22, 22, "none", stroke="faint", dashed=True)
    _memory(canvas, x, bottom + 64)
    return canvas.finish()


def _lane(left: float, j: int) -> float:
    """Where column j is drawn."""
    return left + j * CELL + 10 * (j // BLOCK_N)


def _program(canvas, program: int, x: torch.Tensor, y: torch.Tensor, left: float, top: float):
    """The two tiles of one program, with the rows of y that it stores."""
    fill = ("blue", "orange")[program]
    canvas.lines(MARGIN, top + 32, ["program", str(program)], bold=True, fill=f"{fill}-ink")
    for row in range(BLOCK_M):
        i = program * BLOCK_M + row
        for j in range(-(-COLS // BLOCK_N) * BLOCK_N):
            place = (_lane(left, j), top + row * CELL, CELL - 3, CELL - 3)
            if i < ROWS and j < COLS:
                canvas.box(*place, fill)
                value = f"{x[i, j].item():g}"
                canvas.text(place[0] + 16.5, place[1] + 22, value, anchor="middle")
            else:
                canvas.box(*place, "none", stroke="faint", dashed=True)
        if i < ROWS:
            canvas.text(WIDTH - MARGIN, top + row * CELL + 22, f"{y[i].item():g}", anchor="end")


def _memory(canvas: Canvas, x: torch.Tensor, top: float) -> None:
    """The elements of x in the order of their addresses, and a step of each stride."""
    stride_xm, stride_xn = x.stride()
    pitch = (WIDTH - 2 * MARGIN) / x.numel()
    canvas.text(MARGIN, top - 14, "`x` in memory, and the address of each element", fill="soft")
    for address, value in enumerate(x.flatten().tolist()):
        fill = ("blue", "orange")[address // stride_xm // BLOCK_M]
        place = MARGIN + address * pitch
        canvas.box(place, top, pitch - 2, 34, fill)
        canvas.text(place + pitch / 2 - 1, top + 22, f"{value:g}", size=14, anchor="middle")
        canvas.text(
            place + pitch / 2 - 1, top + 52, str(address), size=14, anchor="middle", fill="soft"
        )

    def middle(i: int, j: int) -> float:
        return MARGIN + (i * stride_xm + j * stride_xn + 0.5) * pitch - 1

    arrows = (
        ((0, 1), (0, 2), f"`stride_xn` = {stride_xn}"),
        ((1, 1), (2, 1), f"`stride_xm` = {stride_xm}"),
    )
    for start, end, words in arrows:
        a, b, y = middle(*start), middle(*end), top + 76
        canvas.line([(a, top + 58), (a, y), (b, y), (b, top + 58)], stroke="ink", arrow=True)
        canvas.text(a, y + 22, words, bold=True)
    i, j = 2, 1
    address = i * stride_xm + j * stride_xn
    words = f"`x[{i}, {j}]` is at {i} · {stride_xm} + {j} · {stride_xn} = {address}"
    canvas.text(MARGIN, top + 130, words)


def flash_program() -> Picture:
    """One program keeps its query tile and its state, and loops over the key tiles (p03)."""
    keys = reference.visible_keys(KEY_TILE, SEQLEN_K, is_causal=False)
    widths = [tile.shape[1] for tile in keys.split(KEY_TILE, dim=1)]
    canvas = Canvas(
        "flash-program",
        title="One program of flash attention keeps a query tile and its state while keys pass by",
        desc=f"A program holds one tile of q, BLOCK_M by head_dim. It loops over {len(widths)} "
        f"tiles of k and v, here {SEQLEN_K} keys in tiles of {KEY_TILE}; the last tile holds "
        f"{widths[-1]} keys and is masked. For each tile it computes a tile of scores, updates "
        "running_max, running_sum and acc, and forgets the scores. At the end it stores out and "
        "lse once.",
        height=560,
    )
    canvas.heading("One program: the query tile stays,", "key and value tiles pass by")
    left, pitch, size, row, now = 116, 88, 74, 206, 1
    canvas.text(MARGIN, 100, f"{SEQLEN_K} keys", fill="soft")
    canvas.line([(left, 95), (WIDTH - MARGIN, 95)], stroke="soft", arrow=True)
    canvas.box(MARGIN, row, size, size, "blue", stroke="ink", stroke_width=2)
    canvas.lines(MARGIN + size / 2, row + 34, ["`q`", "stays"], anchor="middle", bold=True)
    for number, width in enumerate(widths):
        x, there = left + number * pitch, size * width / KEY_TILE
        canvas.text(x, row - 84, str(width), size=14, fill="soft")
        _passing(canvas, "k", x, row - 76, there, "orange", number == now)
        _passing(canvas, "v", x, row + size + 24, there, "green", number == now)
        if number == now:
            continue
        canvas.box(x, row, size, size, "none", stroke="faint", dashed=True)
        if there == size:
            words = "gone" if number < now else "later"
            canvas.text(x + size / 2, row + 32, words, anchor="middle", fill="soft")
        else:
            canvas.hatched(x + there, row, size - there, size, "grey", stroke="faint")
            canvas.box(x + there + 3, row + 25, size - there - 6, 22, stroke="none")
            canvas.text(x + (there + size) / 2, row + 41, "masked", size=14, anchor="middle")
    x, y = left + now * pitch + size / 2, row + size + 76
    canvas.line([(x, row - 24), (x, row)], stroke="ink", width=2, arrow=True)
    across = [(MARGIN + size, row + 52), (x - size / 2, row + 52)]
    canvas.line(across, stroke="ink", width=2, arrow=True)
    canvas.box(x - size / 2, row, size, size, "teal", stroke="ink", stroke_width=2)
    canvas.lines(x, row + 34, ["scores,", "on chip"], anchor="middle", size=14)
    canvas.line([(x, row + size), (x, row + size + 24)], stroke="ink", width=2, arrow=True)
    canvas.line([(x, y), (x, y + 40)], stroke="ink", width=2, arrow=True)
    canvas.text(x + 12, y + 26, "updates", fill="soft")
    canvas.box(MARGIN, y + 40, WIDTH - 2 * MARGIN, 70, "plum", stroke="ink", stroke_width=2)
    canvas.text(MARGIN + 12, y + 66, "carried from tile to tile:", bold=True)
    canvas.text(MARGIN + 12, y + 92, "`running_max`, `running_sum`, `acc`")
    canvas.line([(x, y + 110), (x, y + 150)], stroke="ink", width=2, arrow=True)
    canvas.text(x + 12, y + 136, "once, at the end", fill="soft")
    canvas.text(x, y + 172, "`out`, `lse`", anchor="middle", bold=True)
    return canvas.finish()


def _passing(
    canvas: Canvas, name: str, x: float, y: float, width: float, fill: str, now: bool
) -> None:
    """A tile of k or v; the one that is in use has a heavy outline."""
    stroke, stroke_width = ("ink", 2) if now else ("line", 1)
    canvas.box(x, y, width, 52, fill, stroke=stroke, stroke_width=stroke_width)
    if width > 40:
        canvas.text(x + width / 2, y + 32, f"`{name}`", anchor="middle", bold=True)
