"""The chips that kernels are compiled for, and how many programs of a kernel share one of them.

Figures: NVIDIA's CUDA C++ Programming Guide 13.0, table "Technical Specifications per Compute
Capability", and the A100 and H100 architecture papers.
"""

from __future__ import annotations

import dataclasses

WARP = 32
MAX_WARPS = 32  # of one program
_PARTITIONS = 4  # each has a quarter of a multiprocessor's registers
_REGISTER_UNIT = 256  # registers are handed to a warp in such pieces
_SHARED_UNIT = 128
_RESERVED_BYTES = 1024  # of shared memory, taken by CUDA for each program


@dataclasses.dataclass(frozen=True)
class Chip:
    """One GPU; `shared_bytes` is that of a multiprocessor, `registers` and `threads` too.

    `program_shared_bytes` is what one program may ask for, `programs` how many may share a
    multiprocessor at the most.
    """

    name: str
    capability: int  # 80 is compute capability 8.0
    multiprocessors: int
    memory_bytes: int
    l2_bytes: int
    shared_bytes: int
    program_shared_bytes: int
    registers: int = 65536
    threads: int = 2048
    programs: int = 32

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Major and minor number."""
        return divmod(self.capability, 10)


CHIPS = {
    chip.capability: chip
    for chip in (
        Chip("NVIDIA A100-SXM4-80GB", 80, 108, 80 * 2**30, 40 * 2**20, 167936, 166912),
        Chip("NVIDIA H100 80GB HBM3", 90, 132, 80 * 2**30, 50 * 2**20, 233472, 232448),
    )
}


def resident_programs(
    chip: Chip, *, num_warps: int, registers: int, shared_bytes: int
) -> tuple[int, str]:
    """Return how many programs run on a multiprocessor at a time, and what allows no more.

    Args:
        num_warps: warps of one program.
        registers: registers per thread.
        shared_bytes: shared memory of one program.

    Source: the occupancy calculator of the CUDA toolkit, cuda_occupancy.h.
    """
    warp_registers = _round_up(max(registers, 1) * WARP, _REGISTER_UNIT)
    warps = chip.registers // _PARTITIONS // warp_registers * _PARTITIONS
    shared = _round_up(shared_bytes + _RESERVED_BYTES, _SHARED_UNIT)
    limits = {
        "registers": warps // num_warps,
        "shared memory": chip.shared_bytes // shared,
        "threads": chip.threads // (WARP * num_warps),
        "programs": chip.programs,
    }
    limit = min(limits, key=lambda name: limits[name])
    return limits[limit], limit


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
