"""Times our own kernel with other launch configurations: `python -m benchmarks.variants p04`.

The function by which the solution chooses tiles is replaced for each variant. Variants compile in
parallel, each result is checked, then they are timed in turns, the best third more often. Where a
solution has one configuration per kernel (p08, p09), `--kernel` says which to vary: the forward
kernel is timed in the forward pass, any other in the backward pass.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import precompile, record, shapes, table

_SHORT = {"BLOCK_M": "M", "BLOCK_N": "N", "num_warps": "w", "num_stages": "s"}
# Requirements on tiles in the kernels' headers; a variant that breaks one would read out of bounds
# or count pairs twice.
_RULES: dict[tuple[str, str | None], tuple[str, Callable[[dict[str, int]], bool]]] = {
    ("p08", "dkdv"): ("BLOCK_M divides BLOCK_N", lambda c: c["BLOCK_N"] % c["BLOCK_M"] == 0),
    ("p08", "dq"): ("BLOCK_N divides BLOCK_M", lambda c: c["BLOCK_M"] % c["BLOCK_N"] == 0),
    ("p09", "sink"): ("BLOCK_M divides 64", lambda c: 64 % c["BLOCK_M"] == 0),
}
_RULES |= {("p09", name): _RULES["p08", name] for name in ("dkdv", "dq")}
_RULES["p09", "forward"] = _RULES["p08", "dq"]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    p = argparse.ArgumentParser(
        prog="python -m benchmarks.variants",
        description="Time a model answer under other configurations.",
    )
    p.add_argument("problem", choices=[name for name in shapes.PROBLEMS if name not in ("p01",)])
    p.add_argument(
        "--shape",
        action="append",
        metavar="SHAPE",
        help='"2,16,16,8192,128" or a name; may be repeated (default: the first)',
    )
    p.add_argument("--kernel", metavar="NAME", help="p08: dkdv, dq; p09: forward, dkdv, dq, sink")
    for name in ("block-m", "block-n", "num-warps", "num-stages"):
        p.add_argument(f"--{name}", type=_numbers, metavar="A,B")
    p.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=A,B",
        help="any other key of the configuration",
    )
    p.add_argument("--beside", metavar="IDS", help="library kernels to time too: sdpa_cudnn,flex")
    p.add_argument("--workers", type=int, default=10, help="compiling processes (0: none)")
    p.add_argument("--compile-s", type=float, default=150.0, help="time for compiling in parallel")
    p.add_argument("--seconds", type=float, default=6.0, help="sampling time for a shape")
    p.add_argument("--json", type=Path, metavar="FILE")
    p.add_argument("--dry-run", action="store_true", help="only list the variants")
    return p


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def product(options: argparse.Namespace) -> list[precompile.Overrides]:
    """Return all combinations of the given values; keys without values are not overridden."""
    axes: dict[str, list[int]] = {
        "BLOCK_M": options.block_m,
        "BLOCK_N": options.block_n,
        "num_warps": options.num_warps,
        "num_stages": options.num_stages,
    }
    for item in options.set:
        key, equals, values = item.partition("=")
        if not equals:
            raise ValueError(f"--set: got {item!r}, expected KEY=A,B")
        axes[key] = _numbers(values)
    axes = {key: values for key, values in axes.items() if values}
    if not axes:
        raise ValueError("no values to try: give --block-m, --num-warps, ... or --set")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def label(overrides: precompile.Overrides) -> str:
    """Return a variant's label, such as "M128 N64 w8 s3"."""
    return " ".join(f"{_SHORT.get(key, key + '=')}{value}" for key, value in overrides.items())


def current_config(module: Any, function: Callable[[], Any], kernel: str | None) -> dict[str, Any]:
    """Return what the module's `precompile.chooser` chooses in a call of `function`.

    Raises:
        ValueError: `kernel` is not one of the kernels that the function configures.
    """
    seen: list[dict[str, Any]] = []
    chooser = precompile.chooser(module)
    original = getattr(module, chooser)

    def note(*args: Any, **kwargs: Any) -> dict[str, Any]:
        seen.append(original(*args, **kwargs))
        return seen[-1]

    setattr(module, chooser, note)
    try:
        function()
    finally:
        setattr(module, chooser, original)
    chosen = seen[-1] if seen else {}
    names = [name for name, value in chosen.items() if isinstance(value, dict)]
    if names and kernel not in names:
        raise ValueError(f"--kernel: got {kernel}, expected one of {', '.join(names)}")
    if not names and kernel is not None:
        raise ValueError(f"--kernel: got {kernel}, but there is one configuration alone")
    return dict(chosen[kernel] if names else chosen)


def broken_rule(problem: str, kernel: str | None, config: dict[str, Any]) -> str | None:
    """Return the rule of the kernel that a configuration breaks, or None."""
    rule, holds = _RULES.get((problem, kernel), ("", lambda _: True))
    return None if holds(config) else rule


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if anything was timed, 2 for wrong usage, else 1."""
    options = parser().parse_args(argv)
    console = Console(width=table.WIDTH, highlight=False)
    try:
        variants = product(options)
        if (options.problem, options.kernel) == ("p08", "forward"):
            raise ValueError("--kernel: the forward kernel of p08 is that of p05: vary p05")
        wanted = [
            shape
            for text in options.shape or [shapes.DEFAULT[options.problem][0].name]
            for shape in shapes.chosen(options.problem, text)
        ]
        if not wanted:
            raise ValueError(f"--shape: got {options.shape}, none fits {options.problem}")
        if options.dry_run:
            console.print(f"{len(variants)} variants: {', '.join(map(label, variants))}")
            return 0
        return _run(options, wanted, variants, console)
    except ValueError as error:
        print(f"variants: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace, wanted: list, variants: list, console: Console) -> int:
    import torch

    from benchmarks.timing import Clock

    if not torch.cuda.is_available():
        raise ValueError("no usable CUDA GPU")
    warnings.filterwarnings("ignore")
    kept = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
    found = record.new_record("variants", kept)
    clock = Clock("cuda")
    for shape in wanted:
        started = time.monotonic()
        result = measure(
            options, shape, variants, clock, lambda text: console.print(text, markup=False)
        )
        result["seconds"] = round(time.monotonic() - started, 1)
        found["results"].append(result)
        record.save(found, options.json)
        for line in result["failed"]:
            console.print(f"  {line['label']}: {line['reason']}"[:300], markup=False)
        console.print(ranking(result))
        if result["fatal"]:
            console.print(f"stopped, the GPU's context is lost: {result['fatal']}", markup=False)
            return 1
    return int(not any(result["rows"] for result in found["results"]))


def measure(
    options: argparse.Namespace,
    shape: Any,
    variants: list[precompile.Overrides],
    clock: Any,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Compile, check and time the variants on one shape; return plain data for the record."""
    from benchmarks.contenders import OURS, build, is_fatal, reason
    from benchmarks.inputs import load_solution, make_inputs, oracle
    from benchmarks.run import Runner
    from benchmarks.timing import Entrant, interleave, spread

    problem, kernel = options.problem, options.kernel
    is_backward = problem in shapes.TRAINED and kernel != "forward"
    which = shapes.BACKWARD if is_backward else shapes.FORWARD
    module = load_solution(problem)[0]
    inputs = [make_inputs(problem, shape, seed, "cuda") for seed in (1, 2)]
    beside = frozenset(options.beside.split(",") if options.beside else ())
    contenders = build(problem, shape, "cuda", wanted=beside)
    ours = contenders[0]
    result: dict[str, Any] = {
        "problem": problem, "shape": shape.facts(), "pass": which, "kernel": kernel,
        "rows": [], "failed": [], "fatal": None,
    }  # fmt: skip
    if getattr(ours, "reason", None):
        raise ValueError(f"the solution cannot be loaded: {ours.reason}")
    current = current_config(module, lambda: Runner(problem, ours, inputs, which)(0), kernel)
    result["current"] = current

    jobs = [("current", {})]
    for overrides in variants:
        broken = broken_rule(problem, kernel, current | overrides)
        if broken:
            result["failed"].append({"label": label(overrides), "reason": f"skipped: {broken}"})
        else:
            jobs.append((label(overrides), overrides))
    compiled: list[dict[str, Any]] = [{"error": None, "kernels": {}} for _ in jobs]
    if options.workers and len(jobs) > 1:
        started = time.monotonic()
        compiled = precompile.compile_all(
            problem, shape, which, kernel, [job[1] for job in jobs],
            options.workers, options.compile_s, say,
        )  # fmt: skip
        say(f"compiled {len(jobs)} variants in {time.monotonic() - started:.0f} s")

    expected = oracle(problem, shape, inputs[0])
    entrants: dict[str, tuple[Entrant, dict[str, Any]]] = {}

    def enter(name: str, contender: Any, overrides: dict, row: dict[str, Any]) -> None:
        def call(number: int) -> Any:
            with precompile.patched(module, kernel, overrides):
                return runner(number)

        try:
            with precompile.patched(module, kernel, overrides):
                runner = Runner(problem, contender, inputs, which)
                row["errors"] = runner.check(expected)
            entrants[name] = (Entrant(call, len(runner.sets)), row)
        except Exception as error:
            result["failed"].append({"label": name, "reason": reason(error)})
            if is_fatal(error):
                result["fatal"] = reason(error)

    for (name, overrides), made in zip(jobs, compiled, strict=True):
        if made["error"]:
            result["failed"].append({"label": name, "reason": made["error"]})
        elif not result["fatal"]:
            row = {"label": name, "config": current | overrides, "kernels": made["kernels"]}
            enter(name, ours, overrides, row)
    for contender in contenders[1:]:
        if hasattr(contender, "reason"):
            result["failed"].append({"label": contender.label, "reason": contender.reason})
        elif contender.role != OURS and not result["fatal"]:
            enter(contender.label, contender, {}, {"label": contender.label, "kernels": {}})
    if result["fatal"]:
        return result

    rng = random.Random(1)
    all_of_them = [entrant for entrant, _ in entrants.values()]
    interleave(all_of_them, clock, seconds=options.seconds / 2, rounds=15, rng=rng)
    timed = sorted(
        (e for e in all_of_them if e.samples_ms and e.fault is None),
        key=lambda e: spread(e.samples_ms)["median_ms"],
    )
    best = timed[: max(5, len(timed) // 3)]
    if "current" in entrants and entrants["current"][0] in timed[len(best) :]:
        best.append(entrants["current"][0])
    interleave(best, clock, seconds=options.seconds / 2, rounds=60, rng=rng)
    unit, work = shape.work(which)
    for name, (entrant, row) in entrants.items():
        if entrant.fault is not None or not entrant.samples_ms:
            fault = entrant.fault or RuntimeError("no sample was taken")
            result["failed"].append({"label": name, "reason": reason(fault)})
            continue
        row |= spread(entrant.samples_ms)
        row |= {"unit": unit, "rate": 1e3 * work / row["median_ms"]}
        result["rows"].append(row)
    result["rows"].sort(key=lambda row: row["median_ms"])
    return result


def ranking(result: dict[str, Any]) -> Table:
    """Return a table of variants, fastest first, with resources of the varied or largest kernel."""
    title = f"{table.heading(result)}  {result['kernel'] or ''}  now: {label(result['current'])}"
    found = Table(title=title, title_justify="left", box=None, padding=(0, 1))
    for name in ("variant", "ms", "+-%", "rate", "regs", "spills", "shared KiB", "error"):
        found.add_column(name, justify="left" if name == "variant" else "right", no_wrap=True)
    for row in result["rows"]:
        resources = max(row["kernels"].values(), key=lambda k: k["shared_bytes"] or 0, default=None)
        for name, kernel in row["kernels"].items():
            if result["kernel"] and name == f"_{result['kernel']}_kernel":
                resources = kernel
        worst = max((e["worst"] for e in row["errors"].values() if "worst" in e), default=0.0)
        found.add_row(
            row["label"],
            f"{row['median_ms']:.4f}",
            f"{50 * (row['quartiles_ms'][1] - row['quartiles_ms'][0]) / row['median_ms']:.1f}",
            f"{row['rate']:.0f}",
            str(resources["registers"]) if resources else "",
            str(resources["spills"]) if resources else "",
            f"{resources['shared_bytes'] / 1024:.0f}" if resources else "",
            f"{worst:.1e}",
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
