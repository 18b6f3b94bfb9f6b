"""The record of `benchmarks.chips` as tables: all kernels, and one line per answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console

from benchmarks import table
from grader.kernel.compile.chips import EVERY_CHIP

_DTYPES = (("16-bit", ("bf16", "fp16")), ("fp32", ("fp32",)))


def kernel_rows(found: dict[str, Any]) -> Iterable[tuple[str, ...]]:
    """Return the cells of the whole table, one row per kernel, chip, head_dim, dtype and tile."""
    for result in found["results"]:
        room = EVERY_CHIP[result["capability"]].program_shared_bytes
        for row in result["kernels"]:
            yield (
                result["problem"], row["kernel"].strip("_").removesuffix("_kernel"),
                chip_name(result["capability"]), str(row["head_dim"] or ""), row["dtype"],
                f"{row['tile']}, {row['num_warps']}, {row['num_stages']}", str(row["registers"]),
                f"{row['stack_bytes']}, {row['spill_bytes']}" if row["stack_bytes"] else "none",
                f"{(row['shared_bytes'] or 0) / 1024:.1f} of {room // 1024}",
                "refused" if row["refusal"] else f"{row['programs']} ({row['limit']})",
                row["dots"],
            )  # fmt: skip


COLUMNS = (
    "", "kernel", "chip", "dim", "dtype", "tile, warps, stages", "regs",
    "stack, spills", "shared KiB", "programs", "dots",
)  # fmt: skip


def summary(found: dict[str, Any]) -> str:
    """Return the table of CHIPS.md: per answer and chip the largest share of memory and spill."""
    by_place = {(r["problem"], r["capability"]): r["kernels"] for r in found["results"]}
    chips = sorted({capability for _, capability in by_place})
    lines = [
        "| | " + " | ".join(chip_name(c) for c in chips) + " |",
        "|---|" + "---|" * len(chips),
        "| shared memory | "
        + " | ".join(f"{EVERY_CHIP[c].program_shared_bytes // 1024} KiB" for c in chips)
        + " |",
    ]
    for problem in sorted({problem for problem, _ in by_place}):
        for word, dtypes in _DTYPES:
            cells = []
            for chip in chips:
                kernels = by_place.get((problem, chip), [])
                cells.append(_verdict(chip, [k for k in kernels if k["dtype"] in dtypes]))
            lines.append(f"| {problem} {word} | " + " | ".join(cells) + " |")
    with_dots = {
        (problem, k["kernel"]) for (problem, _), ks in by_place.items() for k in ks if k["dots"]
    }
    for word, dtypes in _DTYPES:
        cells = []
        for chip in chips:
            told = {
                instruction
                for (problem, capability), kernels in by_place.items()
                for k in kernels
                if capability == chip and k["dtype"] in dtypes
                and (problem, k["kernel"]) in with_dots
                for instruction in (k["dots"] or "unknown").split("+")
            }  # fmt: skip
            cells.append(", ".join(sorted(told)))
        lines.append(f"| dots in {word} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _verdict(chip: int, kernels: list[dict[str, Any]]) -> str:
    if not kernels:
        return ""
    if any(kernel["refusal"] for kernel in kernels):
        return "**refused**"
    share = max(k["shared_bytes"] for k in kernels) / EVERY_CHIP[chip].program_shared_bytes
    worst = max(kernels, key=lambda k: k["stack_bytes"])
    spills = ""
    if worst["stack_bytes"]:
        where = f" at {worst['head_dim']}" if worst["head_dim"] else ""
        spills = f", **spills {worst['stack_bytes']} B{where}**"
    return f"{share:.0%}{spills}"


def chip_name(capability: int) -> str:
    """Return a compute capability in NVIDIA's form, such as 8.0."""
    return f"{capability / 10:.1f}"


def show(found: dict[str, Any], console: Console) -> None:
    """Print the versions and the whole table."""
    versions = found["versions"]
    seconds = sum(result["seconds"] for result in found["results"])
    console.print(f"Triton {versions['triton']}, {found['date']}, {seconds:.0f} s of one core")
    rows = table.plain("what the compiler made of the answers", COLUMNS)
    for row in kernel_rows(found):
        rows.add_row(*row)
    console.print(rows)
