"""From a save to the first verdict and to the end: `python -m tests.watch_times [p04 ...]`.

Each problem's model answer is saved ten times under one watch: nothing takes longer.
Prints a table in Markdown, and what the watch holds and uses while nothing is saved.
"""

from __future__ import annotations

import os
import re
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from grader.manifest import ROOT, load_problem, problem_ids
from grader.running import usage
from tests.harness import model_answer

SAVES = 10
_RESULT = re.compile(
    r"^p\d\d [a-z ]+: points .*?; ([\d.]+) s, first verdict after ([\d.]+) s", re.M
)
_IDLE_S = 5.0


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

    def saved(self, text: str) -> tuple[float, float]:
        """Save; return the seconds to the first verdict and to the end."""
        time.sleep(0.5)
        partial = self.path.with_suffix(".new")
        partial.write_text(text)
        began = time.monotonic()
        os.replace(partial, self.path)
        end, before = self.result()
        return end - began - before, end - began

    def idle(self) -> tuple[float, float]:
        """Return MiB of memory, shared pages divided, and percent of a core while nothing runs."""
        time.sleep(1.0)
        pids = [self.process.pid, *usage.descendants(self.process.pid)]
        spent = usage.Tree(pids[0]).cpu_seconds()
        time.sleep(_IDLE_S)
        used = usage.Tree(pids[0]).cpu_seconds() - spent
        return sum(map(usage.proportional_bytes, pids)) / 2**20, 100 * used / _IDLE_S


def main(wanted: list[str]) -> None:
    """Print the table."""
    print("| | first verdict | end | slowest | idle memory | idle CPU |\n|---|---|---|---|---|---|")
    for problem_id in wanted or problem_ids():
        with tempfile.TemporaryDirectory() as folder:
            watch = _Watch(problem_id, Path(folder))
            try:
                watch.result()
                source = model_answer(problem_id)
                times = [watch.saved(f"{source}# {n}\n") for n in range(SAVES)]
                mib, percent = watch.idle()
            finally:
                watch.process.terminate()
                watch.process.wait(20)
        first, end = (statistics.median(column) for column in zip(*times, strict=True))
        slowest = max(time_s for _, time_s in times)
        cells = f"{first:.1f} s | {end:.1f} s | {slowest:.1f} s | {mib:.0f} MiB | {percent:.1f} %"
        print(f"| {problem_id} | {cells} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
