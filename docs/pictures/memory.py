"""The memories of one GPU, and what of flash attention lives in each."""

from __future__ import annotations

import dataclasses

from . import hardware
from .canvas import MARGIN, WIDTH, Canvas, Picture
from .hardware import KIB, MIB


@dataclasses.dataclass(frozen=True)
class Level:
    """One memory: its name, its size, what flash attention keeps in it."""

    name: str
    size: str
    fill: str
    contents: tuple[str, ...]


LEVELS = (
    Level(
        "registers",
        f"{hardware.SMS} SMs × {hardware.REGISTER_BYTES // KIB} KiB",
        "plum",
        ("scores, weights, `acc`,", "`running_max`, `running_sum`"),
    ),
    Level(
        "shared memory",
        f"{hardware.SMS} SMs × {hardware.SHARED_BYTES // KIB} KiB",
        "green",
        ("the tile of `q`, a few tiles of `k` and `v`",),
    ),
    Level(
        "L2 cache",
        f"{hardware.L2_BYTES // MIB} MiB",
        "blue",
        ("`k` and `v` of the heads at work",),
    ),
    Level(
        "HBM",
        f"{hardware.HBM_BYTES / 1e9:g} GB",
        "orange",
        ("`q`, `k`, `v`, `out`, `lse`", "naive attention: the N × N scores, too"),
    ),
)
INSETS = (80, 80, 40, 0)
# between a level and the one below it
RATES = (hardware.SHARED_RATE, hardware.L2_RATE, hardware.HBM_RATE)
SOURCES = ("at most", "measured", "data sheet")


def hierarchy() -> Picture:
    """The memories of one H200, and what of flash attention lives in each (p01, p02)."""
    rates = [
        f"{rate / 1e12:.2g} TB/s {source}" for rate, source in zip(RATES, SOURCES, strict=True)
    ]
    canvas = Canvas(
        "memory-hierarchy",
        title="The memories of one H200: the nearer to the arithmetic, the faster",
        desc=" ".join(
            f"{level.name}, {level.size}: {' '.join(level.contents).replace('`', '')}."
            for level in LEVELS
        )
        + f" Between them, from the registers down: {', '.join(rates)}. The pipes are drawn as "
        "wide as the rates.",
        height=548,
    )
    canvas.heading(
        "Near memory is fast, far memory is large;", "flash keeps the scores on the chip"
    )
    canvas.lines(MARGIN, 100, ["one", "H200"], fill="soft")
    y = 80
    for number, (level, inset) in enumerate(zip(LEVELS, INSETS, strict=True)):
        height = 46 + 22 * len(level.contents)
        left, right = MARGIN + inset, WIDTH - MARGIN
        canvas.box(left, y, right - left, height, level.fill)
        canvas.text(left + 12, y + 26, level.name, bold=True)
        canvas.text(right - 12, y + 26, level.size, bold=True, anchor="end")
        canvas.lines(left + 12, y + 50, level.contents, leading=22)
        y += height
        if number < len(RATES):
            width = RATES[number] / 1e12 * 1.6
            canvas.box(300 - width / 2, y, width, 42, "grey", radius=0)
            canvas.text(300 + width / 2 + 10, y + 26, rates[number])
            y += 42
    edge = y - 42 - 46 - 22 * len(LEVELS[-1].contents) + 21
    canvas.line([(MARGIN, edge), (280, edge)], stroke="soft", dashed=True)
    canvas.text(MARGIN, edge - 7, "on the chip", size=14, fill="soft")
    return canvas.finish()
