"""The compiled kernels: one row per kernel and chip."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from grader.base.chip_name import JUDGED, chip_name
from grader.base.text import byte_size, clean, plain_table
from grader.spec.grade_record import GradeRecord, ProblemResult
from grader.spec.kernel_report import Compilation, KernelReport

COLUMNS = ("compiled", "for", "regs", "spills", "shared", "programs", "tensor cores")
_NAME_LIMIT = 20
_TEXT_LIMIT = 300
_TENSOR_CORES = ("mma", "wgmma")


def kernels_of(problem: ProblemResult) -> tuple[Compilation, ...]:
    """Return the kernels of a problem that were compiled or refused for the judged chips."""
    return tuple(kernel for kernel in _every(problem) if kernel.capability in JUDGED)


def _every(problem: ProblemResult) -> tuple[Compilation, ...]:
    return tuple(kernel for check in problem.checks for kernel in check.kernels)


def chip_lines(problem: ProblemResult) -> list[str]:
    """Return a sentence on each chip that the user asked to compile for."""
    lines = []
    for chip in sorted({found.capability for found in _every(problem)} - {*JUDGED}):
        kernels = [found.kernel for found in _every(problem) if found.capability == chip]
        refused = [kernel for kernel in kernels if kernel.refusal is not None]
        said = _refused(refused[0]) if refused else _compiled(kernels)
        lines.append(f"for {chip_name(chip)}: {said}")
    return lines


def _compiled(kernels: Sequence[KernelReport]) -> str:
    registers, spilt, shared = (
        max(getattr(kernel, name) or 0 for kernel in kernels)
        for name in ("registers", "stack_bytes", "shared_bytes")
    )
    spills = f"{_spills(spilt)} spilled" if spilt else "no spills"
    return f"compiles, up to {registers} registers, {byte_size(shared)} shared, {spills}"


def _refused(kernel: KernelReport) -> str:
    assert kernel.refusal is not None
    line = f"line {kernel.refusal.line}: " if kernel.refusal.line else ""
    said = f"{line}{clean(kernel.refusal.text, _TEXT_LIMIT)}"
    if not kernel.kernel:  # no kernel is to blame
        return f"not compiled: {said}"
    return f"does not compile: {said} ({clean(kernel.kernel, _NAME_LIMIT)})"


def kernel_table(kernels: Iterable[Compilation]) -> Table:
    """Return registers, spills, shared memory, programs and tensor cores of each kernel.

    Programs are those resident on a multiprocessor at a time, with the resource that limits them.
    """
    left = ("compiled", "programs", "tensor cores")
    return plain_table(COLUMNS, map(kernel_cells, kernels), left, gap=1)


def kernel_cells(compiled: Compilation, name_limit: int = _NAME_LIMIT) -> tuple[str, ...]:
    """Return the cells of one row of the table; those of a refused kernel are blank."""
    kernel = compiled.kernel
    name, chip = clean(kernel.kernel, name_limit), chip_name(compiled.capability)
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
    """Return a line per kernel that spills registers to memory."""
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
