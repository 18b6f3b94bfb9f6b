"""`python -m benchmarks.chips`: compiles the answers' kernels with all their tiles, chip by chip.

Every kernel of every answer is compiled for GPUs that need not be there, as the judge compiles a
submission, at the head_dims and dtypes that the answers accept. The compiler reports registers,
spills and shared memory; nothing is timed.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import chips_table, record
from benchmarks.chips_table import chip_name
from grader.base.chip_name import is_amd
from grader.isolate.arena import Call
from grader.isolate.compiled import Compiled, call_of, compile_calls, unavailable
from grader.kernel.compile.chips import EVERY_CHIP
from grader.source.submission import Source
from grader.spec.cases import resolve
from grader.spec.kernel_report import Compilation
from grader.spec.problem import GIVEN, ROOT, Problem, load_problem, problem_ids
from grader.spec.protocol import failed

PROBLEMS = tuple(id for id in problem_ids() if load_problem(id).uses_triton)
HEAD_DIMS = (16, 32, 64, 128)  # accepted by `given.arguments`
CHIPS = tuple(capability for capability in EVERY_CHIP if not is_amd(capability))
DTYPES = ("bf16", "fp16", "fp32")
BF16_FROM = 80
_TIMEOUT_S = 900.0
_AT_A_TIME = 2  # chips, each in a separate worker
_HEADS = {"num_q_heads": 4, "num_kv_heads": 2}
_EACH = {"num_q_heads": 4, "num_kv_heads": 4}
_LONG = {"seqlen": 2048}
_SINKS = {"num_sink_tokens": 4}
# Inputs on which the choice of tiles depends, beside chip, dtype and head_dim: see `given.launch`.
_MATRICES = [{"rows": 64, "cols": c} for c in (48, 1024, 8192)] + [
    {"rows": 64, "cols": 1024, "layout": "transposed"}
]
_GIVEN: dict[str, list[dict[str, Any]]] = {
    "p03": [_LONG | _EACH],
    "p04": [_LONG | _EACH],
    "p05": [_LONG | _HEADS],
    "p06": [_LONG | _HEADS | {"window_size": w} for w in (1024, 128)],
    "p07": [_LONG | _HEADS | _SINKS | {"window_size": w} for w in (1024, 128)],
    # From 65536 keys on, a program of dK and dV has more of them.
    "p08": [_LONG | _HEADS, _LONG | _HEADS | {"batch": 16}],
    "p09": [
        _LONG | _HEADS | {"window_size": w, "num_sink_tokens": s, "sink_logits": True}
        for w, s in ((1024, 4), (128, 4), (1024, 32))
    ],
}


def calls_of(problem: Problem, dtype: str) -> list[Call]:
    """Return calls that together launch every kernel of an answer with every tile it chooses."""
    given = _MATRICES
    if problem.id != "p02":
        given = [options | {"head_dim": d} for d in HEAD_DIMS for options in _GIVEN[problem.id]]
    outputs = problem.gradients or problem.returns
    if problem.gradients:
        outputs = tuple(name for name in outputs if name[1:] in _inputs(problem))
    return [call_of(problem, resolve(options, dtype, ""), outputs) for options in given]


def _inputs(problem: Problem) -> tuple[str, ...]:
    return ("q", "k", "v", "sink_logits") if problem.id == "p09" else ("q", "k", "v")


def compile_answer(problem_id: str, capabilities: Sequence[int]) -> list[dict[str, Any]]:
    """Return one result per chip, with a row per kernel, head_dim, dtype and tile.

    Raises:
        RuntimeError: a call failed for another reason than a refused kernel.
    """
    problem = load_problem(problem_id)
    data = _answer(problem).read_bytes()
    results = {
        c: {"problem": problem_id, "capability": c, "source": digest(problem), "seconds": 0.0,
            "kernels": []}
        for c in capabilities
    }  # fmt: skip
    for dtype in DTYPES:
        chips = [
            c for c in capabilities if dtype == "fp32" or (dtype == "bf16") == (c >= BF16_FROM)
        ]
        for found in compile_calls(
            Source(problem_id, data), problem, calls_of(problem, dtype),
            capabilities=chips, timeout_s=_TIMEOUT_S,
        ):  # fmt: skip
            _check(problem_id, dtype, found)
            result = results[found.capability]
            result["kernels"] += rows_of(found.kernels, dtype)
            result["seconds"] = round(result["seconds"] + found.seconds, 1)
    return list(results.values())


def _check(problem_id: str, dtype: str, found: Compiled) -> None:
    bad = [result for result in found.results if failed(result)]
    if bad and not found.refused:
        raise RuntimeError(
            f"{problem_id} for {found.capability / 10} in {dtype}: {bad[0]}; {found.output[-500:]}"
        )


def _answer(problem: Problem) -> Path:
    return ROOT / "solutions" / problem.id / problem.file


def digest(problem: Problem) -> str:
    """Return a digest of an answer and of all that it may import from `given`."""
    found = hashlib.sha256(_answer(problem).read_bytes())
    for path in sorted(GIVEN.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def rows_of(kernels: Iterable[Compilation], dtype: str) -> list[dict[str, Any]]:
    """Return kernels as rows; of one compiled twice (aligned or not) the one with more spills."""
    rows: dict[tuple, dict[str, Any]] = {}
    for compiled in kernels:
        kernel = compiled.kernel
        constants = dict(part.split("=", 1) for part in kernel.constants.split(" ") if "=" in part)
        head_dim = int(constants["HEAD_DIM"]) if "HEAD_DIM" in constants else None
        sizes = [constants[n] for n in ("BLOCK_M", "BLOCK_N") if n in constants]
        dots = sorted({dot.instruction for dot in kernel.dots})
        row = {
            "kernel": kernel.kernel, "dtype": dtype, "head_dim": head_dim,
            "tile": "x".join(sizes), "num_warps": kernel.num_warps,
            "num_stages": kernel.num_stages, "registers": kernel.registers,
            "stack_bytes": kernel.stack_bytes or 0,
            "spill_bytes": (kernel.spill_store_bytes or 0) + (kernel.spill_load_bytes or 0),
            "shared_bytes": kernel.shared_bytes, "programs": compiled.programs,
            "limit": compiled.limit, "dots": "+".join(dots),
            "refusal": kernel.refusal.text if kernel.refusal else None,
        }  # fmt: skip
        key = tuple(row[n] for n in ("kernel", "head_dim", "tile", "num_warps", "num_stages"))
        if key not in rows or row["stack_bytes"] > rows[key]["stack_bytes"]:
            rows[key] = row
    return list(rows.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 2 for wrong usage, or 4 where no compiler is usable."""
    options = _parser().parse_args(argv)
    try:
        problems = _named("--problems", options.problems, PROBLEMS)
        chips = _named("--chips", options.chips, [chip_name(c) for c in CHIPS])
        path = options.source or options.json
        found = record.load(path) if path and (options.source or path.exists()) else None
        if found is not None and found["kind"] != "chips":
            raise ValueError(f"{path}: got a record of kind {found['kind']}, expected chips")
    except (ValueError, OSError) as error:
        print(f"benchmarks.chips: {error}", file=sys.stderr)
        return 2
    if options.source is None:
        reason = unavailable()
        if reason is not None:
            print(f"benchmarks.chips: nothing can be compiled: {reason}", file=sys.stderr)
            return 4
        found = _compile(problems, [round(10 * float(c)) for c in chips], options.json, found)
    assert found is not None
    if options.summary:
        print(chips_table.summary(found), end="")
    else:
        chips_table.show(
            found, Console(width=140 if not sys.stdout.isatty() else None, highlight=False)
        )
    return 0


def _compile(
    problems: Sequence[str], chips: Sequence[int], path: Path | None, old: dict[str, Any] | None
) -> dict[str, Any]:
    """Compile the answers that are new or changed since the old record, and save after each."""
    found = record.new_record("chips", {"command": "python -m benchmarks.chips --json FILE"})
    known: dict[tuple[str, int], dict[str, Any]] = {}
    if old is not None and old["versions"]["triton"] == found["versions"]["triton"]:
        known = {(r["problem"], r["capability"]): r for r in old["results"]}
    for problem_id in problems:
        source = digest(load_problem(problem_id))
        todo = [c for c in chips if known.get((problem_id, c), {}).get("source") != source]
        for few in (todo[i : i + _AT_A_TIME] for i in range(0, len(todo), _AT_A_TIME)):
            known |= {(problem_id, r["capability"]): r for r in compile_answer(problem_id, few)}
            found["results"] = [known[place] for place in sorted(known)]
            record.save(found, path)
    found["results"] = [known[place] for place in sorted(known)]
    return found


def _named(option: str, text: str | None, known: Sequence[str]) -> list[str]:
    names = [name.strip() for name in text.split(",")] if text is not None else list(known)
    for name in names:
        if name not in known:
            raise ValueError(f"{option}: got {name!r}, expected among {', '.join(known)}")
    return names


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m benchmarks.chips",
        description="Compile the answers for GPUs that need not be there.",
    )
    p.add_argument("--problems", "-p", metavar="p04,p06")
    p.add_argument("--chips", "-c", metavar="7.5,8.0", help="compute capabilities")
    p.add_argument(
        "--json", type=Path, metavar="FILE",
        help="the record; what it holds of unchanged answers is not compiled again",
    )  # fmt: skip
    p.add_argument("--from", dest="source", type=Path, metavar="FILE", help="compile nothing: show")
    p.add_argument("--summary", action="store_true", help="print the table of benchmarks/CHIPS.md")
    return p


if __name__ == "__main__":
    sys.exit(main())
