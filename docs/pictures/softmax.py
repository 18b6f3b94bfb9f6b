"""Online softmax over two tiles, with the numbers of p01's worked example."""

from __future__ import annotations

import dataclasses
import math

import torch

from .canvas import MARGIN, WIDTH, Canvas, Picture

SCORES = (1.0, 3.0, 2.0, 5.0)
VALUES = (10.0, 20.0, 30.0, 40.0)
TILE = 2
_SLOT, _BAR, _TALLEST = 50, 34, 84


@dataclasses.dataclass(frozen=True)
class State:
    """What is kept per query, after `seen` keys; `weights` are e^(score - running_max)."""

    seen: int
    weights: tuple[float, ...]
    rescale: float
    running_max: float
    running_sum: float
    acc: float


def states() -> list[State]:
    """The state after each tile, in fp64."""
    scores, values = (torch.tensor(x, dtype=torch.float64) for x in (SCORES, VALUES))
    running_max, running_sum, acc, found = -math.inf, 0.0, 0.0, []
    for start in range(0, len(SCORES), TILE):
        stop = start + TILE
        new_max = max(running_max, scores[start:stop].max().item())
        rescale = math.exp(running_max - new_max)
        weights = torch.exp(scores[start:stop] - new_max)
        running_sum = running_sum * rescale + weights.sum().item()
        acc = acc * rescale + (weights @ values[start:stop]).item()
        running_max = new_max
        shown = torch.exp(scores[:stop] - running_max).tolist()
        found.append(State(stop, tuple(shown), rescale, running_max, running_sum, acc))
    return found


def online_softmax() -> Picture:
    """The weights as bars after each tile: the old ones shrink by one factor (p01)."""
    first, last = states()
    out, lse = last.acc / last.running_sum, last.running_max + math.log(last.running_sum)
    canvas = Canvas(
        "online-softmax",
        title="Online softmax: when the maximum grows, one factor repairs all that was added up",
        desc=f"Four keys with scores {_list(SCORES)} and values {_list(VALUES)} come in two tiles. "
        f"After tile 1 the maximum is {first.running_max:g}, the sum {first.running_sum:.4f}, acc "
        f"{first.acc:.4f}. Tile 2 raises the maximum to {last.running_max:g}: the old weights, sum "
        f"and acc shrink by {last.rescale:.4f}. Then the sum is {last.running_sum:.4f}, acc "
        f"{last.acc:.4f}, out = {out:.2f} and lse = {lse:.4f}.",
        height=664,
    )
    canvas.heading("Online softmax: when the maximum grows,", "one factor repairs the past")
    w, v = first.weights, VALUES
    sums = [
        f"`running_sum` = {w[0]:.4f} + {w[1]:g} = {first.running_sum:.4f}",
        f"`acc` = {w[0]:.4f} · {v[0]:g} + {w[1]:g} · {v[1]:g} = {first.acc:.4f}",
    ]
    _panel(canvas, 72, "after tile 1", first, sums)
    canvas.line([(40, 316), (40, 372)], stroke="plum-ink", width=2, arrow=True)
    maxima = f"{first.running_max:g} - {last.running_max:g}".replace("-", "−")
    canvas.text(58, 340, f"`rescale` c = exp({maxima}) = {last.rescale:.4f}", fill="plum-ink")
    canvas.text(58, 362, "multiplies every old weight, sum and acc", fill="plum-ink")
    w = last.weights
    sums = [
        f"`running_sum` = c · {first.running_sum:.4f} + {w[2]:.4f} + {w[3]:g} "
        f"= {last.running_sum:.4f}",
        f"`acc` = c · {first.acc:.4f} + {w[2]:.4f} · {v[2]:g} + {w[3]:g} · {v[3]:g} "
        f"= {last.acc:.4f}",
    ]
    _panel(canvas, 376, "after tile 2", last, sums)
    canvas.text(MARGIN, 646, f"`out = acc / running_sum` = {out:.2f}", bold=True)
    canvas.text(WIDTH - MARGIN, 646, f"`lse` = {lse:.4f}", bold=True, anchor="end")
    return canvas.finish()


def _panel(canvas: Canvas, y: float, title: str, state: State, sums: list[str]) -> None:
    """Bars of the weights so far, the maximum beside them, the sums below."""
    canvas.box(MARGIN, y, WIDTH - 2 * MARGIN, 240, "none", radius=8)
    canvas.text(MARGIN + 12, y + 24, title, bold=True)
    legend = "bar: exp(score − `running_max`)"
    canvas.text(WIDTH - MARGIN - 12, y + 24, legend, size=14, fill="soft", anchor="end")
    left, base, side = MARGIN + 16, y + 142, 272
    for key, (score, value) in enumerate(zip(SCORES, VALUES, strict=True)):
        x = left + key * _SLOT + (key // TILE) * 12
        if key < state.seen:
            height = max(2.0, state.weights[key] * _TALLEST)
            paint = canvas.hatched if key < state.seen - TILE else canvas.box
            paint(x, base - height, _BAR, height, "plum")
            weight = f"{state.weights[key]:.3f}" if state.weights[key] < 1 else "1"
            canvas.text(x + _BAR / 2, base - height - 5, weight, size=14, anchor="middle")
        else:
            canvas.box(x, base - _TALLEST, _BAR, _TALLEST, "none", stroke="faint", dashed=True)
        canvas.text(x + _BAR / 2, base + 19, f"{score:g}", anchor="middle", fill="orange-ink")
        canvas.text(x + _BAR / 2, base + 39, f"{value:g}", anchor="middle", fill="green-ink")
    canvas.line([(left - 6, base), (side - 18, base)])
    canvas.text(side, base + 19, "score", fill="orange-ink")
    canvas.text(side, base + 39, "value", fill="green-ink")
    canvas.text(side, base - 60, "`running_max`", fill="plum-ink")
    canvas.text(side, base - 36, f"{state.running_max:g}", bold=True, size=17)
    canvas.lines(MARGIN + 12, y + 206, sums, leading=23, size=14)


def _list(numbers: tuple[float, ...]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)
