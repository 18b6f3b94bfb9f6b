"""The command line of `python -m benchmarks`: prints tables, saves the record after each shape."""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import plots, record, shapes, sweep, table


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    p = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Time the model answers beside library kernels, all in one process.",
    )
    p.add_argument("--problems", "-p", default=",".join(shapes.PROBLEMS), metavar="p04,p06")
    p.add_argument(
        "--shapes",
        "-s",
        metavar="NAMES",
        help='names ("d64,growth"), or "1,64,8,8192,128,w=128,s=4"; ";" between several',
    )
    p.add_argument(
        "--contenders",
        metavar="IDS",
        help="only these beside ours: naive_bf16,naive_fp32,sdpa_flash,sdpa_cudnn,flex,flex_tuned,"
        "flash_attention_4,varlen,mv,compiled_sum,limits,own_no_sinks,own_all_heads",
    )
    p.add_argument("--json", type=Path, metavar="FILE", help="write the record, after every shape")
    p.add_argument("--plot", type=Path, metavar="DIR", help="draw plots, if matplotlib is there")
    p.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FILE",
        help="measure nothing: show and draw this record",
    )
    p.add_argument("--quick", action="store_true", help="the first shape of a problem, few rounds")
    p.add_argument(
        "--sweep", action="store_true", help="shapes outside the table, beside FlexAttention alone"
    )
    p.add_argument("--sweep-points", type=int, default=8, metavar="N", help="shapes per problem")
    p.add_argument(
        "--seconds-per-problem",
        type=float,
        metavar="N",
        help="sampling time of a problem (default 4 s for a pass of a shape)",
    )
    p.add_argument("--budget-s", type=float, metavar="N", help="stop cleanly before this is over")
    p.add_argument("--seed", type=int, default=2026)
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument(
        "--dry-run",
        action="store_true",
        help="small shapes, to try the program itself; with --device cpu no GPU",
    )
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if every answer was right and timed, else 1; 2 for wrong usage."""
    options = parser().parse_args(argv)
    console = Console(width=table.WIDTH, highlight=False, soft_wrap=False)
    try:
        if options.source is not None:
            return _show(record.load(options.source), options.plot, console)
        problems = _problems(options.problems)
        wanted = _wanted(problems, options)
        if options.device == "cpu" and not options.dry_run:
            raise ValueError("--device cpu: times nothing worth having; add --dry-run")
    except (ValueError, OSError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    if not any(wanted.values()):
        print("benchmarks: no chosen problem has such a shape", file=sys.stderr)
        return 2
    if options.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    return _run(wanted, options, console)


def _problems(text: str) -> list[str]:
    found = [name.strip() for name in text.split(",") if name.strip()]
    for name in found:
        if name not in shapes.PROBLEMS:
            raise ValueError(f"--problems: got {name}, expected among {', '.join(shapes.PROBLEMS)}")
    return found


def _wanted(problems: list[str], options: argparse.Namespace) -> dict[str, list]:
    if options.sweep:
        able = [name for name in problems if name not in ("p01", "p02")]
        wanted = {name: sweep.points(name, options.sweep_points) for name in able}
    else:
        wanted = {name: shapes.chosen(name, options.shapes, options.quick) for name in problems}
    if options.dry_run:
        wanted = {name: [shapes.shrunk(s) for s in found] for name, found in wanted.items()}
    return {name: found for name, found in wanted.items() if found}


def _run(wanted: dict[str, list], options: argparse.Namespace, console: Console) -> int:
    started = time.monotonic()
    import torch

    from benchmarks.run import Settings, run_problem
    from benchmarks.timing import Clock

    if options.device == "cuda" and not torch.cuda.is_available():
        print("benchmarks: no usable CUDA GPU", file=sys.stderr)
        return 2
    warnings.filterwarnings("ignore")
    torch.set_float32_matmul_precision("highest")
    contenders = frozenset(options.contenders.split(",")) if options.contenders else None
    if options.sweep and contenders is None:
        contenders = frozenset({"flex", "sdpa_cudnn"})
    kept = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
    found = record.new_record("sweep" if options.sweep else "benchmark", kept)
    clock = Clock(options.device)
    _title(found, console)

    def deadline(longest_s: float) -> bool:
        left = (options.budget_s or float("inf")) - (time.monotonic() - started)
        # The time of the slowest shape so far, with a margin; 20 s before the first.
        return left < (1.3 * longest_s or 20.0)

    def say(text: str) -> None:
        console.print(text, markup=False)

    status = 0
    try:
        for problem, shapes_of_it in wanted.items():
            settings = Settings(
                device=options.device,
                seconds=_seconds(problem, len(shapes_of_it), options),
                rounds=15 if options.quick or options.sweep else 41,
                sets=3,
                seed=options.seed,
                compiled=options.device == "cuda",
                wanted=contenders,
            )
            for result in run_problem(problem, shapes_of_it, settings, clock, deadline, say):
                found["ceilings"] = result["ceilings"]
                found["results"].append(result)
                found["seconds"] = round(time.monotonic() - started, 1)
                record.save(found, options.json)
                console.print(table.contenders_table(result))
                for note in table.notes(result):
                    console.print(note, markup=False)
    except KeyboardInterrupt:
        console.print("interrupted")
        status = 1
    except Exception as error:
        # The GPU's context is lost; earlier results remain valid.
        console.print(f"stopped: {type(error).__name__}: {error}"[:400], markup=False)
        status = 1
    record.save(found, options.json)
    return max(status, _show(found, options.plot, console))


def _seconds(problem: str, count: int, options: argparse.Namespace) -> float:
    if options.seconds_per_problem is None:
        return 1.0 if options.quick or options.sweep else 4.0
    return max(0.3, options.seconds_per_problem / (count * len(shapes.passes(problem))))


def _title(found: dict[str, Any], console: Console) -> None:
    hardware, versions = found["hardware"], found["versions"]
    console.print(
        f"{hardware['device']}, driver {hardware.get('driver')}, torch {versions['torch']},"
        f" Triton {versions['triton']}, cuDNN {versions['cudnn']}, {found['date']}",
        markup=False,
    )


def _show(found: dict[str, Any], folder: Path | None, console: Console) -> int:
    results = found["results"]
    if not results:
        console.print("no results")
        return 1
    console.print(table.summary_table(results))
    if any(result["targets"] for result in results):
        console.print(table.targets_table(results))
    if found.get("ceilings"):
        top = found["ceilings"]
        console.print(
            f"ceilings: bf16 matmul {top['matmul_tflops']:.0f} TFLOP/s,"
            f" copy {top['copy_gbps']:.0f} GB/s; {found.get('seconds', '?')} s in all"
        )
    if found["kind"] == "sweep":
        slow, compared = sweep.verdict(results)
        console.print(f"{len(slow)} of {compared} points below {sweep.LEAST} of FlexAttention")
        for result in slow:
            console.print(
                f"  {table.heading(result)}  {sweep.flex_ratio(result):.2f}", markup=False
            )
    if folder is not None:
        _draw(found, folder, lambda text: console.print(text, markup=False))
    rows = [row for result in results for row in result["contenders"] if row["role"] == "ours"]
    return int(any(row["status"] != "timed" for row in rows))


def _draw(found: dict[str, Any], folder: Path, say: Callable[[str], None]) -> None:
    try:
        for path in plots.draw(found, folder):
            say(f"drew {path}")
    except plots.NoMatplotlib as error:
        say(f"no plots: {error}")
