"""From a save to the first verdict and to the end: `python -m tests.watch_times [p04 ...]`.

Each problem's model answer is saved ten times under one watch, each time with another of its
kernels changed, by a barrier that changes no result, so that it is compiled anew. Then a wrong
kernel is saved as often: its mistake shows in most cases, or in few, which leaves the right ones to
speak against a name.
Prints a table in Markdown for each, and what the watch holds and uses while nothing is saved.
With `--json FILE` both are also written there, as docs/records has them.
"""

import argparse
import ast
import datetime
import json
import os
import re
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from grader.isolate import usage
from grader.spec.problem import ROOT, load_problem, problem_ids
from tests.harness import model_answer, whole_answer
from tests.mutants import MUTANTS

SAVES = 10
# By problem, the wrong kernel that is saved: see tests/mutants.
WRONG = {
    "p01": "no rescale",
    "p02": "weights forgotten",
    "p03": "weights not scaled",
    "p04": "no scale",
    "p05": "heads interleaved",
    "p06": "own key hidden",
    "p07": "sinks ignored",
    "p08": "dk not scaled",
    "p09": "delta left out",
}
_RESULT = re.compile(
    r"^p\d\d [a-z ]+: points .*?; ([\d.]+) s, first verdict after ([\d.]+) s", re.M
)
_IDLE_S = 5.0
_NOTE = (
    f"the model answer saved {SAVES} times under one watch, with a barrier more in one kernel after"
    " the other, and a wrong kernel of tests/mutants as often; medians in seconds, the slowest of"
    " all; CPU time of all cores; idle memory in MiB"
)


class _Watch:
    def __init__(self, problem_id: str, folder: Path) -> None:
        self.path = folder / problem_id / load_problem(problem_id).file
        self.path.parent.mkdir()
        self.path.write_text(model_answer(problem_id))
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "grader", "watch", "--device", "cpu"),
                *("--submission", str(folder), "--only", problem_id),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def result(self) -> tuple[float, float]:
        """Return when the next result is there, and how long before that its first verdict was."""
        text = ""
        while True:
            select.select([self.process.stdout], [], [])
            text += os.read(self.process.stdout.fileno(), 65536).decode()
            if found := _RESULT.search(text):
                return time.monotonic(), float(found[1]) - float(found[2])

    def saved(self, text: str) -> tuple[float, float, float]:
        """Save; return the seconds to the first verdict and to the end, and those of all cores."""
        time.sleep(0.5)
        partial = self.path.with_suffix(".new")
        partial.write_text(text)
        with usage.CpuTime(usage.Tree(self.process.pid, lambda: {self.process.pid})) as spent:
            began = time.monotonic()
            os.replace(partial, self.path)
            end, before = self.result()
            time.sleep(0.5)  # what the workers used counts when they have ended
        return end - began - before, end - began, spent.seconds

    def idle(self) -> tuple[float, float]:
        """Return MiB of memory, shared pages divided, and percent of a core while nothing runs."""
        time.sleep(1.0)
        pids = [self.process.pid, *usage.descendants(self.process.pid)]
        with usage.CpuTime(usage.Tree(pids[0], lambda: {pids[0]})) as spent:
            time.sleep(_IDLE_S)
        memory = sum(map(usage.proportional_bytes, pids)) / 2**20
        return memory, 100 * spent.seconds / _IDLE_S


def wrong_answer(problem_id: str) -> str:
    """Return the source of a wrong kernel."""
    name = WRONG[problem_id]
    mutant = next(m for m in MUTANTS if (m.problem, m.name) == (problem_id, name))
    return mutant.applied_to(whole_answer(problem_id))


def edited(source: str, n: int, ours: str) -> str:
    """Return a source whose `n`-th kernel, or helper of one, has a barrier more in its first line.

    What was compiled of that kernel, and of those that call it, does not serve any more: each `n`
    makes other code. Only what `ours`, the file that a student has, defines is edited. A file
    without kernels has a comment more.
    """
    names = {node.name for node in ast.parse(ours).body if isinstance(node, ast.FunctionDef)}
    kernels = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name in names
        if any("triton.jit" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]
    if not kernels:
        return f"{source}# {n}\n"
    body = kernels[n % len(kernels)].body
    first = body[1] if isinstance(body[0], ast.Expr) and len(body) > 1 else body[0]
    lines = source.splitlines()
    indent = " " * first.col_offset
    lines[first.lineno - 1 : first.lineno - 1] = [
        f"{indent}tl.debug_barrier()" for _ in range(1 + n // len(kernels))
    ]
    return "\n".join(lines) + "\n"


def measure(problem_id: str, source: str) -> dict[str, float]:
    """Return the figures of one file under one watch, as the record has them."""
    with tempfile.TemporaryDirectory() as folder:
        watch = _Watch(problem_id, Path(folder))
        try:
            watch.result()
            ours = model_answer(problem_id)
            times = [watch.saved(edited(source, n, ours)) for n in range(SAVES)]
            mib, percent = watch.idle()
        finally:
            watch.process.terminate()
            watch.process.wait(20)
    first, end, cpu = (statistics.median(column) for column in zip(*times, strict=True))
    return {
        "first_verdict_s": round(first, 1),
        "end_s": round(end, 1),
        "slowest_s": round(max(time_s for _, time_s, _ in times), 1),
        "cpu_s": round(cpu, 1),
        "idle_mib": round(mib),
        "idle_percent": round(percent, 1),
    }


def _table(what: str, problems: list[str], source: Callable[[str], str]) -> dict[str, dict]:
    print(f"\n| {what} | first verdict | end | slowest | CPU | idle memory | idle CPU |")
    print("|---|---|---|---|---|---|---|")
    found = {}
    for id in problems:
        found[id] = measure(id, source(id))
        *seconds, mib, percent = found[id].values()
        cells = " | ".join(f"{s:.1f} s" for s in seconds) + f" | {mib} MiB | {percent:.1f} %"
        print(f"| {id} | {cells} |", flush=True)
    return found


def main(argv: list[str] | None = None) -> None:
    """Print the tables, and write the record where one is wanted."""
    parser = argparse.ArgumentParser(prog="python -m tests.watch_times", description=__doc__)
    parser.add_argument("problems", nargs="*", default=problem_ids(), metavar="p04")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--hardware", default="", help="what it ran on, for the record")
    options = parser.parse_args(argv)
    right = _table("right answer", options.problems, model_answer)
    wrong = _table("wrong answer", options.problems, wrong_answer)
    if options.json is not None:
        record = {
            "schema_version": 1,
            "kind": "watch",
            "date": datetime.date.today().isoformat(),
            "command": "python -m tests.watch_times",
            "hardware": options.hardware,
            "versions": {
                name: metadata.version(name).partition("+")[0] for name in ("torch", "triton")
            },
            "note": _NOTE,
            "problems": right,
            "wrong": {id: {"kernel": WRONG[id]} | figures for id, figures in wrong.items()},
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
