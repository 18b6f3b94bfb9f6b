"""Which tile a program has (p03), and what one load of a warp moves (p02)."""

from __future__ import annotations

from .canvas import MARGIN, WIDTH, Canvas, Picture

BATCH, NUM_HEADS, NUM_QUERY_TILES = 2, 2, 3
MARKED = 7  # the program that is followed
# A warp has 32 threads, DRAM moves sectors of 32 bytes, and four of them are a cache line.
THREADS, ELEMENT_BYTES, SECTOR_BYTES, LINE_BYTES = 32, 4, 32, 128
STRIDES = (1, 8)  # in elements


def tile_of(program: int) -> tuple[int, int, int]:
    """Batch entry, head and query tile of a program: those of one head follow each other."""
    batch_head, tile = divmod(program, NUM_QUERY_TILES)
    return (*divmod(batch_head, NUM_HEADS), tile)


def program_ids() -> Picture:
    """One axis of programs, cut into query tiles, heads and batch entries (p03)."""
    count = BATCH * NUM_HEADS * NUM_QUERY_TILES
    batch, head, tile = tile_of(MARKED)
    canvas = Canvas(
        "program-ids",
        title="Consecutive programs share a head, and each has one of its query tiles",
        desc=f"{count} programs in a row, for {BATCH} batch entries of {NUM_HEADS} heads with "
        f"{NUM_QUERY_TILES} query tiles each. The programs 0 to {NUM_QUERY_TILES - 1} have the "
        f"tiles of head 0 of batch entry 0, the next {NUM_QUERY_TILES} those of head 1, and so "
        f"on. Program {MARKED} has query tile {tile} of head {head} of batch entry {batch}.",
        height=366,
    )
    canvas.heading("One axis of programs: query tiles, then heads,", "then batch entries")
    pitch, top = (WIDTH - 2 * MARGIN) / count, 122
    canvas.text(MARGIN, top - 14, "`tl.program_id(0)`", fill="soft")
    for program in range(count):
        x = MARGIN + program * pitch
        fill = ("blue", "orange")[tile_of(program)[1]]
        width = 3 if program == MARKED else 1
        stroke = "plum-ink" if program == MARKED else "line"
        canvas.box(x, top, pitch - 3, 40, fill, stroke=stroke, stroke_width=width)
        middle = x + (pitch - 3) / 2
        canvas.text(middle, top + 26, str(program), anchor="middle", bold=True)
        canvas.text(middle, top + 70, str(tile_of(program)[2]), anchor="middle")
    canvas.text(MARGIN, top + 92, "its query tile", size=14, fill="soft")
    for number in range(BATCH * NUM_HEADS):
        name = f"head {number % NUM_HEADS}"
        _bracket(canvas, number * NUM_QUERY_TILES, NUM_QUERY_TILES, top + 112, pitch, name)
    for number in range(BATCH):
        length = NUM_HEADS * NUM_QUERY_TILES
        _bracket(canvas, number * length, length, top + 158, pitch, f"batch entry {number}")
    words = f"program {MARKED}: query tile {tile} of head {head} of batch entry {batch}"
    canvas.text(MARGIN, top + 224, words, bold=True, fill="plum-ink")
    return canvas.finish()


def _bracket(canvas: Canvas, first: int, length: int, y: float, pitch: float, words: str) -> None:
    left, right = MARGIN + first * pitch, MARGIN + (first + length) * pitch - 3
    canvas.line([(left, y - 6), (left, y), (right, y), (right, y - 6)], stroke="ink")
    canvas.text((left + right) / 2, y + 20, words, anchor="middle")


def touched(stride: int, size: int) -> list[int]:
    """The pieces of `size` bytes that hold the 32 elements of a warp's load, in order."""
    return sorted({thread * stride * ELEMENT_BYTES // size for thread in range(THREADS)})


def coalescing() -> Picture:
    """32 neighbours come in 4 sectors; 32 elements a stride apart in a sector each (p02)."""
    sectors = [len(touched(stride, SECTOR_BYTES)) for stride in STRIDES]
    used = THREADS * ELEMENT_BYTES
    moved = [count * SECTOR_BYTES for count in sectors]
    canvas = Canvas(
        "coalescing",
        title="A warp that loads neighbours moves 128 bytes; with a stride of 8, eight times that",
        desc=f"Memory in lines of {LINE_BYTES} bytes, each of 4 sectors of {SECTOR_BYTES} bytes. "
        f"The {THREADS} threads of a warp load {THREADS} fp32 elements, {used} bytes. If these "
        f"are neighbours, {sectors[0]} sectors hold them all, {moved[0]} bytes. With a stride of "
        f"{STRIDES[1]} elements each lies in a sector of its own: {sectors[1]} sectors, "
        f"{moved[1]} bytes, of which one in {moved[1] // used} is used.",
        height=462,
    )
    canvas.heading("One load of a warp: 32 threads,", "32 elements of 4 bytes")
    y = 96.0
    for stride, count, size in zip(STRIDES, sectors, moved, strict=True):
        words = "neighbours" if stride == 1 else f"a stride of {stride} elements"
        canvas.text(MARGIN, y, words, bold=True)
        canvas.text(
            WIDTH - MARGIN,
            y,
            f"{count} sectors, {size} bytes for {used}",
            anchor="end",
            fill="soft",
        )
        y = _lines(canvas, stride, y + 12) + 34
    canvas.box(MARGIN, y - 10, 22, 22, "teal")
    canvas.text(MARGIN + 32, y + 6, "an element that a thread loads")
    canvas.box(MARGIN, y + 20, 22, 22, "grey")
    canvas.text(MARGIN + 32, y + 36, "moved with its sector, and not used")
    canvas.text(MARGIN, y + 66, "a row: a line of 128 bytes, in 4 sectors of 32", fill="soft")
    return canvas.finish()


def _lines(canvas: Canvas, stride: int, top: float) -> float:
    """The lines of memory that a load touches; return where they end."""
    per_line, per_sector = LINE_BYTES // ELEMENT_BYTES, SECTOR_BYTES // ELEMENT_BYTES
    gap, height = 6, 18
    cell = (WIDTH - 2 * MARGIN - 3 * gap) / per_line
    loaded = {thread * stride for thread in range(THREADS)}
    for row, line in enumerate(touched(stride, LINE_BYTES)):
        for place in range(per_line):
            x = MARGIN + place * cell + place // per_sector * gap
            fill = "teal" if line * per_line + place in loaded else "grey"
            y = top + row * (height + 3)
            canvas.box(
                x, y, cell - 1, height, fill, stroke="line" if fill == "teal" else "faint", radius=1
            )
    return top + len(touched(stride, LINE_BYTES)) * (height + 3)
