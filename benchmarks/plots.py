"""Plots of a record; needs matplotlib, which is the optional extra `bench`."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.shapes import FORWARD, TARGET_PASSES

_SIZE = (8, 5)
_SIZES = (
    "batch", "num_q_heads", "num_kv_heads", "seqlen", "head_dim", "window_size", "is_causal",
    "dtype", "rows", "cols",
)  # fmt: skip


class NoMatplotlib(Exception):
    """matplotlib is not installed; everything but the plots works without it."""


def draw(record: dict[str, Any], folder: Path) -> list[Path]:
    """Draw what the record has figures for; return the files written.

    time.svg, memory.svg: against sequence length, naive and ours, where several lengths of the
    same heads were run (`--shapes growth`). ratio.svg: best peer's time over ours.

    Raises:
        NoMatplotlib: it is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        # The same record gives the same file.
        matplotlib.rcParams["svg.hashsalt"] = "benchmarks"
        from matplotlib import pyplot
    except ImportError as error:
        raise NoMatplotlib("matplotlib is not installed: pip install -e '.[bench]'") from error
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    curves = growth_curves(record)
    for name, key, title in (
        ("time.svg", "median_ms", "time of one call (ms)"),
        ("memory.svg", "extra_bytes", "extra memory (bytes)"),
    ):
        if any(point.get(key) for points in curves.values() for _, point in points):
            written.append(_growth(pyplot, curves, key, title, folder / name))
    if ratio_results(record):
        written.append(_ratios(pyplot, record, folder / "ratio.svg"))
    return written


def growth_curves(record: dict[str, Any]) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    """ "problem contender" -> (seqlen, row) in order of length, from the forward growth shapes."""
    curves: dict[str, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for result in record["results"]:
        if result["pass"] != "forward" or not result["shape"]["name"].startswith("growth-"):
            continue
        for row in result["contenders"]:
            if row["status"] == "timed":
                curves[f"{result['problem']} {row['label']}"].append(
                    (result["shape"]["seqlen"], row)
                )
    ordered = {name: sorted(points, key=lambda p: p[0]) for name, points in curves.items()}
    return {name: points for name, points in ordered.items() if len(points) > 1}


def _growth(pyplot: Any, curves: dict, key: str, title: str, path: Path) -> Path:
    figure, axes = pyplot.subplots(figsize=_SIZE, layout="constrained")
    for name, points in curves.items():
        values = [(n, row[key]) for n, row in points if row.get(key)]
        if values:
            axes.plot(*zip(*values, strict=True), marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("sequence length")
    axes.set_ylabel(title)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path


def ratio_results(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The results a bar is drawn for: the pass that a problem is about, of shapes that differ in
    sinks alone the first one, and none of the growth shapes."""
    found: dict[tuple, dict[str, Any]] = {}
    for result in record["results"]:
        shape, about = result["shape"], TARGET_PASSES.get(result["problem"], (FORWARD,))[0]
        sizes = {k: v for k, v in shape.items() if k in _SIZES}
        key = (result["problem"], *sizes.values())
        is_growth = shape["name"].startswith("growth-")
        if result["ratio"] and result["pass"] == about and not is_growth:
            found.setdefault(key, result)
    return list(found.values())


def _ratios(pyplot: Any, record: dict[str, Any], path: Path) -> Path:
    results = ratio_results(record)
    names = [f"{r['problem']} {r['shape']['label']} {r['pass']}" for r in results]
    height = max(_SIZE[1], 0.25 * len(results))
    figure, axes = pyplot.subplots(figsize=(_SIZE[0], height), layout="constrained")
    axes.barh(names, [r["ratio"] for r in results])
    axes.axvline(1.0, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("best library kernel's time / ours (more than 1: ours is faster)")
    axes.tick_params(axis="y", labelsize="small")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path
