"""grader/measure.py: what becomes of speed and memory when the machine or the answer fails."""

import json
import os
import sys

from grader import measure
from grader.checks import speed
from grader.checks.stopwatch import CallFailed
from grader.manifest import ROOT
from grader.protocol import Reply, Status
from grader.sandbox import Ended


def measured(monkeypatch, *problems):
    read, write = os.pipe()
    arguments = [f"--submission={ROOT / 'solutions'}", "--device=cpu", "--seed=1"]
    monkeypatch.setattr(sys, "argv", ["measure", *arguments, f"--events-fd={write}", *problems])
    measure.main()
    os.close(write)
    with os.fdopen(read) as stream:
        return [json.loads(line) for line in stream]


def test_without_shared_gpu_memory_nothing_is_measured_and_nothing_lost(monkeypatch):
    def refuse(*_):
        raise RuntimeError("CUDA error: operation not supported")

    monkeypatch.setattr(measure, "_ready", refuse)
    events = measured(monkeypatch, "p03", "p04")
    assert [event["problem"] for event in events] == ["p03", "p04"]
    for event in events:
        for name in ("speed", "memory"):
            assert event["measured"][name]["verdict"] == "not-measured"
            assert "operation not supported" in event["measured"][name]["reason"]


def test_a_problem_without_a_shape_for_the_device_is_not_measured(monkeypatch):
    (event,) = measured(monkeypatch, "p03")  # its shapes are all for CUDA
    assert event["measured"]["speed"]["verdict"] == "not-measured"


def test_failed_calls_are_told_apart():
    assert measure._verdict(Ended(timeout=True)) == "timeout"
    assert measure._verdict(Ended(signal_name="SIGSEGV")) == "crash"
    assert measure._verdict(Ended(exit_code=1, started=False)) == "internal"
    assert measure._verdict(Reply(1, Status.OUT_OF_MEMORY)) == "out-of-memory"
    assert measure._verdict(Reply(1, Status.EXCEPTION)) == "error"
    assert measure._verdict(CallFailed("peak memory cannot be read").result) == "internal"


def test_each_block_has_the_overhead_of_its_own_sets():
    # 1 ms a go and 0.5 ms a set are overhead; a naive call takes 2 ms, ours 1 ms.
    overheads = {n: 0.001 + 0.0005 * n for n in (1, 5, 10)}
    ours = speed.Block((overheads[10] + 10 * 0.001,) * 5, 10, 0.1)
    naive = [speed.Block((overheads[n] + n * 0.002,) * 5, n, 0.0) for n in (1, 5)]
    found = speed.figures(ours, naive, overheads)
    assert abs(found["speedup"] - 2.0) < 1e-9
    assert found["naive_drift_percent"] < 1e-6
