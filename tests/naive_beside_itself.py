"""`python -m tests.naive_beside_itself`: times naive PyTorch as a submission, beside itself.

What comes out is how far from 1 the clock puts equal speeds, and what a go costs that computes
nothing. It runs in the jail, as official gradings do, and takes some 20 s a problem on a GPU.
"""

import argparse
import json
import secrets
import sys
import time
from pathlib import Path

from grader.isolate import forks, sandbox
from grader.judge import measure, measurement
from grader.spec.environment import probe
from grader.spec.findings import Measured, MeasureRequest, SourceFile
from grader.spec.problem import load_problem, problem_ids
from grader.timing import speed


def main() -> int:
    """Measure, and print a line per problem."""
    parser = argparse.ArgumentParser(prog="python -m tests.naive_beside_itself")
    parser.add_argument("--only", default=",".join(problem_ids()), metavar="p02,p04")
    parser.add_argument("--runs", type=int, default=1, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    machine = probe("auto")
    sandbox.prepare(jailed=True, gpu=machine.device_uuid)
    rows: list[dict] = []
    try:
        for _ in range(options.runs):
            rows += measured(options.only.split(","), machine)
            if options.json:
                told = {"machine": machine.model_dump(mode="json"), "measurements": rows}
                options.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    finally:
        forks.close_server()
    return 0


def measured(problems: list[str], machine) -> list[dict]:
    """Return speed-up, times and overhead of each problem."""
    request = MeasureRequest(
        sources=tuple(SourceFile.of(id, naive(id)) for id in problems),
        device=machine.device,
        device_uuid=machine.device_uuid,
        jailed=True,
        official=True,
        policy=False,
        token=secrets.token_hex(),
    )
    rows, began = [], time.monotonic()
    overheads: dict[int, list[float]] = {}
    ask = speed.overhead

    def noted(*arguments) -> float:
        found = ask(*arguments)
        overheads.setdefault(arguments[-1], []).append(round(1e6 * found))
        return found

    measurement.speed.overhead = noted

    def take(event) -> None:
        if not isinstance(event, Measured):
            return
        figures = event.speed.figures
        row = {"problem": event.problem}
        if figures is None:
            row["reason"] = event.speed.reason
        else:
            for name in ("speedup", "median_ms", "naive_ms", "spread_percent"):
                row[name] = getattr(figures, name, None)
        row["overhead_us"] = dict(overheads)
        overheads.clear()
        row["seconds"] = round(time.monotonic() - began, 1)
        print(json.dumps(row), flush=True)
        rows.append(row)

    try:
        measure.measure(request, take)
    finally:
        measurement.speed.overhead = ask
    return rows


def naive(problem_id: str) -> bytes:
    """Return naive PyTorch as a submission of a problem."""
    problem = load_problem(problem_id)
    text = measurement.BASELINE.read_text(encoding="utf-8")
    return f"{text}\n\n{problem.entry} = {problem.oracle}\n".encode()


if __name__ == "__main__":
    sys.exit(main())
