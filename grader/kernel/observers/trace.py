"""What a call's kernels did, as the worker saw it on the machine: a block of fixed layout.

Worker and judge map the same memory. The worker counts in it; the judge copies it, and ignores
impossible numbers: see `grader.checks.counted_pairs`.

Queries are numbered over batch, query head and row; keys of one kv head by row.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any

import numpy as np

from grader.spec.cases import Case

# The products of attention that sum over keys for each query, or over queries for each key.
PRODUCTS = ("out", "dv", "dk", "dq")
KERNELS = 6  # kernels with a number of their own; any more count as the last
LINES = 64
SOURCE_LINES = 255  # numbered lines that pairs can have; 0 is none
SEVERAL_LINES = 255
DROWNED = 3  # in `masks`: see `Trace`
NAN_MAKERS = (  # operations by number, from 1; 0 is any other
    *("arith.subf", "arith.addf", "arith.mulf", "arith.divf", "math.exp2", "math.exp", "tt.dot"),
)
MINUS, PLUS = 1, 2  # signs of infinities
PROGRAMS = 4096
MAX_PAIRS = 16 * 2**20
_MOST = 2**53  # the largest count: weeks of computing


class Counter(enum.IntEnum):
    """The counters of a whole call."""

    LAUNCHES = 0
    PROGRAMS = 1
    MULTIPLY_ADDS = 2  # of dots, masked lanes included
    ELEMENTS_READ = 3  # by active lanes; of an input, all elements that a wider read covers
    DISTINCT_READ = 4
    UNKNOWN_DOTS = 5  # dots whose operands are no known tiles of inputs
    UNKNOWN_READS = 6  # of tensors that the call's kernels made: partial rows, delta
    PADDING_TAKEN = 7  # lanes without a key that took part in a product with v
    PADDING_LINE = 8
    MISMATCHED = 9  # products of weights of one tile with values of another
    MISMATCHED_LINE = 10
    NAN_LINE = 11  # of the first NaN out of operands without NaN
    NAN_OPERATION = 12
    NAN_KINDS = 13  # how many kinds of operation made NaN of operands without NaN
    STORED_TWICE = 14  # rows of out that two programs stored
    STORED_TWICE_LINE = 15
    OVER_QUERIES_LINE = 16  # scores or weights that were reduced over queries
    SHOWN_LINE = 17  # masked scores whose weights count beside those of visible keys
    CROSSED_LINE = 18  # a dot of rows of queries and rows of keys, as loaded, not over head_dim
    MIXED_LINE = 19  # a dot of operands that attention never multiplies, numbered as in `MIXED`
    MIXED = 20
    ASTRAY_LINE = 21  # a load by a pointer that has left its own tensor for another
    ASTRAY = 22  # which, in the order of `OPERANDS`
    HEADS_APART_LINE = 23  # a product of weights of one head with rows of another
    HEADS_APART = 24  # rows of which, in the order of `OPERANDS`
    TURNED_LINE = 25  # a product that sums over keys on one side and over queries on the other
    TURNED = 26  # with rows of which, in the order of `OPERANDS`
    NAN_SIGN = 27  # of the infinities whose difference was the first NaN: 1 is -, 2 is +, 0 neither
    INFINITE_LINE = 28  # a dot of v or dout with weights of which some are infinite
    STORED_OTHERWISE = 29  # rows of out that two programs stored different numbers to
    UNWRITTEN_LINE = 30  # a load of NaN from a tensor of the call to which no kernel had stored
    IDLE_STORE_LINE = 31  # a store whose mask is false in all lanes of all programs
    IDLE_LOOP_LINE = 32  # the only loop that had no round in any program of the call
    OF_ELEMENTS = 33  # multiply-adds outside dots: outer products, sums of rows
    BESIDE = 34  # elementwise products that are no known multiply-adds
    ZERO_LINE = 35  # a division by 0, in a row that exists
    DISTINCT_MADE = 36  # different elements read of what the call's own kernels made
    UNWRITTEN_ELEMENT_LINE = 37  # the first load of an element that nobody had written
    UNWRITTEN_OPERAND_LINE = 38  # the first operator of PyTorch that computed with such a one
    ACROSS_LINE = 39  # two operands have numbers of queries along different axes


def numbers(*names: str) -> np.dtype:
    """Return the type of a table's rows: whole numbers by the names of its columns."""
    return np.dtype([(name, np.int64) for name in names])


DOT = numbers("line", "kernel", "product", "m", "n", "k", "tile_q", "tile_k", "loop", "count")
ACCESS = numbers(
    *("line", "kernel", "operand", "count", "programs", "stride", "across", "column_stride"),
    *("along", "step", "misaligned", "size"),
)
PROGRAM = numbers("kernel", "x", "y", "z", "batch_head", "first", "last", "line")
# Of a kernel: the last mask's line, the index in `MASK_ROWS` of what its rows are, the line of a
# factor that unmasks masked scores, that of its only loop if this had no round in any program, and
# options that it gets, each plus 1; 0 is none, or several values.
OPTIONS = ("window_size", "num_sink_tokens")
KERNEL = numbers("mask_line", "mask_rows", "raised_line", "idle_loop", *OPTIONS)
MASK_ROWS = ("", "queries", "keys")  # what the rows of a masked tile are, "" where not seen
# Of a product, or of scores: a line that loses the results of earlier rounds; one that counts them
# twice; one whose weights come from no exponential, or for scores one where they only choose a
# number; and the product, from 1, that is stored where this one belongs, with its line.
PRODUCT = numbers("discarded", "doubled", "bare", "stored", "stored_line")
# Rows that met though they differ: their operands, and their numbers from 1; 0 is none. Where lse
# or delta of queries met keys, `weights` is the axis of the keys.
APART = numbers("line", "one", "other", "row", "other_row", "kv_plane", "weights")
# Tiles that met, but begin at different columns: in a dot over head_dim, in a stored product.
COLUMNS = numbers("line", "column", "other_column")
MISPLACED = numbers("line", "row", "place")  # a row of q or k, and the output row with its result
# Two programs of one launch that stored different numbers to one element; the first and last row
# of both, from 1.
OVERWRITTEN = numbers(
    *("line", "x", "y", "z", "other_x", "other_y", "other_z", "first_row", "last_row"),
)
LINE = numbers("line")
LISTS = ("dots", "accesses", "programs")  # tables that grow by a row for each new kind
# Operands of a call in the order of their numbers in `ACCESS`, from 1.
OPERANDS = ("q", "k", "v", "dout", "x", "w")
MIXED = (("q", "v"), ("dout", "k"))
SCRATCH = "scratch"  # lse or delta, where that is no output
OUTPUTS = ("out", "lse", "dq", "dk", "dv", SCRATCH)
GRADIENTS = ("dq", "dk", "dv", "dsink_logits")
STATISTIC = "statistic"  # one number for each row of queries, which the call made: lse, delta
MADE = (STATISTIC, "out")  # by the call itself
# Arrays with a number for each product and pair: see `Trace`.
OF_PAIRS = ("takes", "twice", "met", "unsure", "masks", "masked_at", "taken_at", "again_at")
TAGGED = ("q", "k", "v", "dout", STATISTIC, "out")  # operands whose rows a tile may hold
SCORES = len(PRODUCTS)  # products of a query and a key: scores, and dout with v
OTHER = SCORES + 1


class Block:
    """Arrays of known types and sizes, one after the other in memory that two processes share."""

    def _fields(self) -> dict[str, tuple[Any, tuple[int, ...]]]:
        """Return the type and the size of each array, by name."""
        raise NotImplementedError

    @property
    def total_bytes(self) -> int:
        return sum(_bytes(dtype, size) for dtype, size in self._fields().values())

    def arrays(self, memory: np.ndarray) -> dict[str, np.ndarray]:
        """Return the arrays of the block in `memory`, a 1-D uint8 array."""
        arrays, start = {}, 0
        for name, (dtype, size) in self._fields().items():
            end = start + math.prod(size) * np.dtype(dtype).itemsize
            arrays[name] = memory[start:end].view(dtype).reshape(size)
            start += _bytes(dtype, size)
        return arrays


def _bytes(dtype: Any, size: tuple[int, ...]) -> int:
    return -(-math.prod(size) * np.dtype(dtype).itemsize // 64) * 64


@dataclasses.dataclass(frozen=True)
class TraceShape(Block):
    """Sizes of the attention that is traced, and the number of lines of the submission."""

    batch: int
    num_q_heads: int
    num_kv_heads: int
    seqlen_q: int
    seqlen_k: int
    lines: int

    @classmethod
    def of(cls, case: Case, lines: int) -> TraceShape:
        """Return the sizes of a case; in a row sum, rows count as queries and columns as keys."""
        if case.rows is not None and case.cols is not None:
            return cls(1, 1, 1, case.rows, case.cols, lines)
        heads = case.num_q_heads, case.num_kv_heads
        return cls(case.batch, *heads, case.seqlen_q, case.seqlen_k, lines)

    @property
    def queries(self) -> int:
        """Rows of q over batch and heads."""
        return self.batch * self.num_q_heads * self.seqlen_q

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key row."""
        return self.queries * self.seqlen_k

    def limit_of(self, column: str) -> tuple[int, int]:
        """Return the least and the largest number that a column of a table may hold."""
        signed = ("across", "along", "step", "stride", "column_stride")
        planes = self.batch * self.num_kv_heads
        lines = ("line", "loop", "mask_line", "raised_line", "stored_line", "idle_loop")
        rows = ("row", "other_row", "place", "first_row", "last_row")
        most = {
            "kernel": KERNELS - 1,
            "product": OTHER,
            "stored": len(PRODUCTS),
            "operand": len(OPERANDS),
            "batch_head": self.batch * self.num_q_heads - 1,
            "kv_plane": planes,
            "mask_rows": len(MASK_ROWS) - 1,
            "weights": 1,
            **dict.fromkeys(("first", "last"), self.seqlen_q - 1),
            **dict.fromkeys(("one", "other"), len(TAGGED) - 1),
            **dict.fromkeys(rows, max(self.queries, planes * self.seqlen_k)),
            **dict.fromkeys((*lines, "discarded", "doubled", "bare"), self.lines),
        }.get(column, 2**31)
        least = {"operand": 1, "count": 1}.get(column, 0)
        return (-most if column in signed else least), most

    def _fields(self) -> dict[str, tuple[Any, tuple[int, ...]]]:
        heads = self.batch * self.num_q_heads, self.batch * self.num_kv_heads
        pairs = (self.queries, self.seqlen_k)
        return {
            "counters": (np.int64, (len(Counter),)),
            "dots": (DOT, (LINES,)),
            "accesses": (ACCESS, (LINES,)),
            "programs": (PROGRAM, (PROGRAMS,)),
            "kernels": (KERNEL, (KERNELS,)),
            "products": (PRODUCT, (SCORES + 1,)),
            "columns": (COLUMNS, (2,)),
            "apart": (APART, (1,)),
            "misplaced": (MISPLACED, (len(OUTPUTS),)),
            "overwritten": (OVERWRITTEN, (len(GRADIENTS),)),
            "lines": (LINE, (SOURCE_LINES,)),
            "k_heads": (np.uint8, heads),
            "v_heads": (np.uint8, heads),
            "stores": (np.uint8, (self.queries,)),
            "visits": (np.uint8, (KERNELS, *pairs)),
            **dict.fromkeys(OF_PAIRS, (np.uint8, (len(PRODUCTS), *pairs))),
        }


def traceable(case: Case) -> bool:
    """Whether a case is small enough to be traced."""
    return case.layout != "far" and TraceShape.of(case, 0).pairs <= MAX_PAIRS


@dataclasses.dataclass(frozen=True)
class Trace:
    """A private copy of the block: `counters` by `Counter`, tables, and arrays of rows and pairs.

    In `LISTS` of what happened, empty rows and those with a number out of range are left out; in
    other tables such a number is 0.

    `visits` counts, per kernel, the tiles of scores that a pair of a query and a key was in (in a
    row sum: the reads of an element of x). Per product, `takes` counts how often the pair's weight
    was in it unmasked; `met` marks the pairs of its tiles, masked or not, and `unsure` pairs of
    lanes that are rows of the next head, which the kernel may discard; `twice` marks pairs taken
    more than once in one launch. `masks` is 1 for a pair that a mask kept, 2 if the mask replaced
    its score by a number that hides nothing, 3 if a number of its row made the score so low that it
    looks masked.
    `masked_at`, `taken_at` and `again_at` are indices in `lines`: of the mask, and of the loops
    that took the pair first and again; if masks of several lines met a pair, `masked_at` is
    SEVERAL_LINES. `stores` is 1 for the stored rows of the result, 2 for rows to which two programs
    stored the same numbers.
    """

    shape: TraceShape
    arrays: dict[str, np.ndarray]

    @classmethod
    def of(cls, shape: TraceShape, memory: np.ndarray) -> Trace:
        """Copy the block out of shared memory."""
        arrays = {name: array.copy() for name, array in shape.arrays(memory).items()}
        counters = arrays["counters"]
        largest = [shape.lines if c.name.endswith("_LINE") else _MOST for c in sorted(Counter)]
        counters[(counters < 0) | (counters > largest)] = 0
        for name, table in arrays.items():
            if table.dtype.names is None:
                continue
            held = table.view(np.int64).reshape(len(table), -1)
            least, most = np.array([shape.limit_of(column) for column in table.dtype.names]).T
            inside = (held >= least) & (held <= most)
            if name in LISTS:
                arrays[name] = table[held.any(axis=1) & inside.all(axis=1)]
            else:
                held[~inside] = 0
        return cls(shape, arrays)

    def rows(self, name: str) -> list[dict[str, int]]:
        """Return the rows of a table, each with the names of its columns."""
        table = self.arrays[name]
        return [dict(zip(table.dtype.names, row, strict=True)) for row in table.tolist()]

    def count(self, counter: Counter) -> int:
        return int(self.arrays["counters"][counter])
