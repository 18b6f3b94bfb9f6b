"""Counts what a kernel does and what it needs to do: multiply-adds and reads, from a trace.

What is needed is counted with the kernel's own tiles, so that no tile shape is better than another;
tiles smaller than 16 or larger than 128 count as that. No clock is involved, so that counts are the
same on all machines. Counts too small for any right answer are not believed: something was hidden.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from grader.checks.counted_pairs import accesses, counted_pairs, due_pairs, tile_map, tiles_holding
from grader.checks.waste import wasted_tiles
from grader.kernel.observers.trace import SCORES, Counter, Trace
from grader.spec.cases import Case
from grader.spec.grade_record import Amount, WorkFigures
from grader.spec.problem import Problem
from grader.spec.problem_tables import Work

_SMALLEST, _LARGEST = 16, 128
# What each pass needs: products of tiles (scores, out; scores, dP, dV, dK; scores, dP, dQ), tensors
# of rows that it reads once (q; out, dout), and the side of the tiles, queries or keys, of which it
# reads two each time (k, v; q, dout; k, v).
_PASSES = {"out": (2, 1, 1), "dk": (4, 2, 0), "dq": (3, 2, 1)}
# Products of pairs without which there is no output: scores, out; with gradients dP, dV, dK, dQ.
_LEAST, _LEAST_OF_GRADIENTS = 2, 4
# Products of elements that may go with each multiply-add of a dot: 1/8 are 16 for a pair of query
# and key at head_dim 64, which has 128 multiply-adds; the model answers have 3. Or with each one in
# no dot: a kernel that scales its accumulator for each key has two for three (0.66), additions too.
_MOST_BESIDE, _MOST_BESIDE_ELEMENTS = 1 / 8, 3 / 4


def count_work(problem: Problem, case: Case, trace: Trace) -> WorkFigures:
    """Return what the traced call did, what it needed, and what naive attention would do."""
    assert problem.work is not None
    if case.rows is not None:
        amounts = _rows(problem, problem.work, case, trace)
    else:
        amounts = _attention(problem, problem.work, case, trace)
    passes = [counted_pairs(problem.id, case, trace, name) for name in _passes(problem)]
    tile = _tiles(problem, case, trace)["out"] if case.rows is None else (0, 0)
    return WorkFigures(
        **amounts,
        full=problem.work.full,
        tile_q=tile[0],
        tile_k=tile[1],
        launches=trace.count(Counter.LAUNCHES),
        programs=trace.count(Counter.PROGRAMS),
        shape=str(case),
        tiles=tile_map(passes[0]) if passes[0] else None,
        waste=wasted_tiles(filter(None, passes)),
    )


def _passes(problem: Problem) -> list[str]:
    return [*_PASSES] if problem.gradients else ["out"]


def disbelieved(problem: Problem, case: Case, trace: Trace) -> str | None:
    """Say why the counts cannot be complete; None where they can.

    If fewer elements of the inputs were read than the output depends on, the kernel ran where the
    judge did not count.
    """
    needed = _elements(problem, case)
    distinct, read = trace.count(Counter.DISTINCT_READ), trace.count(Counter.ELEMENTS_READ)
    if distinct < needed:
        return f"kernels read {distinct:,} elements, and the output depends on {needed:,}"
    if read < max(distinct, trace.count(Counter.UNKNOWN_READS)):
        return f"the counts contradict each other: {read:,} reads of {distinct:,} elements"
    return None


def _elements(problem: Problem, case: Case) -> int:
    """Return how many elements of its inputs an output depends on."""
    if case.rows is not None and case.cols is not None:
        return case.rows * case.cols + _weights(problem, case)
    keys = case.num_kv_heads * case.seqlen_k
    return case.batch * (case.num_q_heads * case.seqlen_q + 2 * keys) * case.head_dim


@dataclasses.dataclass(frozen=True)
class _Tiles:
    """Tiles of a pass: their size, how many hold a pair that is due, how many naive visits."""

    size: tuple[int, int]
    due: int
    naive: int


def _attention(problem: Problem, work: Work, case: Case, trace: Trace) -> dict[str, Amount]:
    heads = case.batch * case.num_q_heads
    due = due_pairs(problem.id, case)
    naive = np.tril(np.ones_like(due)) if work.naive == "causal" else np.ones_like(due)
    passes = {
        name: _Tiles(size, *(heads * int(tiles_holding(p, size).sum()) for p in (due, naive)))
        for name, size in _tiles(problem, case, trace).items()
    }
    rows, dim = heads * case.seqlen_q * case.head_dim, case.head_dim
    keys = case.batch * case.num_kv_heads * case.seqlen_k * case.head_dim

    def count(which: str) -> tuple[int, int]:
        """Multiply-adds and reads with the tiles that are `due`, or those that are `naive`."""
        adds, reads = 0, 0
        for name, tiles in passes.items():
            (products, once, side), number = _PASSES[name], getattr(tiles, which)
            adds += products * number * math.prod(tiles.size) * dim
            reads += once * rows + 2 * number * tiles.size[side] * dim
        return adds, reads

    (needed_adds, needed_reads), (naive_adds, naive_reads) = count("due"), count("naive")
    if isinstance(work.naive, float):
        naive_adds, naive_reads = work.naive * needed_adds, work.naive * needed_reads
    group = case.num_q_heads // case.num_kv_heads
    products = _LEAST + (_LEAST_OF_GRADIENTS if problem.gradients else 0)
    amounts = {
        "elements_read": Amount(
            done=_reads(problem, case, trace), needed=needed_reads, naive=int(naive_reads)
        ),
        "multiply_adds": Amount(
            done=_multiply_adds(trace),
            needed=needed_adds,
            naive=int(naive_adds),
            least=products * heads * int(due.sum()) * dim,
        ),
    }
    if group > 1 and not problem.gradients:
        amounts["distinct_read"] = Amount(
            done=_distinct(problem, case, trace),
            needed=rows + 2 * keys,
            naive=rows + 2 * group * keys,
        )
    return amounts


def _multiply_adds(trace: Trace) -> int:
    """Return the multiply-adds, with products of elements if these are a dot by hand."""
    done, single = trace.count(Counter.MULTIPLY_ADDS), trace.count(Counter.OF_ELEMENTS)
    beside = trace.count(Counter.BESIDE)
    most = _MOST_BESIDE * (done - single) + _MOST_BESIDE_ELEMENTS * single
    return done + beside if beside > most else done


def _reads(problem: Problem, case: Case, trace: Trace) -> int:
    """Return the reads of inputs and of copies of them.

    What one kernel leaves for the next (shares of a split row, delta) is judged by memory checks.
    All reads count if the others are too few for the output, as the kernel then read inputs in
    another form, and if a forward pass reads as many numbers as there are pairs, as scores are.
    """
    read, unknown = trace.count(Counter.ELEMENTS_READ), trace.count(Counter.UNKNOWN_READS)
    pairs = case.batch * case.num_q_heads * case.seqlen_q * case.seqlen_k
    has_scores = not problem.gradients and unknown >= pairs
    return read if has_scores or read - unknown < _elements(problem, case) else read - unknown


def _distinct(problem: Problem, case: Case, trace: Trace) -> int:
    """Return how many different elements of inputs were read, in whatever form.

    Partial results of a split row are no form of an input where every pair is in a dot of inputs.
    """
    distinct, counted = trace.count(Counter.DISTINCT_READ), counted_pairs(problem.id, case, trace)
    if counted is None or (counted.due & ~counted.visited).any():
        distinct += trace.count(Counter.DISTINCT_MADE)
    return distinct


def _weights(problem: Problem, case: Case) -> int:
    """Return how many elements the vector beside a matrix has; 0 where the matrix is alone."""
    return (case.cols or 0) if "w" in problem.inputs else 0


def _rows(problem: Problem, work: Work, case: Case, trace: Trace) -> dict[str, Amount]:
    assert case.rows is not None and case.cols is not None and isinstance(work.naive, float)
    rows = [row["size"] for row in accesses(trace) if row["name"] == "x" and row["size"]]
    programs = math.ceil(case.rows / max(1, max(rows, default=1)))
    # w once for each tile of rows
    needed = case.rows * case.cols + programs * _weights(problem, case)
    read = trace.count(Counter.ELEMENTS_READ)
    return {"elements_read": Amount(done=read, needed=needed, naive=int(work.naive * needed))}


def _tiles(problem: Problem, case: Case, trace: Trace) -> dict[str, tuple[int, int]]:
    """Return the size of the tiles, queries by keys, of each pass."""
    found = {}
    for name in _passes(problem):
        counted = counted_pairs(problem.id, case, trace, name)
        size = counted.tile if counted else _guess(case, trace)
        found[name] = (_within(size[0]), _within(size[1]))
    return found


def _guess(case: Case, trace: Trace) -> tuple[int, int]:
    """Guess the tiles of a kernel whose products are not recognised, from the sizes of its dots.

    The size with the most multiply-adds counts, so that one more dot cannot make tiles larger.
    """
    found: dict[tuple[int, int], int] = {}
    for dot in trace.rows("dots"):
        size = dot["m"], dot["n"]
        if dot["product"] >= SCORES and dot["k"] == case.head_dim:
            found[size] = found.get(size, 0) + dot["count"] * math.prod(size) * dot["k"]
    least = trace.count(Counter.MULTIPLY_ADDS) / 4  # scores are half of a forward pass
    likely = max(found, key=lambda size: found[size], default=(0, 0))
    return likely if found.get(likely, 0) >= least else (_SMALLEST, _SMALLEST)


def _within(size: int) -> int:
    return max(_SMALLEST, min(_LARGEST, size))
