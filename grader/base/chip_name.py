"""Numbers of the chips that kernels are compiled for, as in the record, and names for people."""

from __future__ import annotations

JUDGED = (80, 90)  # the chips that every submission is compiled for; the others on request


def is_amd(capability: int) -> bool:
    """Whether a chip's number is an architecture of AMD's, such as 942, not one of NVIDIA's."""
    return capability >= 900


def chip_name(capability: int) -> str:
    """Return the name of a chip: its compute capability, 8.0, or AMD's architecture, gfx942."""
    return f"gfx{capability}" if is_amd(capability) else f"{capability / 10:.1f}"
