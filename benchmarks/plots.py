"""Plots of a record; needs matplotlib, which is the optional extra `bench`.

They have the colours of docs/pictures, and follow a reader's light or dark mode as those do:
matplotlib draws in the light colours, and `themed` adds CSS rules for the dark ones. Those of
docs/plots: `python -m benchmarks --from FILE --plot docs/plots` with two of benchmarks/records, the
one of all shapes and that of growth.
"""

from __future__ import annotations

import io
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.shapes import FORWARD, TARGET_PASSES
from docs.pictures.palette import PALETTE

_SIZE = (5.4, 5.0)  # inches: 390 points, so that a phone does not shrink the text
_LIGHT = {name: light for name, (light, _) in PALETTE.items()}
_INKS = ("blue-ink", "orange-ink", "green-ink", "plum-ink", "line")  # the colour of a problem
_MARKERS = {"ours": "o", "naive": "s"}  # the shape of a contender; below, of a library
_LIBRARY = "^"
# Curves with a smaller relative distance at most of their points look like one.
_COINCIDE = 0.12
_DASH = 3.0  # in line widths
_STYLE = {
    "figure.facecolor": _LIGHT["paper"],
    "axes.facecolor": _LIGHT["paper"],
    "legend.facecolor": _LIGHT["paper"],
    "legend.edgecolor": _LIGHT["faint"],
    "legend.framealpha": 1.0,
    "text.color": _LIGHT["ink"],
    "axes.labelcolor": _LIGHT["ink"],
    "axes.edgecolor": _LIGHT["line"],
    "xtick.color": _LIGHT["line"],
    "ytick.color": _LIGHT["line"],
    "xtick.labelcolor": _LIGHT["ink"],
    "ytick.labelcolor": _LIGHT["ink"],
    "grid.color": _LIGHT["faint"],
    "grid.linewidth": 0.5,
    "svg.hashsalt": "benchmarks",  # so that the same record gives the same file
}
_SIZES = (
    "batch", "num_q_heads", "num_kv_heads", "seqlen", "head_dim", "window_size", "is_causal",
    "dtype", "rows", "cols",
)  # fmt: skip


class NoMatplotlib(Exception):
    """matplotlib is not installed; only plots need it."""


def draw(record: dict[str, Any], folder: Path) -> list[Path]:
    """Draw the plots that the record has figures for; return the files written.

    time.svg, memory.svg: against sequence length, if several lengths of the same heads were run
    (`--shapes growth`). ratio.svg: the best peer's time over ours; limits.svg instead, with the
    ratio for benchmarks/limits too, if it took part.

    Raises:
        NoMatplotlib: matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        matplotlib.rcParams.update(_STYLE)
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
        name = "limits.svg" if any(map(limits_ratio, record["results"])) else "ratio.svg"
        written.append(_ratios(pyplot, record, folder / name))
    return written


def limits_ratio(result: dict[str, Any]) -> float | None:
    """Return the best peer's time over that of benchmarks/limits; None if the plain answer ran."""
    times = {row["id"]: row.get("median_ms") for row in result["contenders"]}
    labels = [row["label"] for row in result["contenders"]]
    if "limits" not in labels or not times["limits"] or not times.get(result["best_peer"]):
        return None
    return times[result["best_peer"]] / times["limits"]


def growth_curves(record: dict[str, Any]) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    """Return (seqlen, row) in order of length by "problem contender", of forward growth shapes."""
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


def themed(svg: str, title: str) -> str:
    """Return a drawing in the palette's light colours with rules for a reader's dark mode."""
    dark = "".join(
        f'[style*="{kind}: {pair[0]}"]{{{kind}:{pair[1]} !important}}\n'
        for kind in ("fill", "stroke")
        for pair in PALETTE.values()
        if f"{kind}: {pair[0]}" in svg
    )
    rules = f"@media (prefers-color-scheme: dark){{\n{dark}}}\n"
    svg = svg.replace('<style type="text/css">', f'<style type="text/css">\n{rules}', 1)
    return re.sub(r"(<svg [^>]*>)", rf"\1\n <title>{title}</title>", svg, count=1)


def coinciding(curves: dict[str, dict[int, float]]) -> dict[str, tuple[int, int]]:
    """Return each curve's place among those that coincide with it, and their number.

    A curve has values by length; one that coincides with no other has (0, 1).
    """
    groups: list[list[str]] = []
    for name in curves:
        near = [g for g in groups if any(_coincide(curves[name], curves[other]) for other in g)]
        groups = [g for g in groups if g not in near]
        groups.append([*(other for g in near for other in g), name])
    order = list(curves)
    return {
        name: (place, len(group))
        for group in groups
        for place, name in enumerate(sorted(group, key=order.index))
    }


def _coincide(one: dict[int, float], other: dict[int, float]) -> bool:
    shared = one.keys() & other.keys()
    near = [n for n in shared if abs(one[n] - other[n]) <= _COINCIDE * max(one[n], other[n])]
    return len(near) > 1 and 2 * len(near) >= len(shared)


def _growth(pyplot: Any, curves: dict, key: str, title: str, path: Path) -> Path:
    figure, axes = pyplot.subplots(figsize=_SIZE, layout="constrained")
    shown = {
        name: {n: row[key] for n, row in points if row.get(key)} for name, points in curves.items()
    }
    shown = {name: values for name, values in shown.items() if values}
    problems = sorted({name.split()[0] for name in curves})
    places = coinciding(shown)
    for name, values in shown.items():
        place, of = places[name]
        problem, contender, *_ = name.split()
        # Coinciding curves alternate dashes, and their markers enclose each other.
        dashes = (place * _DASH, (_DASH, (of - 1) * _DASH)) if of > 1 else "solid"
        axes.plot(
            *zip(*values.items(), strict=True),
            color=_LIGHT[_INKS[problems.index(problem) % len(_INKS)]],
            linestyle=dashes,
            linewidth=2.0,
            marker=_MARKERS.get(contender, _LIBRARY),
            markersize=5.0 + 3.0 * (of - 1 - place),
            markerfacecolor="none" if place < of - 1 else None,
            label=name,
        )
    nothing = [
        name for name, points in curves.items() if {row.get(key) for _, row in points} == {0}
    ]
    if nothing:  # a logarithmic axis has no 0
        axes.plot([], [], " ", label=f"0: {', '.join(nothing)}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("sequence length")
    axes.set_ylabel(title)
    axes.grid(True, which="major")
    below = {"loc": "outside lower center", "ncols": 2}
    figure.legend(**below, fontsize="small", handlelength=4.0, markerscale=0.7)
    return _save(pyplot, figure, path, f"{title} against sequence length")


def ratio_results(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the results to draw as bars: no growth shapes, and a problem's main pass alone.

    Of shapes that differ only in sinks, the first is drawn.
    """
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
    ratios, limits = [r["ratio"] for r in results], [limits_ratio(r) for r in results]
    if any(limits):
        axes.barh(names, [x or 0.0 for x in limits], color=_LIGHT["orange-ink"], label="limits")
        axes.barh(names, ratios, height=0.4, color=_LIGHT["blue-ink"], label="model answer")
        axes.legend(fontsize="small")
    else:
        axes.barh(names, ratios, color=_LIGHT["blue-ink"])
    axes.axvline(1.0, color=_LIGHT["ink"], linewidth=1)
    axes.invert_yaxis()
    figure.supxlabel("best library's time / ours (above 1: ours is faster)", fontsize="medium")
    axes.tick_params(axis="y", labelsize="small")
    return _save(pyplot, figure, path, "time of the best library kernel over ours")


def _save(pyplot: Any, figure: Any, path: Path, title: str) -> Path:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    path.write_text(themed(text.getvalue(), title), encoding="utf-8")
    return path
