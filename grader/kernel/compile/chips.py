"""The chips that kernels are compiled for, and how many programs of a kernel share one of them.

Figures: NVIDIA's CUDA C++ Programming Guide 13.0, table "Technical Specifications per Compute
Capability" (https://docs.nvidia.com/cuda/cuda-c-programming-guide/), and the architecture papers
and data sheets of the GPUs that are named, AMD's CDNA 3 and CDNA 4 among them.
"""

from __future__ import annotations

import dataclasses

from grader.base.chip_name import JUDGED, chip_name, is_amd

MAX_THREADS = 1024  # of one program
_PARTITIONS = 4  # each has a quarter of a multiprocessor's registers
_REGISTER_UNIT = 256  # a warp gets multiples of so many registers
_SHARED_UNIT = 128


@dataclasses.dataclass(frozen=True)
class Chip:
    """One GPU; `shared_bytes`, `registers` and `threads` are those of a multiprocessor.

    The `capability` of an AMD GPU is the number of its architecture: 942 is gfx942.
    `program_shared_bytes` is the most that one program may use, `programs` the most that may share
    a multiprocessor. CUDA reserves `reserved_bytes` of shared memory for each program.
    """

    name: str
    capability: int  # 80 is compute capability 8.0; see `chip_name`
    multiprocessors: int
    memory_bytes: int
    l2_bytes: int
    shared_bytes: int
    program_shared_bytes: int
    registers: int = 65536
    threads: int = 2048
    programs: int = 32
    reserved_bytes: int = 1024

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Major and minor number, which PyTorch gives for AMD's chips, too."""
        return divmod(self.capability // 10 if is_amd(self.capability) else self.capability, 10)

    @property
    def target(self) -> tuple[str, int | str, int]:
        """Backend, architecture, and threads of a warp, as Triton names them."""
        amd = is_amd(self.capability)
        return ("hip", chip_name(self.capability), 64) if amd else ("cuda", self.capability, 32)

    @property
    def warp(self) -> int:
        return self.target[2]


_SMALL = {"shared_bytes": 102400, "program_shared_bytes": 101376, "threads": 1536}
EVERY_CHIP = {  # what `compile_calls` can be asked for
    chip.capability: chip
    for chip in (
        Chip("Tesla T4", 75, 40, 15 * 2**30, 4 * 2**20, 65536, 65536,
             threads=1024, programs=16, reserved_bytes=0),
        Chip("NVIDIA A100-SXM4-80GB", 80, 108, 80 * 2**30, 40 * 2**20, 167936, 166912),
        Chip("NVIDIA A10", 86, 72, 24 * 2**30, 6 * 2**20, programs=16, **_SMALL),
        Chip("NVIDIA L4", 89, 58, 24 * 2**30, 48 * 2**20, programs=24, **_SMALL),
        Chip("NVIDIA H100 80GB HBM3", 90, 132, 80 * 2**30, 50 * 2**20, 233472, 232448),
        Chip("NVIDIA B200", 100, 148, 180 * 2**30, 126 * 2**20, 233472, 232448),
        Chip("NVIDIA GeForce RTX 5090", 120, 170, 32 * 2**30, 96 * 2**20, programs=24, **_SMALL),
        Chip("AMD Instinct MI300X", 942, 304, 192 * 2**30, 4 * 2**20, 65536, 65536),
        Chip("AMD Instinct MI355X", 950, 256, 288 * 2**30, 4 * 2**20, 163840, 163840),
    )
}  # fmt: skip


def chip_of(capability: int | None) -> Chip | None:
    """Return the chip of a capability; if it is unlisted, the next older chip, renumbered.

    None if there is none.
    """
    if capability in EVERY_CHIP or capability is None:
        return EVERY_CHIP.get(capability or 0)
    older = [known for known in EVERY_CHIP if known < capability and not is_amd(known)]
    chip = EVERY_CHIP[max(older)] if older and not is_amd(capability) else None
    return dataclasses.replace(chip, capability=capability) if chip else None


CHIPS = {capability: EVERY_CHIP[capability] for capability in JUDGED}


def resident_programs(
    chip: Chip, *, num_warps: int, registers: int, shared_bytes: int
) -> tuple[int, str]:
    """Return how many programs run on a multiprocessor at a time, and what limits them.

    Args:
        num_warps: warps of one program.
        registers: registers per thread.
        shared_bytes: shared memory of one program.

    Source: the occupancy calculator of the CUDA toolkit, cuda_occupancy.h.
    """
    warp_registers = _round_up(max(registers, 1) * chip.warp, _REGISTER_UNIT)
    warps = chip.registers // _PARTITIONS // warp_registers * _PARTITIONS
    shared = _round_up(shared_bytes + chip.reserved_bytes, _SHARED_UNIT)
    limits = {
        "registers": warps // num_warps,
        "shared memory": chip.shared_bytes // shared,
        "threads": chip.threads // (chip.warp * num_warps),
        "programs": chip.programs,
    }
    limit = min(limits, key=lambda name: limits[name])
    return limits[limit], limit


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
