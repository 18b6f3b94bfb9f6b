"""Write every picture of this folder anew."""

from __future__ import annotations

from pathlib import Path

from . import backward, gradients, heads, launches, masks, memory, programs, softmax, traffic
from .canvas import Picture

FOLDER = Path(__file__).parent
DRAWN = (
    memory.hierarchy,
    softmax.online_softmax,
    launches.coalescing,
    programs.grid_strides,
    programs.flash_program,
    launches.program_ids,
    masks.causal,
    heads.kv_heads,
    masks.window_bounds,
    masks.window_sinks,
    masks.positions,
    gradients.graph,
    backward.owners,
    gradients.transposed,
    backward.pairs,
    gradients.query_ranges,
    traffic.bytes_moved,
    traffic.roofline,
)


def pictures() -> list[Picture]:
    """Every picture, in the order of the course."""
    return [draw() for draw in DRAWN]


if __name__ == "__main__":
    for picture in pictures():
        (FOLDER / f"{picture.name}.svg").write_text(picture.svg, encoding="utf-8")
