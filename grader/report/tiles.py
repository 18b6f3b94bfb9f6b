"""The tile map: which tiles of queries and keys a kernel visited, in letters."""

from __future__ import annotations

from grader.spec.grade_record import TileMap

WORDS = {
    TileMap.FULL: "all counted",
    TileMap.MASKED: "part counted",
    TileMap.WASTED: "loaded, not needed",
    TileMap.MISSED: "keys skipped",
    TileMap.TAKEN: "hidden, counted",
    TileMap.TWICE: "counted twice",
}


_OF_KEYS = {TileMap.MISSED: "queries skipped"}  # a row of dk or dv is a sum over queries


def words(tiles: TileMap) -> dict[str, str]:
    """Return the meaning of a map's letters."""
    return WORDS | (_OF_KEYS if tiles.product in ("dk", "dv") else {})


def tile_lines(tiles: TileMap) -> list[str]:
    """Return a map as lines: queries down, keys across, each row with its first query."""
    letters = "".join(tiles.rows)
    legend = [f"{letter} {word}" for letter, word in words(tiles).items() if letter in letters]
    head = (
        f"{subject(tiles)}: queries down, keys across, {tiles.tile_q} x {tiles.tile_k} to a letter"
    )
    spaced = " " if 2 * len(tiles.rows[0]) <= 56 else ""
    rows = [
        f"{number * tiles.tile_q:>6}  {spaced.join(row)}" for number, row in enumerate(tiles.rows)
    ]
    return [head, *rows, *_folded(legend)]


def is_as_due(tiles: TileMap) -> bool:
    """Whether every visible key was counted once, and no other tile was loaded."""
    wrong = {TileMap.WASTED, TileMap.MISSED, TileMap.TAKEN, TileMap.TWICE}
    return not wrong & set("".join(tiles.rows))


def subject(tiles: TileMap) -> str:
    """Return whose tiles a map shows: "head 2 for dk"."""
    batch = f"batch {tiles.batch} " if tiles.batch else ""
    product = "" if tiles.product == "out" else f" for {tiles.product}"
    return f"{batch}head {tiles.head}{product}"


def _folded(words: list[str]) -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) <= 60:
            lines[-1] += f"   {word}"
        else:
            lines.append(f"        {word}")
    return lines
