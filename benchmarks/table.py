"""Results as tables of at most 100 columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

WIDTH = 100


def heading(result: dict[str, Any]) -> str:
    """Problem, shape and pass in one line."""
    return f"{result['problem']}  {result['shape']['label']}  {result['pass']}"


def contenders_table(result: dict[str, Any]) -> Table:
    """All contenders of one shape and pass: time, rate, ratio, memory, error."""
    table = _table(heading(result))
    columns = ("contender", "ms", "+-%", result["unit"], "of peak", "x ours", "memory", "error")
    for name in columns:
        table.add_column(name, justify="left" if name == "contender" else "right", no_wrap=True)
    notes = []
    for row in result["contenders"]:
        label = row["label"] + (" *" if row["id"] == result["best_peer"] else "")
        if row["status"] != "timed":
            table.add_row(label, Text(row["status"]), "", "", "", "", "", "")
            notes.append(f"{row['label']}: {row['status']}: {row.get('reason', '')}")
            continue
        table.add_row(
            label,
            _number(row["median_ms"]),
            _spread(row),
            _number(row.get("rate")),
            _percent(row.get("fraction")),
            _ratio(row.get("ratio")),
            _bytes(row.get("extra_bytes")),
            _worst(row.get("errors", {})),
        )
    if notes:
        table.caption = Text("\n".join(_cut(note) for note in notes))
        table.caption_justify = "left"
    return table


def summary_table(results: Iterable[dict[str, Any]]) -> Table:
    """One line a shape and pass: our time, the best peer, the targets."""
    table = _table("ours beside the best peer (time of the peer / ours)")
    left = ("problem", "shape", "best peer", "targets")
    for name in ("problem", "shape", "pass", "ours ms", "of peak", "best peer", "ratio", "targets"):
        table.add_column(
            name, justify="left" if name in left else "right",
            no_wrap=name not in ("targets", "shape"), overflow="fold",
        )  # fmt: skip
    short = {"forward": "fwd", "backward": "bwd", "forward+backward": "both"}
    for result in results:
        ours = next((r for r in result["contenders"] if r["role"] == "ours"), {})
        timed = ours.get("status") == "timed"
        table.add_row(
            result["problem"],
            result["shape"]["label"],
            short.get(result["pass"], result["pass"]),
            _number(ours["median_ms"]) if timed else ours.get("status", ""),
            _percent(ours.get("fraction")),
            result["best_peer"] or "",
            _ratio(result["ratio"]),
            _targets(result["targets"]),
        )
    return table


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1), width=None,
        title_style="bold", show_edge=False,
    )  # fmt: skip


def _targets(targets: dict[str, dict[str, Any]]) -> str:
    words = {True: "ok", False: "MISSED", None: "?"}
    return "; ".join(
        f"{name} {_ratio(t['ratio'])}/{t['least']:.2f} {words[t['reached']]}"
        for name, t in targets.items()
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if value < 10 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _spread(row: dict[str, Any]) -> str:
    low, high = row["quartiles_ms"]
    return f"{50 * (high - low) / row['median_ms']:.1f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}%"


def _ratio(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _bytes(value: int | None) -> str:
    if value is None:
        return ""
    if value >= 2**30:
        return f"{value / 2**30:.1f} GiB"
    return f"{value / 2**20:.0f} MiB" if value >= 2**20 else f"{value / 2**10:.0f} KiB"


def _worst(errors: dict[str, dict[str, Any]]) -> str:
    """The largest relative error of a head over all outputs, and of which."""
    found = [(e["worst"], name) for name, e in errors.items() if "worst" in e]
    return "{:.1e} {}".format(*max(found)) if found else ""


def _cut(text: str) -> str:
    return text if len(text) < WIDTH else text[: WIDTH - 4] + " ..."
