"""A race as text for the terminal: a table with bars, the fastest first."""

from __future__ import annotations

import dataclasses
import math

from grader.base.text import clean, fit, wrap
from grader.commands.race.recorded import Recorded
from grader.spec.findings import Lane, Raced
from grader.spec.grade_record import Environment
from grader.spec.roofline import Roof

_NAME, _BAR = 34, 17
_NOISY_PERCENT = 10.0


@dataclasses.dataclass(frozen=True)
class Race:
    """What took part, what is known of the model answer, and the roofline of this GPU."""

    environment: Environment
    raced: Raced
    recorded: Recorded | None
    roof: Roof | None


def render(race: Race, *, width: int = 80, color: bool = False) -> str:
    """Return milliseconds, speed-up over naive and share of the roofline of all that took part."""
    raced, roof = race.raced, race.roof
    lanes = [lane for lane in (raced.naive, raced.library, raced.yours) if lane is not None]
    rows = [(lane.name, lane.ms) for lane in lanes if lane.ms]
    if race.recorded:
        rows.append((f"model answer, recorded {race.recorded.day}", race.recorded.ms))
    if roof:
        rows.append(("roofline", roof.ms))
    rows.sort(key=lambda row: row[1])
    naive_ms = raced.naive.ms if raced.naive else None
    environment = race.environment
    lines = wrap(f"race {raced.problem}: {clean(raced.shape)}", width, "", "  ")
    versions = f"torch {clean(environment.torch)}, Triton {clean(environment.triton)}"
    lines += [*wrap(f"{clean(environment.device_name, 60)}, {versions}", width), ""]
    lines.append(f"{'':{_NAME}}{'ms':>9}{'x naive':>9}{'of roof':>9}")
    for name, ms in rows:
        speedup = f"{naive_ms / ms:.3g}" if naive_ms else "-"
        share = f"{100 * roof.ms / ms:.3g} %" if roof else "-"
        bar = "#" * _bar(ms, rows[0][1], rows[-1][1])
        row = f"{fit(clean(name), _NAME)}{ms:>9.3g}{speedup:>9}{share:>9}  {bar}".rstrip()
        lines.append(f"\x1b[1m{row}\x1b[0m" if color and name == raced.yours.name else row)
    lines += ["", *_notes(race, lanes, width)]
    return "\n".join(lines) + "\n"


def _bar(ms: float, fastest: float, slowest: float) -> int:
    """Columns of a bar, longer for what is faster, in the logarithm."""
    if slowest <= fastest:
        return _BAR
    return 1 + round((_BAR - 1) * math.log(slowest / ms) / math.log(slowest / fastest))


def _notes(race: Race, lanes: list[Lane], width: int) -> list[str]:
    raced, lines = race.raced, []
    for lane in lanes:
        if lane.reason:
            lines += wrap(f"{lane.name}: not timed: {clean(lane.reason)}", width, "", "  ")
        elif (lane.spread_percent or 0.0) > _NOISY_PERCENT:
            told = f"{lane.name}: the rounds differ by {lane.spread_percent:.0f} %: run it again"
            lines += wrap(told, width, "", "  ")
    for text in raced.left_out:
        lines += wrap(f"left out: {clean(text, 200)}", width, "", "  ")
    if "window_size" in raced.shape and raced.library:
        lines += wrap("SDPA gets the window as a mask, and computes all pairs", width)
    if race.recorded is None:
        lines += wrap("model answer: no time is recorded for this GPU and shape", width)
    lines += wrap(_roof_line(race.roof), width, "", "  ")
    lines += wrap(
        f"bars are logarithmic, longer is faster; nothing here is graded: make grade"
        f" P={raced.problem}",
        width,
    )
    return lines


def _roof_line(roof: Roof | None) -> str:
    if roof is None:
        return "roofline: the rates of this GPU are not known"
    bytes_ms = 1000 * roof.bytes / roof.bandwidth
    moved = f"{roof.bytes / 1e6:.3g} MB at {roof.bandwidth / 1e9:.4g} GB/s take {bytes_ms:.3g} ms"
    if not roof.operations:
        return f"roofline: {moved}"
    dots_ms = 1000 * roof.operations / roof.rate
    dots = f"{roof.operations / 1e9:.3g} GFLOP of dots at {roof.rate / 1e12:.4g} TFLOP/s"
    return f"roofline: {dots} take {dots_ms:.3g} ms, {moved}; the longer counts"
