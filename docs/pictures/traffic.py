"""How many bytes attention moves, and whether bytes or arithmetic bound its time."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.timing import Traffic
from reference import naive

from . import hardware
from .canvas import MARGIN, WIDTH, Canvas, Picture

HEAD_DIM, BLOCK_M, ELEMENT_BYTES = 64, 64, 2
SHORTEST, LONGEST, MARKED = 2**9, 2**16, 2**12
RECORDS = Path(__file__).parents[1] / "records"


@dataclasses.dataclass(frozen=True)
class Axes:
    """Two logarithmic axes: the ranges of both, and the rectangle on the canvas."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    left: float
    top: float
    right: float
    bottom: float

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Where a point of the plot lies on the canvas."""
        across = math.log(x / self.x_range[0]) / math.log(self.x_range[1] / self.x_range[0])
        up = math.log(y / self.y_range[0]) / math.log(self.y_range[1] / self.y_range[0])
        return (
            self.left + across * (self.right - self.left),
            self.bottom - up * (self.bottom - self.top),
        )

    def draw(self, canvas: Canvas, x_ticks: dict[float, str], y_ticks: dict[float, str]) -> None:
        """A line and a label per tick."""
        for value, label in x_ticks.items():
            x, _ = self.place(value, self.y_range[0])
            canvas.line([(x, self.top), (x, self.bottom)], stroke="faint", width=1)
            canvas.text(x, self.bottom + 20, label, size=14, anchor="middle", fill="soft")
        for value, label in y_ticks.items():
            _, y = self.place(self.x_range[0], value)
            canvas.line([(self.left, y), (self.right, y)], stroke="faint", width=1)
            canvas.text(self.left - 7, y + 5, label, size=14, anchor="end", fill="soft")


def naive_bytes(seqlen: int) -> int:
    """Bytes of naive attention per head, a mask included: every step in 16 bits, through memory.

    That is the table of p01. What the judge times is not this program: see `baseline_bytes`.
    """
    scores, tensor = ELEMENT_BYTES * seqlen**2, ELEMENT_BYTES * seqlen * HEAD_DIM
    products = (2 * tensor + scores) + (scores + tensor + tensor)  # q k^T, then p v
    return products + 3 * 2 * scores  # scale, mask, softmax


def baseline_bytes(seqlen: int, head_dim: int) -> int:
    """Bytes of p03's baseline per head, in bf16: those of every operation of reference.naive."""
    tensors = torch.empty(3, 1, 1, seqlen, head_dim, dtype=torch.bfloat16, device="meta")
    with Traffic() as traffic:
        naive.noncausal_attention(*tensors)
    return traffic.moved


def flash_requests(seqlen: int) -> int:
    """Bytes that the programs of flash attention read and write per head, all tiles visited."""
    tensor = ELEMENT_BYTES * seqlen * HEAD_DIM
    query_tiles = math.ceil(seqlen / BLOCK_M)
    return tensor + query_tiles * 2 * tensor + tensor


def flash_bytes(seqlen: int, head_dim: int = HEAD_DIM) -> int:
    """Bytes between HBM and the chip per head, if k and v stay in L2: q, k, v and out once."""
    return 4 * ELEMENT_BYTES * seqlen * head_dim


def bytes_moved() -> Picture:
    """Bytes against sequence length: the square of naive, the line of flash (p01, p03)."""
    lengths = [2**power for power in range(9, 17)]
    counts = (naive_bytes, flash_requests, flash_bytes)
    written, requests, moved = (count(MARKED) for count in counts)
    ratio = f"{written / moved:.0f}"
    canvas = Canvas(
        "bytes-moved",
        title=f"At {MARKED} tokens, all in 16 bits, naive attention moves {ratio} times the bytes",
        desc=f"Bytes per head against sequence length, both logarithmic, at head_dim {HEAD_DIM}. "
        "Every step is counted in 16 bits, scale and mask included; the baseline of the judge has "
        "fp32 weights and moves more. "
        f"At {MARKED} tokens naive attention moves {_size(written)}; flash attention "
        f"moves {_size(moved)} between HBM and the chip if k and v stay in L2, and its programs "
        f"ask L2 for {_size(requests)} with BLOCK_M {BLOCK_M}. Naive grows with the square of the "
        "length, flash from HBM with the length.",
        height=500,
    )
    canvas.heading(
        f"At {MARKED} tokens, all in 16 bits,", f"naive attention moves {ratio} times the bytes"
    )
    axes = Axes((SHORTEST, LONGEST), (1e5, 1e11), 76, 108, WIDTH - MARGIN - 8, 428)
    units = {1e5: "100 kB", 1e6: "1 MB", 1e7: "10 MB", 1e8: "100 MB", 1e9: "1 GB", 1e10: "10 GB"}
    axes.draw(canvas, {length: str(length) for length in lengths[::2]}, units)
    canvas.text(MARGIN, 98, "bytes per head", size=14, fill="soft")
    canvas.text(WIDTH - MARGIN, 474, "sequence length N →", size=14, fill="soft", anchor="end")

    def curve(count: Callable[[int], int], colour: str, *, dashed: bool = False) -> None:
        points = [axes.place(length, count(length)) for length in lengths]
        canvas.line(points, stroke=colour, width=3, dashed=dashed)
        canvas.dot(*axes.place(MARKED, count(MARKED)), colour)

    (x, top), (_, bottom) = axes.place(MARKED, written), axes.place(MARKED, moved)
    canvas.line([(x, top), (x, bottom - 6)], stroke="ink", arrow=True)
    curve(naive_bytes, "orange-ink")
    curve(flash_requests, "blue-ink", dashed=True)
    curve(flash_bytes, "green-ink")
    canvas.text(x + 10, (top + bottom) / 2 + 12, f"{ratio} ×", bold=True, halo=True)
    _value(canvas, axes, written, (-10, -12), "orange-ink", f"naive: {_size(written)}", "end")
    _value(canvas, axes, requests, (12, 12), "blue-ink", f"flash, from L2: {_size(requests)}")
    _value(canvas, axes, moved, (12, 38), "green-ink", f"flash, from HBM: {_size(moved)}")
    return canvas.finish()


def _value(canvas, axes, count: int, offset, colour: str, words: str, anchor="start") -> None:
    x, y = axes.place(MARKED, count)
    canvas.text(
        x + offset[0], y + offset[1], words, fill=colour, bold=True, halo=True, anchor=anchor
    )


def _size(count: float) -> str:
    return f"{count / 1e6:.0f} MB" if count >= 1e7 else f"{count / 1e6:.1f} MB"


@dataclasses.dataclass(frozen=True)
class Measured:
    """One kernel on the roofline: operations per byte, and operations per second."""

    intensity: float
    rate: float

    @property
    def roof(self) -> float:
        """The most that memory and arithmetic allow at this intensity."""
        return min(hardware.BF16_RATE, hardware.HBM_RATE * self.intensity)


def measured() -> tuple[Measured, Measured, dict[str, int]]:
    """Naive and flash attention of p03 in the newest grade record, and the sizes of the shape."""
    record = json.loads(max(RECORDS.glob("nvidia-h200-*.json")).read_text())
    (problem,) = (problem for problem in record["problems"] if problem["id"] == "p03")
    figures = problem["components"]["speed"]["figures"]
    sizes = {name: int(size) for name, size in re.findall(r"(\w+)=(\d+)", figures["shape"])}
    seqlen, head_dim = sizes["seqlen"], sizes["head_dim"]
    heads, operations = sizes["batch"] * sizes["num_q_heads"], 4 * seqlen**2 * head_dim
    moved = baseline_bytes(seqlen, head_dim), flash_bytes(seqlen, head_dim)
    times_ms = figures["naive_ms"], figures["median_ms"]
    baseline, flash = (
        Measured(operations / count, heads * operations / time_ms * 1e3)
        for count, time_ms in zip(moved, times_ms, strict=True)
    )
    return baseline, flash, sizes


def roofline() -> Picture:
    """Naive attention is bound by memory, flash attention by arithmetic (p03)."""
    baseline, flash, sizes = measured()
    scores = sizes["seqlen"] ** 2
    per_score = baseline_bytes(sizes["seqlen"], sizes["head_dim"]) // scores
    ridge = hardware.BF16_RATE / hardware.HBM_RATE
    words = [
        f"{kernel.rate / 1e12:.0f} of at most {kernel.roof / 1e12:.0f} TFLOP/s"
        for kernel in (baseline, flash)
    ]
    canvas = Canvas(
        "roofline",
        title="On an H200 naive attention is bound by memory, flash attention by arithmetic",
        desc="A roofline with logarithmic axes: operations per byte across, TFLOP/s up. The roof "
        f"rises at {hardware.HBM_RATE / 1e12:g} TB/s up to {ridge:.0f} operations per byte and is "
        f"flat at {hardware.BF16_RATE / 1e12:.0f} TFLOP/s from there. Naive attention does "
        f"{baseline.intensity:.1f} operations per byte and reaches {words[0]}; flash attention "
        f"does {flash.intensity:.0f} and reaches {words[1]}. The bytes of naive attention are "
        "those that the operations of reference/naive.py read and write in bf16: "
        f"{per_score} per score, since its softmax is fp32. Those of flash attention are q, k, v "
        "and out, once.",
        height=578,
    )
    canvas.heading("Naive attention is bound by memory,", "flash attention by arithmetic")
    axes = Axes((1, 1e4), (1e12, 2e15), 62, 112, WIDTH - MARGIN - 8, 410)
    ticks = {10**power: f"{10**power}" for power in range(4)}
    axes.draw(canvas, ticks | {1e4: "10⁴"}, {value * 1e12: words for value, words in ticks.items()})
    canvas.text(MARGIN, 100, "TFLOP/s", size=14, fill="soft")
    canvas.text(WIDTH - MARGIN, 456, "operations per byte →", size=14, fill="soft", anchor="end")
    roof = [(1, hardware.HBM_RATE), (ridge, hardware.BF16_RATE), (1e4, hardware.BF16_RATE)]
    canvas.line([axes.place(*point) for point in roof], stroke="ink", width=3)
    x, y = axes.place(1.5, 1.5 * hardware.HBM_RATE)
    canvas.text(x + 6, y + 20, f"{hardware.HBM_RATE / 1e12:g} TB/s", bold=True, halo=True)
    x, y = axes.place(1e4, hardware.BF16_RATE)
    canvas.text(
        x, y - 10, f"{hardware.BF16_RATE / 1e12:.0f} TFLOP/s", anchor="end", bold=True, halo=True
    )
    for kernel, name, said, colour in (
        (baseline, "naive", words[0], "orange-ink"),
        (flash, "flash", words[1], "green-ink"),
    ):
        x, y = axes.place(kernel.intensity, kernel.rate)
        _, limit = axes.place(kernel.intensity, kernel.roof)
        canvas.line([(x, limit), (x, y)], stroke=colour, width=2, dashed=True)
        canvas.dot(x, y, colour, 7)
        canvas.text(x, y + 25, name, fill=colour, bold=True, halo=True, anchor="middle")
    shape = f"p03 on one H200, `seqlen` {sizes['seqlen']}, `head_dim` {sizes['head_dim']}"
    canvas.text(MARGIN, 490, f"naive: {words[0]}", fill="orange-ink", bold=True)
    canvas.text(MARGIN, 514, f"flash: {words[1]}", fill="green-ink", bold=True)
    canvas.text(MARGIN, 538, shape, size=14, fill="soft")
    counted = f"naive moves {per_score} bytes per score: its softmax is fp32"
    canvas.text(MARGIN, 560, counted, size=14, fill="soft")
    return canvas.finish()
