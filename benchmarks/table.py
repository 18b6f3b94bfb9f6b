"""Renders results as tables of at most 100 columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

WIDTH = 100
_SHORT = {"forward": "fwd", "backward": "bwd", "forward+backward": "both"}


def heading(result: dict[str, Any]) -> str:
    """Return problem, shape and pass in one line."""
    return f"{result['problem']}  {result['shape']['label']}  {result['pass']}"


def contenders_table(result: dict[str, Any]) -> Table:
    """Return the contenders of one shape and pass: time, rate, ratio, memory, error."""
    table = _table(heading(result))
    columns = ("contender", "ms", "+-%", result["unit"], "of peak", "x ours", "memory", "error")
    for name in columns:
        table.add_column(name, justify="left" if name == "contender" else "right", no_wrap=True)
    for row in result["contenders"]:
        label = row["label"] + (" *" if row["id"] == result["best_peer"] else "")
        if row["status"] != "timed":
            table.add_row(label, Text(row["status"]), "", "", "", "", "", "")
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
    return table


def notes(result: dict[str, Any]) -> list[str]:
    """Return why contenders are missing from the figures, one line each."""
    return [
        f"  {row['label']}: {row['status']}: {row.get('reason', '')}"
        for row in result["contenders"]
        if row["status"] != "timed"
    ]


def summary_table(results: Iterable[dict[str, Any]]) -> Table:
    """Return a row per shape and pass: our time and its ratio to the best peer's."""
    table = _table("ours beside the best peer (ratio: time of the peer / ours)")
    left = ("problem", "shape", "best peer")
    for name in ("problem", "shape", "pass", "ours ms", "of peak", "best peer", "ratio"):
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    for result in results:
        ours = next((r for r in result["contenders"] if r["role"] == "ours"), {})
        timed = ours.get("status") == "timed"
        table.add_row(
            result["problem"],
            result["shape"]["label"],
            _SHORT.get(result["pass"], result["pass"]),
            _number(ours["median_ms"]) if timed else ours.get("status", ""),
            _percent(ours.get("fraction")),
            result["best_peer"] or "",
            _ratio(result["ratio"]),
        )
    return table


def targets_table(results: Iterable[dict[str, Any]]) -> Table:
    """Return every target ratio, and whether it was reached."""
    table = _table("targets (ratio: time of the other / ours; copy: share of the copy rate)")
    for name in ("problem", "shape", "pass", "beside", "ratio", "at least", "verdict"):
        justify = "right" if name in ("ratio", "at least") else "left"
        table.add_column(name, justify=justify, no_wrap=True)
    words = {True: "reached", False: "MISSED", None: "unknown"}
    for result in results:
        for name, target in result["targets"].items():
            table.add_row(
                result["problem"],
                result["shape"]["label"],
                _SHORT.get(result["pass"], result["pass"]),
                name,
                _ratio(target["ratio"]),
                f"{target['least']:.2f}",
                words[target["reached"]],
            )
    return table


def plain(title: str, columns: Iterable[str]) -> Table:
    """Return a table without rows."""
    table = _table(title)
    for name in columns:
        table.add_column(name, no_wrap=True)
    return table


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1), width=None,
        title_style="bold", show_edge=False,
    )  # fmt: skip


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
    """Return the largest relative error of a head over all outputs, and its output."""
    found = [(e["worst"], name) for name, e in errors.items() if "worst" in e]
    return "{:.1e} {}".format(*max(found)) if found else ""
