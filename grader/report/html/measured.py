"""Measurements of work, speed and memory: tables per problem, and a chart of each kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace

from grader.base.text import byte_size, clean, finite, milliseconds, times
from grader.report.html.charts import Measure, dots
from grader.report.kernels import kernel_cells, kernels_of
from grader.report.message import ID_LIMIT
from grader.report.score import figures_of
from grader.spec.grade_record import (
    GradeRecord,
    MemoryFigures,
    ProblemResult,
    SpeedFigures,
    WorkFigures,
)
from grader.spec.kernel_report import Compilation, KernelReport

_KERNEL_NAME = 60
_SEGMENTS = "PyTorch takes GPU memory 20 MiB at a time, outputs included"
_KERNEL_COLUMNS = (
    "kernel",
    "for",
    "registers per thread",
    "spills",
    "shared memory",
    "programs per multiprocessor",
    "tensor cores",
)


@dataclasses.dataclass(frozen=True)
class Table:
    """A table: its title, the case measured (`shape`), columns, rows and a remark.

    `details`, if any, has small print to go below the first cell of each row.
    """

    title: str
    shape: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    remark: str = ""
    details: tuple[str, ...] = ()


def charts(record: GradeRecord) -> list[SimpleNamespace]:
    """Return the charts of speed, memory and work of all problems that have any.

    Each has a title, its `dots`, and the meaning of a span in it as `span`.
    """
    speeds, memories, works = [], [], []
    for problem in record.problems:
        id = clean(problem.id, ID_LIMIT)
        if (f := figures_of(problem, SpeedFigures)) and finite(f.speedup) is not None:
            shown = times(finite(f.speedup), 1)
            speeds.append(Measure(id, f.speedup, shown, 1.0, f.floor, f.full))
        if (f := figures_of(problem, MemoryFigures)) and f.extra_bytes:
            extra, shown = f.extra_bytes[-1], byte_size(f.extra_bytes[-1]) or ""
            (base,) = f.naive_extra_bytes[-1:] or (None,)
            (allowed,) = f.allowed_bytes[-1:] or (None,)
            memories.append(Measure(id, max(extra, 1024), shown, base, allowed, allowed))
        if (f := figures_of(problem, WorkFigures)) and f.amounts:
            worst = max(f.amounts.values(), key=lambda amount: amount.ratio)
            base, shown = worst.naive_ratio, times(worst.ratio, 2)
            works.append(Measure(id, worst.ratio, shown, base, f.full, base))
    rows = (
        ("Speed-up over naive PyTorch", speeds, "{:g}x".format, "targets, from no points to all"),
        ("Extra memory", memories, _bytes_of_axis, "the most that is allowed"),
        ("Work, over what is needed", works, "{:g}x".format, "from all points to none"),
    )
    return [
        SimpleNamespace(title=title, dots=chart, span=span)
        for title, measures, written, span in rows
        if (chart := dots(measures, written))
    ]


def _bytes_of_axis(number: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:g} {unit}"
    return f"{number:g} B"


def tables(problem: ProblemResult) -> list[Table]:
    """Return the measurements of one problem as tables: speed, memory, work and traffic."""
    kinds = {SpeedFigures: _speed_table, MemoryFigures: _memory_table, WorkFigures: _work_table}
    measured = ((table, figures_of(problem, kind)) for kind, table in kinds.items())
    made = (table(figures) for table, figures in measured if figures is not None)
    return [table for table in made if table.rows]


def kernel_table(problem: ProblemResult) -> Table | None:
    """Return a row per kernel and chip; `details` tell apart rows of the same kernel and chip."""
    kernels = kernels_of(problem)
    if not kernels:
        return None
    order = {name: n for n, name in enumerate(dict.fromkeys(k.kernel.kernel for k in kernels))}
    ordered = sorted(kernels, key=lambda k: (order[k.kernel.kernel], k.capability))
    rows = [kernel_cells(compiled, _KERNEL_NAME) for compiled in ordered]
    refusals = {k.kernel.kernel: k.kernel.refusal.text for k in kernels if k.kernel.refusal}
    remark = "; ".join(f"{name} refused: {text}" for name, text in refusals.items())
    capabilities = "for: compute capability (8.0 is an A100, 9.0 an H100)"
    details = tuple(_apart(k.kernel, [o.kernel for o in kernels if _alike(k, o)]) for k in ordered)
    return Table("Compiled", capabilities, _KERNEL_COLUMNS, rows, remark, details)


def _alike(one: Compilation, other: Compilation) -> bool:
    return (one.kernel.kernel, one.capability) == (other.kernel.kernel, other.capability)


def _apart(kernel: KernelReport, others: Sequence[KernelReport]) -> str:
    """Return the types, constants and options of a kernel that are not those of all `others`."""
    types, *rest = (
        [word for word in words if not all(word in theirs for theirs in given)]
        for words, *given in zip(*(_arguments(k) for k in (kernel, *others)), strict=True)
    )
    shown = dict.fromkeys(word.partition("=")[2].lstrip("*") for word in types)
    return " ".join([*shown, *(word for words in rest for word in words)])


def _arguments(kernel: KernelReport) -> tuple[list[str], ...]:
    options = [f"num_warps={kernel.num_warps}", f"num_stages={kernel.num_stages}"]
    return kernel.types.split(), kernel.constants.split(), options


def _speed_table(f: SpeedFigures) -> Table:
    spread, drift = finite(f.spread_percent), finite(f.naive_drift_percent)
    rows = [
        ("time of a call", milliseconds(f.median_ms) or "", milliseconds(f.naive_ms) or ""),
        ("speed-up", times(finite(f.speedup), 1), "1.0x"),
        ("spread", _percent(spread), _percent(drift)),
    ]
    low, high = finite(f.floor), finite(f.full)
    targets = ""
    if low is not None and high is not None:
        targets = f"no points up to {low:g}x, all from {high:g}x on"
        targets += f" ({f.targets})" if f.targets else ""
    notes = "; ".join(filter(None, (targets, f.note)))
    return Table("Speed", f.shape, ("", "yours", "naive"), rows, notes)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2g} %"


def _memory_table(f: MemoryFigures) -> Table:
    columns = ("seqlen", "yours", "allowed", "naive")
    rows = []
    for number, length in enumerate(f.lengths):
        parts = (f.extra_bytes, f.allowed_bytes, f.naive_extra_bytes)
        cells = (byte_size(part[number]) or "" if number < len(part) else "" for part in parts)
        rows.append((str(length), *cells))
    return Table("Memory beyond inputs and outputs", f.shape, columns, rows, _SEGMENTS)


def _work_table(f: WorkFigures) -> Table:
    counted = list(f.amounts.values())
    rows = [
        ("done", *(_count(amount.done) for amount in counted)),
        ("needed", *(_count(amount.needed) for amount in counted)),
        ("naive", *(_count(amount.naive) for amount in counted)),
        ("done / needed", *(times(amount.ratio, 2) for amount in counted)),
    ]
    tiles = f"tiles of {f.tile_q} x {f.tile_k}, " if f.tile_q and f.tile_k else ""
    remark = f"all points up to {f.full:g}x what is needed; {tiles}{f.programs} programs"
    return Table("Work and traffic", f.shape, ("", *f.amounts), rows if counted else [], remark)


def _count(number: int) -> str:
    if abs(number) < 10**15:
        return f"{number:,}"
    rounded = finite(number)
    return "?" if rounded is None else f"{rounded:.3g}"
