"""Write every picture of this folder anew."""

from __future__ import annotations

from pathlib import Path

from . import backward, heads, masks, memory, programs, softmax, traffic
from .canvas import Picture

FOLDER = Path(__file__).parent
DRAWN = (
    memory.hierarchy,
    softmax.online_softmax,
    programs.grid_strides,
    programs.flash_program,
    masks.causal,
    heads.kv_heads,
    masks.window_bounds,
    masks.window_sinks,
    backward.owners,
    backward.pairs,
    traffic.bytes_moved,
    traffic.roofline,
)


def pictures() -> list[Picture]:
    """Every picture, in the order of the course."""
    return [draw() for draw in DRAWN]


if __name__ == "__main__":
    for picture in pictures():
        (FOLDER / f"{picture.name}.svg").write_text(picture.svg, encoding="utf-8")
