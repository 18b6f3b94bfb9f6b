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


# Columns of the tables.
DOT = ("line", "kernel", "product", "m", "n", "k", "count", "tile_q", "tile_k", "loop")
ACCESS = (
    "line", "kernel", "operand", "count", "programs", "stride", "across", "column_stride", "along",
    "step", "misaligned", "size",
)  # fmt: skip
MASK_ROWS = ("", "queries", "keys")  # what the rows of a masked tile are, "" where not seen
# Rows that met though they differ: their operands, and their numbers from 1; 0 is none. Where lse
# or delta of queries met keys, `weights` is the axis of the keys.
APART = ("line", "one", "other", "row", "other_row", "kv_plane", "weights")
# Tiles that met, but begin at different columns: in a dot over head_dim, in a stored product.
COLUMNS = ("line", "one", "other")
MISPLACED = ("line", "row", "place")  # a row of q or k, and the output row with its result
# Two programs of one launch that stored to one element; the first and last row of both, from 1.
OVERWRITTEN = ("line", "x", "y", "z", "other_x", "other_y", "other_z", "first", "last")
PROGRAM = ("kernel", "x", "y", "z", "batch_head", "first", "last", "line")
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
        most = {
            "kernel": KERNELS - 1,
            "product": OTHER,
            "operand": len(OPERANDS),
            "batch_head": self.batch * self.num_q_heads - 1,
            "first": self.seqlen_q - 1,
            "last": self.seqlen_q - 1,
            "line": self.lines,
            "loop": self.lines,
        }.get(column, 2**31)
        least = {"operand": 1, "count": 1}.get(column, 0)
        return (-most if column in signed else least), most

    def _fields(self) -> dict[str, tuple[Any, tuple[int, ...]]]:
        heads = self.batch * self.num_q_heads, self.batch * self.num_kv_heads
        pairs = (self.queries, self.seqlen_k)
        return {
            "counters": (np.int64, (len(Counter),)),
            "dots": (np.int64, (LINES, len(DOT))),
            "accesses": (np.int64, (LINES, len(ACCESS))),
            "programs": (np.int64, (PROGRAMS, len(PROGRAM))),
            "k_heads": (np.uint8, heads),
            "v_heads": (np.uint8, heads),
            "mask_lines": (np.int64, (KERNELS,)),
            "mask_rows": (np.int64, (KERNELS,)),
            "raised_lines": (np.int64, (KERNELS,)),
            "discarded": (np.int64, (SCORES + 1,)),
            "doubled": (np.int64, (SCORES + 1,)),
            "bare": (np.int64, (SCORES + 1,)),
            "columns": (np.int64, (2, len(COLUMNS))),
            "stores": (np.uint8, (self.queries,)),
            "visits": (np.uint8, (KERNELS, *pairs)),
            **dict.fromkeys(OF_PAIRS, (np.uint8, (len(PRODUCTS), *pairs))),
            "lines": (np.int64, (SOURCE_LINES,)),
            "apart": (np.int64, (len(APART),)),
            "misplaced": (np.int64, (len(OUTPUTS), len(MISPLACED))),
            "stored_products": (np.int64, (len(PRODUCTS), 2)),
            "overwritten": (np.int64, (len(GRADIENTS), len(OVERWRITTEN))),
        }


def traceable(case: Case) -> bool:
    """Whether a case is small enough to be traced."""
    return case.layout != "far" and TraceShape.of(case, 0).pairs <= MAX_PAIRS


@dataclasses.dataclass(frozen=True)
class Trace:
    """A private copy of the block: `counters` by `Counter`, the tables without their empty rows.

    Table rows with a number out of range are left out, other numbers out of range are 0.

    `visits` counts, per kernel, the tiles of scores that a pair of a query and a key was in (in a
    row sum: the reads of an element of x). Per product, `takes` counts how often the pair's weight
    was in it unmasked; `met` marks the pairs of its tiles, masked or not, and `unsure` pairs of
    lanes that are rows of the next head, which the kernel may discard; `twice` marks pairs taken
    more than once in one launch. `masks` is 1 for a pair that a mask kept, 2 if the mask replaced
    its score by a number that hides nothing, 3 if a number of its row made the score so low that it
    looks masked.
    `masked_at`, `taken_at` and `again_at` are indices in `lines`: of the mask, and of the loops
    that took the pair first and again; if masks of several lines met a pair, `masked_at` is
    SEVERAL_LINES. `mask_rows` is, per kernel, an index in `MASK_ROWS`; `raised_lines` has, per
    kernel, the line of a factor that unmasks masked scores. `stores` is 1 for the stored rows of
    the result, 2 for rows to which two programs stored the same numbers.
    Per product and for scores, `discarded` is a line that loses the results of earlier rounds, 0 if
    none, `doubled` a line that counts them twice, `bare` a line whose weights come from no
    exponential, or for scores one where they only choose a number; `columns` is the first dot of
    tiles that begin at different columns of head_dim, and the first store of a product to other
    columns than its own; `stored_products` is the product, from 1, stored where this one belongs,
    and its line; `overwritten`, per gradient, the first two programs that stored different numbers
    to one element.
    """

    shape: TraceShape
    arrays: dict[str, np.ndarray]

    @classmethod
    def of(cls, shape: TraceShape, memory: np.ndarray) -> Trace:
        """Copy the block out of shared memory."""
        arrays = {name: array.copy() for name, array in shape.arrays(memory).items()}
        for name, columns in (("dots", DOT), ("accesses", ACCESS), ("programs", PROGRAM)):
            table = arrays[name]
            least, most = np.array([shape.limit_of(column) for column in columns]).T
            whole = (table >= least) & (table <= most)
            arrays[name] = table[table.any(axis=1) & whole.all(axis=1)]
        lines, planes = shape.lines, shape.batch * shape.num_kv_heads
        rows = max(shape.queries, planes * shape.seqlen_k)
        kinds = len(TAGGED) - 1
        of_lines = ("lines", "mask_lines", "raised_lines", "discarded", "doubled", "bare")
        limits: dict[str, Any] = dict.fromkeys(of_lines, lines) | {
            "counters": [lines if c.name.endswith("_LINE") else _MOST for c in sorted(Counter)],
            "apart": [lines, kinds, kinds, rows, rows, planes, 1],
            "misplaced": [lines, rows, rows],
            "columns": [lines, _MOST, _MOST],
            "overwritten": [lines, *[2**31] * 6, rows, rows],
            "stored_products": [len(PRODUCTS), lines],
            "mask_rows": len(MASK_ROWS) - 1,
        }
        for name, largest in limits.items():
            numbers = arrays[name]
            numbers[(numbers < 0) | (numbers > largest)] = 0
        return cls(shape, arrays)

    def count(self, counter: Counter) -> int:
        return int(self.arrays["counters"][counter])
