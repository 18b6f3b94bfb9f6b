"""What one program of a kernel did, tile by tile: the frozen record that every view shows.

Numbers are texts, for they may be NaN or infinite, and two that differ are written with as many
digits as show it. Tiles, queries and keys are numbered as in the sequence, tiles from 1.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from grader.base.record import Record, Text

SCHEMA_VERSION = 1
TRACED = ("p01", "p03", "p04", "p05", "p06", "p07")  # the forward passes of attention
UNTRACED = {
    "p02": "the kernels of p02 have no running maximum and no accumulator of attention:"
    " make grade P=p02 says which elements were counted",
    **dict.fromkeys(
        ("p08", "p09"),
        "a backward kernel sums gradients over tiles, and has no state that a tile alone makes"
        " right or wrong: make grade MAP=1 shows the tiles it visits",
    ),
}


class SourceLine(Record):
    """A line of the submission, and its text or what it did."""

    line: int
    text: Text


class Shown(Record):
    """Some numbers of a variable after a tile, beside what the reference has there.

    `role` is what the judge takes the variable for, None where it does not know; `agrees` is None
    where it is not compared. `query` is the row of the numbers in a matrix; a vector has one number
    for each query that is shown. `apart` counts the queries of the whole tile that do not agree.
    """

    name: Text
    role: Literal["maximum", "sum", "accumulator"] | None = None
    query: int | None = None
    yours: tuple[str, ...]
    oracle: tuple[str, ...] | None = None
    agrees: bool | None = None
    apart: int = 0


class TileRound(Record):
    """One tile of keys: the line of its product with the queries, the state after it, and facts.

    `ran` are the lines that made it, as they ran, each with what it did: loads, the product, the
    mask, the product with V. `ended` says whether the end of the loop's round was seen; if not, the
    state is that of a later moment, and is not compared.
    """

    number: int
    keys: str
    line: int | None = None
    ran: tuple[SourceLine, ...] = ()
    ended: bool = True
    shown: tuple[Shown, ...] = ()
    facts: tuple[str, ...] = ()


class Parting(Record):
    """The first tile after which the kernel's state is not the reference's, and in which variables.

    `text` says what they are not, or, `by_factor`, how many times too large the maximum is. `lines`
    are those that assign them in the loop, or that make the mask.
    """

    number: int
    names: tuple[Text, ...]
    text: Text
    by_factor: bool = False
    lines: tuple[SourceLine, ...] = ()


class Program(Record):
    """Which program it was: its kernel, its ids, and the queries that it holds."""

    kernel: Text
    ids: tuple[int, int, int]
    batch: int
    head: int
    queries: str
    shown_queries: tuple[int, ...]
    columns: str


class TraceRecord(Record):
    """One case, one program, tile by tile. `failure` is how a call ended that did not come back.

    `program` is None where no program was followed; `tiles` counts those that it visited, of which
    `rounds` holds the first, or, in a message, those that matter most.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    problem: str
    file: str
    check: str
    number: int = Field(ge=1)
    case: str
    seed: str
    result: Literal["right", "wrong", "failed"]
    failure: Text | None = None
    program: Program | None = None
    tiles: int = 0
    rounds: tuple[TileRound, ...] = ()
    parting: Parting | None = None
    conclusion: Text
    notes: tuple[Text, ...] = ()
