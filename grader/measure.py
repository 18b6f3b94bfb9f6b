"""Measures speed and memory of complete problems: `python -m grader.measure ... p03 p04`.

A trusted process of the judge's: it holds inputs, clock and oracle. The baseline (reference/naive)
runs through the same door as the submission, in a worker of its own, before and after the
submission's worker lives; if the two disagree the machine was not quiet and nothing is scored.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import reference
from grader.checks import memory, speed
from grader.checks.stopwatch import Bench, CallFailed
from grader.manifest import ROOT, Case, Problem, load_problem
from grader.model import Verdict
from grader.policy import read_source
from grader.protocol import Reply, Status
from grader.sandbox import Ended, Sandbox, failed

_MAX_DRIFT_PERCENT = 10.0
_NOISE_RETRIES = 1
_BASELINE = ROOT / "reference" / "naive.py"


def main() -> None:
    """Measure every problem named on the command line; write one JSON event a problem."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--submission", type=Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--events-fd", type=int, required=True)
    parser.add_argument("problems", nargs="+")
    options = parser.parse_args()

    def emit(event: dict[str, Any]) -> None:
        os.write(options.events_fd, (json.dumps(event) + "\n").encode())

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with _device_lock(options.device):
        bench = Bench(options.device)
        with _worker(_BASELINE.read_bytes(), "naive.py", "attention", options.device) as naive:
            try:
                _ready(bench, naive)
            except (CallFailed, RuntimeError) as error:  # WSL has no CUDA IPC, for one
                why = _describe(error.result) if isinstance(error, CallFailed) else str(error)
                reason = f"not measured: no GPU memory shared between processes ({why[:120]})"
                for problem_id in options.problems:
                    emit({"problem": problem_id, "measured": _both(Verdict.NOT_MEASURED, reason)})
                return
            for problem_id in options.problems:
                problem = load_problem(problem_id)

                def phase(text: str, problem_id: str = problem_id) -> None:
                    emit({"problem": problem_id, "phase": text})

                measured = Measurement(bench, naive, problem, options.submission, phase).run()
                emit({"problem": problem_id, "measured": measured})


class Measurement:
    """Speed and memory of one problem."""

    def __init__(
        self, bench: Bench, naive: Sandbox, problem: Problem, submission: Path, phase: Any
    ) -> None:
        self.bench = bench
        self.naive = naive
        self.problem = problem
        self.submission = submission
        self.phase = phase
        self.entry = reference.BASELINE[problem.id]

    def run(self) -> dict[str, dict[str, Any]]:
        """Return evidence for the components speed and memory."""
        for benchmark in speed.fitting_benchmarks(self.problem, self.bench.device):
            try:
                return self._measure_quietly(benchmark.case)
            except CallFailed as error:  # of the baseline: the submission's are caught elsewhere
                if _verdict(error.result) is not Verdict.OUT_OF_MEMORY:
                    reason = f"the baseline failed: {_describe(error.result)}"
                    return _both(Verdict.INTERNAL, reason)
        reason = "not measured: naive PyTorch does not fit this device's memory"
        return _both(Verdict.NOT_MEASURED, reason)

    def _measure_quietly(self, case: Case) -> dict[str, dict[str, Any]]:
        """Measure, and once more if the machine was not quiet."""
        measured = self._measure(case)
        for _ in range(_NOISE_RETRIES):
            if measured["speed"].get("verdict") != Verdict.INTERNAL.value:
                break
            self.phase("noisy machine, measuring again")
            measured = self._measure(case)
        return measured

    def _measure(self, case: Case) -> dict[str, dict[str, Any]]:
        bench, problem = self.bench, self.problem
        self.phase("naive PyTorch, before")
        self._release()  # what an earlier shape left would count against this one
        pair = memory.lengths(problem, case, bench.device)
        naive_extra = [
            memory.extra_bytes(bench, self.naive, problem, c, self.entry) for c in pair or ()
        ]
        overhead_s = speed.overhead(bench, self.naive, problem, case, 1)
        naive = [self._naive_block(case, overhead_s)]

        self.phase("your answer")
        measured = self._submission(case, pair, overhead_s, naive_extra)
        block = measured.pop("block", None)
        if block is None:
            return measured

        self.phase("naive PyTorch, after")
        naive.append(self._naive_block(case, overhead_s))
        # Every block has the overhead of its own number of sets: copying them is part of it.
        overheads = {1: overhead_s}
        for sets in {block.sets, *(b.sets for b in naive)} - {1}:
            overheads[sets] = speed.overhead(bench, self.naive, problem, case, sets)
        figures = speed.figures(block, naive, overheads)
        figures |= {"shape": str(case), "device": _device_name(bench.device)}
        measured["speed"] = {"figures": figures}
        if not block.margin <= 1.0:
            measured["speed"] |= {
                "verdict": Verdict.FAIL.value,
                "reason": f"a timed output is wrong ({block.margin:.2g} x the allowed error)",
            }
        elif figures["naive_drift_percent"] > _MAX_DRIFT_PERCENT:
            measured["speed"] |= {
                "verdict": Verdict.INTERNAL.value,
                "reason": "noisy machine, run again: naive PyTorch before and after differ by"
                f" {figures['naive_drift_percent']:.0f} %",
            }
        return measured

    def _naive_block(self, case: Case, overhead_s: float) -> speed.Block:
        block = speed.run_block(
            self.bench, self.naive, self.problem, case, overhead_s=overhead_s, entry=self.entry
        )
        self._release()
        return block

    def _release(self) -> None:
        if self.bench.device == "cuda":
            result = self.naive.ask("release", 60.0, forget=True)
            if failed(result):
                raise CallFailed(result)

    def _submission(
        self, case: Case, pair: Any, overhead_s: float, naive_extra: list[int]
    ) -> dict[str, Any]:
        """Run the submission's worker; evidence of memory, and the block of timed goes."""
        problem, bench = self.problem, self.bench
        source = read_source(problem, self.submission)
        measured: dict[str, Any] = {}
        try:
            with _worker(source.data, problem.file, problem.entry, bench.device) as worker:
                _ready(bench, worker)
                if pair:
                    extra = [memory.extra_bytes(bench, worker, problem, c) for c in pair]
                    measured["memory"] = {
                        "figures": memory.figures(problem, pair, extra, naive_extra)
                    }
                measured["block"] = speed.run_block(
                    bench, worker, problem, case, overhead_s=overhead_s
                )
        except CallFailed as error:
            verdict, reason = _verdict(error.result), _describe(error.result)
            fault = _evidence(verdict, f"a timed call failed: {reason}")
            measured.setdefault("memory", fault)
            measured["speed"] = fault
        return measured


def _worker(source: bytes, file: str, entry: str, device: str) -> Sandbox:
    # One thread: with more, a ratio on the CPU follows whatever else the machine is doing.
    return Sandbox(source, file, entry, device=device, interpret=False, threads=1)


def _ready(bench: Bench, worker: Sandbox) -> None:
    result = worker.ready()
    if failed(result) and not (isinstance(result, Reply) and result.status == Status.NO_ENTRY):
        raise CallFailed(result)
    bench.attach(worker)


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "cpu, one thread"


def _verdict(result: Any) -> Verdict:
    if isinstance(result, Ended):
        if not result.started:
            return Verdict.INTERNAL
        return Verdict.TIMEOUT if result.timeout else Verdict.CRASH
    if isinstance(result, Reply):
        if result.status == Status.OUT_OF_MEMORY:
            return Verdict.OUT_OF_MEMORY
        return Verdict.CRASH if result.status == Status.DEVICE_FAULT else Verdict.ERROR
    return Verdict.INTERNAL


def _describe(result: Any) -> str:
    if isinstance(result, Ended):
        if result.timeout:
            return f"no result after {result.waited_s:.0f} s"
        return f"the process died ({result.signal_name or result.exit_code})"
    if isinstance(result, Reply):
        return f"{result.error_type or result.status.name}: {result.text}"[:300]
    return str(result)


def _evidence(verdict: Verdict, reason: str) -> dict[str, Any]:
    return {"verdict": verdict.value, "reason": reason, "figures": {}}


def _both(verdict: Verdict, reason: str) -> dict[str, dict[str, Any]]:
    return {"speed": _evidence(verdict, reason), "memory": _evidence(verdict, reason)}


@contextlib.contextmanager
def _device_lock(device: str) -> Iterator[None]:
    """One measurement at a time on a GPU, whoever runs it; on the CPU one a machine."""
    uuid = torch.cuda.get_device_properties(0).uuid if device == "cuda" else "cpu"
    path = Path(tempfile.gettempdir()) / f"grader-{os.getuid()}-{uuid}.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    main()
