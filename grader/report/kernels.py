"""What the compiler made of the kernels: one row per kernel and chip."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from grader.base.text import byte_size, clean, plain_table
from grader.spec.grade_record import GradeRecord, ProblemResult
from grader.spec.kernel_report import Compilation

COLUMNS = ("compiled", "for", "regs", "spills", "shared", "programs", "tensor cores")
_NAME_LIMIT = 20
_TENSOR_CORES = ("mma", "wgmma")


def kernels_of(problem: ProblemResult) -> tuple[Compilation, ...]:
    """Return the kernels of a problem that were compiled or refused."""
    return tuple(kernel for check in problem.checks for kernel in check.kernels)


def kernel_table(kernels: Iterable[Compilation]) -> Table:
    """Return registers, spills, shared memory, programs and tensor cores of each kernel.

    Programs are those that run on a multiprocessor at a time, with what allows no more.
    """
    left = ("compiled", "programs", "tensor cores")
    return plain_table(COLUMNS, map(kernel_cells, kernels), left, gap=1)


def kernel_cells(compiled: Compilation, name_limit: int = _NAME_LIMIT) -> tuple[str, ...]:
    """Return the texts of one row of the table; those after a refusal are blank."""
    kernel = compiled.kernel
    name, chip = clean(kernel.kernel, name_limit), f"{compiled.capability / 10:.1f}"
    if kernel.refusal is not None:
        return name, chip, "refused", "", "", "", ""
    return (
        name,
        chip,
        "" if kernel.registers is None else str(kernel.registers),
        "" if kernel.stack_bytes is None else _spills(kernel.stack_bytes),
        byte_size(kernel.shared_bytes) or "" if kernel.shared_bytes is not None else "",
        "" if compiled.programs is None else f"{compiled.programs} ({compiled.limit})",
        _tensor_cores(compiled),
    )


def spill_lines(record: GradeRecord) -> list[str]:
    """Name the kernels that spill: variables beyond the registers, kept in memory."""
    lines = []
    for problem in record.problems:
        for compiled in kernels_of(problem):
            kernel = compiled.kernel
            if kernel.stack_bytes:
                name, chip = clean(kernel.kernel, _NAME_LIMIT), compiled.capability / 10
                lines.append(
                    f"{clean(problem.id)} {name}: spills {_spills(kernel.stack_bytes)} per thread"
                    f" on compute capability {chip:.1f}"
                )
    return lines


def _spills(stack_bytes: int) -> str:
    return byte_size(stack_bytes) or "0" if stack_bytes else "none"


def _tensor_cores(compiled: Compilation) -> str:
    dots = compiled.kernel.dots
    used = sum(dot.instruction in _TENSOR_CORES for dot in dots)
    if not dots:
        return "no dots"
    return "all dots" if used == len(dots) else f"{used} of {len(dots)} dots"
