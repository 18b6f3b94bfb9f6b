"""What happens around measured calls: blocks, busy machines, too little memory, faults."""

import contextlib

import pytest
import torch

from grader.isolate import capacity
from grader.isolate.device_memory import DeviceMemoryFault
from grader.judge import measure, measurement
from grader.spec.findings import Evidence, Measured, MeasureRequest, SourceFile
from grader.spec.grade_record import Verdict
from grader.spec.problem import load_problem
from grader.spec.protocol import Ended, Reply, Status
from grader.timing import device_lock, speed
from grader.timing.speed import Block
from grader.timing.stopwatch import Bench, CallFailed, CallOutputs, Timed
from tests.test_held import measuring
from tests.test_measure import measured

FAILURES = [
    (Ended(timeout=True, waited_s=120.0), "timeout", "no result after 120 s"),
    (Ended(signal_name="SIGSEGV"), "crash", "died with SIGSEGV"),
    (Ended(signal_name="SIGKILL"), "crash", "died with SIGKILL"),
    (Ended(exit_code=1, started=False), "internal", "the judge's worker did not start"),
    (Reply(1, Status.OUT_OF_MEMORY, error_type="MemoryError"), "out-of-memory", "MemoryError"),
    (Reply(1, Status.EXCEPTION, error_type="KeyError", text="3"), "error", "KeyError: 3"),
    (Reply(1, Status.NOT_IMPLEMENTED, text="p01 step 2"), "not-implemented", "p01 step 2"),
    (Reply(1, Status.BAD_RETURN, text="out: got None"), "error", "out: got None"),
    (Reply(1, Status.DEVICE_FAULT, text="CUDA error"), "crash", "CUDA error"),
    (Reply(1, Status.EXCEPTION, text="x" * 9000), "error", "x"),
]


@pytest.mark.parametrize(("result", "verdict", "told"), FAILURES)
def test_a_failed_call_has_the_verdict_that_it_has_in_the_tests(result, verdict, told):
    evidence = measurement._failure(CallFailed(result))
    assert evidence.verdict == verdict
    assert told in evidence.reason and len(evidence.reason) <= 300


@pytest.fixture
def timed_blocks(monkeypatch):
    """A measurement of p01 whose blocks take what `milliseconds` says, one after the other."""
    events = []
    run = measuring(emit=events.append)
    monkeypatch.setattr(run, "_submission", contextlib.nullcontext)
    monkeypatch.setattr(run, "_attach", lambda worker: worker)
    monkeypatch.setattr(speed, "overhead", lambda *_: 0.0)
    evidence = Evidence(verdict=Verdict.NOT_MEASURED, reason="elsewhere")
    monkeypatch.setattr(run, "_measure_memory", lambda: evidence)

    def start(milliseconds):
        values = iter(milliseconds)

        def run_block(bench, timed, problem, case, *, overhead_s, margin_of, like):
            value = next(values)
            if isinstance(value, Exception):
                raise value
            return Block((value / 1000,) * 3, 1, 0.5)

        monkeypatch.setattr(speed, "run_block", run_block)
        found = run.run().speed
        assert next(values, None) is None, "blocks were left out"
        return found, [event.text for event in events]

    return start


QUIET = [4.0, 1.0, 4.0, 1.0, 4.0, 1.0, 4.0]  # a baseline, ours, a baseline, ...
BUSY = [4.0, 1.0, 6.0, 1.0, 4.0, 1.0, 6.0]


def test_every_block_of_ours_stands_between_two_of_the_baseline(timed_blocks):
    found, phases = timed_blocks(QUIET)
    assert found.figures.speedup == pytest.approx(4.0)
    naive, ours = "speed of naive PyTorch", "speed of your answer"
    assert [phase for phase in phases if "speed" in phase] == [naive, ours] * 3 + [naive]


def test_a_busy_machine_is_tried_three_times_and_then_not_measured(timed_blocks):
    found, phases = timed_blocks(BUSY * 3)
    assert found.verdict is Verdict.NOT_MEASURED
    told = "not measured: the machine is busy (two baselines 50 % apart); make grade P=p01 again"
    assert found.reason == told
    assert phases.count("busy machine, measuring again") == 2


def test_a_machine_that_becomes_quiet_is_measured(timed_blocks):
    found, phases = timed_blocks(BUSY + QUIET)
    assert found.figures.speedup == pytest.approx(4.0)
    assert phases.count("busy machine, measuring again") == 1


def test_a_baseline_that_fails_is_a_fault_of_the_judge(timed_blocks):
    found, _ = timed_blocks([CallFailed(Ended(signal_name="SIGKILL"))])
    assert found.verdict is Verdict.INTERNAL
    assert found.reason.startswith("the baseline failed: the process died with SIGKILL")


def test_a_baseline_that_needs_too_much_memory_gives_way_to_a_smaller_shape(timed_blocks):
    too_large = CallFailed(Reply(1, Status.OUT_OF_MEMORY))
    found, _ = timed_blocks([too_large, *QUIET])
    shapes = [str(case) for case in load_problem("p01").benchmarks_on("cpu")]
    assert found.figures.shape == shapes[1]
    found, _ = timed_blocks([too_large] * len(shapes))
    assert found.verdict is Verdict.NOT_MEASURED
    assert found.reason == "not measured: naive PyTorch does not fit this device's free memory"


def test_what_a_small_container_cannot_hold_is_not_measured(timed_blocks, monkeypatch):
    problem = load_problem("p01")
    large, small = problem.benchmarks_on("cpu")
    for free, expected in (
        (speed.host_bytes(large, workers=1), str(large)),
        (speed.host_bytes(large, workers=1) - 1, str(small)),
        (speed.host_bytes(small, workers=1) - 1, None),
    ):
        monkeypatch.setattr(capacity, "free_bytes", lambda free=free: free)
        found, _ = timed_blocks(QUIET if expected else [])
        if expected:
            assert found.figures.shape == expected
        else:
            assert (found.verdict, found.reason) == (Verdict.NOT_MEASURED, measurement.NO_ROOM)


def test_memory_is_not_measured_where_two_workers_do_not_fit(monkeypatch):
    run = measuring()
    monkeypatch.setattr(run, "_naive_memory", list)
    monkeypatch.setattr(run, "_submission", lambda fresh: contextlib.nullcontext())
    monkeypatch.setattr(run, "_attach", lambda worker: worker)
    monkeypatch.setattr(run, "_memory_of", lambda workers, naive_extra: "measured")
    cases = load_problem("p01").memory_cases("cpu")
    needed = max(speed.host_bytes(case, workers=2) for case in cases)
    monkeypatch.setattr(capacity, "free_bytes", lambda: needed)
    assert run._measure_memory() == "measured"
    monkeypatch.setattr(capacity, "free_bytes", lambda: needed - 1)
    found = run._measure_memory()
    assert (found.verdict, found.reason) == (Verdict.NOT_MEASURED, measurement.NO_ROOM)


@pytest.fixture
def no_worker(monkeypatch):
    monkeypatch.setattr(measurement, "_worker", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(Bench, "attach", lambda *_, **__: Timed(None, "x"))


def test_host_memory_is_measured_in_workers_that_are_not_forked(monkeypatch):
    asked = []

    def start(*file, device, fresh, **_):
        asked.append(fresh)
        return contextlib.nullcontext()

    run = measuring()
    monkeypatch.setattr(measurement, "Sandbox", start)
    monkeypatch.setattr(run, "_attach", lambda worker: worker)
    monkeypatch.setattr(run, "_naive_memory", list)
    monkeypatch.setattr(run, "_memory_of", lambda workers, naive_extra: len(workers))
    assert run._measure_memory() == 2 and asked == [True, True]


def test_without_shared_gpu_memory_nothing_is_measured_and_nothing_lost(no_worker, monkeypatch):
    def refuse(device):
        raise DeviceMemoryFault("cuMemCreate: CUDA_ERROR_NOT_SUPPORTED")

    monkeypatch.setattr(measure, "Bench", refuse)
    _, evidence = measured(SourceFile.of("p03", b""), SourceFile.of("p04", b""))
    assert [event.problem for event in evidence] == ["p03", "p04"]
    for found in (found for event in evidence for found in (event.speed, event.memory)):
        assert found.verdict is Verdict.NOT_MEASURED
        assert "(cuMemCreate: CUDA_ERROR_NOT_SUPPORTED)" in found.reason


def test_a_problem_without_a_shape_for_the_device_is_not_measured(no_worker):
    _, (evidence,) = measured(SourceFile.of("p03", b""))  # its shapes are all for CUDA
    assert evidence.speed.verdict is Verdict.NOT_MEASURED
    assert evidence.memory.verdict is Verdict.NOT_MEASURED


def test_a_fault_of_the_judge_stays_with_its_problem(no_worker, monkeypatch):
    right = Evidence(verdict=Verdict.NOT_MEASURED, reason="elsewhere")

    def run(self):
        if self.problem.id == "p03":
            raise OSError("x" * 900)
        return Measured(problem=self.problem.id, speed=right, memory=right)

    monkeypatch.setattr(measurement.Measurement, "run", run)
    _, evidence = measured(SourceFile.of("p03", b""), SourceFile.of("p04", b""))
    assert evidence[0].speed.verdict is evidence[0].memory.verdict is Verdict.INTERNAL
    assert evidence[0].speed.reason.startswith("the judge failed: OSError: xxx")
    assert evidence[1].speed == right


@pytest.mark.parametrize(
    ("device", "official", "blocks"),
    [("cpu", False, 3), ("cpu", True, 3), ("cuda", False, 1), ("cuda", True, 3)],
)
def test_where_points_count_a_gpu_has_as_many_blocks_as_a_cpu(device, official, blocks):
    assert speed.student_blocks(device, official=official) == blocks


class Recorded:
    """A bench that notes what it is asked for; each call makes one number, how many were before."""

    def __init__(self, device="cpu", capacity=2**30):
        self.device, self.capacity, self.asked, self.calls = device, capacity, [], 0

    def layout(self, problem, case):
        return Recorded.Size()

    class Size:
        total_bytes = 2**20

    def go(self, *_, sets=1, null=False, watched=False, compare=False):
        self.asked.append("empty go" if null else "go")
        made = (
            []
            if null
            else [CallOutputs(0, {"y": torch.tensor([n])}, torch.tensor([0])) for n in range(sets)]
        )
        self.calls += len(made)
        return 0.02, made

    def block(self, margin_of=None, like=None):
        """A block of p01, timed on this bench."""
        problem, timed = load_problem("p01"), Timed(None, "x")
        how = {"overhead_s": 0.0, "margin_of": margin_of, "like": like}
        return speed.run_block(self, timed, problem, problem.benchmarks_on("cpu")[0], **how)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_on_a_gpu_an_empty_go_comes_before_each(device):
    bench = Recorded(device)
    real = len(bench.block().seconds) + 2
    assert bench.asked == (["empty go", "go"] * real if device == "cuda" else ["go"] * real)


def test_how_many_calls_make_a_go_is_said_by_the_fastest_of_five(monkeypatch):
    bench, asked = Recorded(capacity=2**30), []
    seconds = iter([0.5, 0.0026, 0.0012, 0.0019, 0.001, 0.0013])

    def go(*_, sets=1, null=False, watched=False, compare=False):
        asked.append(sets)
        return next(seconds, 0.001 * sets), []

    monkeypatch.setattr(bench, "go", go)
    block = bench.block()
    assert (block.sets, set(block.seconds)) == (10, {0.01})
    assert asked == [1] * 6 + [10] * (1 + len(block.seconds))  # the first of ten is not counted


@pytest.mark.parametrize("capacity", [2**30, 3 * 8, 0])
def test_outputs_are_verified_when_no_go_follows_or_they_take_too_much_memory(capacity):
    bench, verified = Recorded(capacity=capacity), []

    def margin_of(go):
        bench.asked.append("verified")
        verified.append(go)
        return 0.7 if len(verified) == 2 else 0.5

    assert bench.block(margin_of).margin == 0.7
    assert len({id(call) for go in verified for call in go}) == bench.calls
    fitting = min(bench.calls, capacity // verified[0][0].num_bytes + 1)
    assert bench.asked[: 2 * fitting] == ["go"] * fitting + ["verified"] * fitting


def test_nothing_is_verified_after_an_output_that_was_wrong():
    """To refuse an answer that returned at once what it had kept took minutes."""
    verified = []

    def margin_of(go):
        verified.append(go)
        return 7.0 if len(verified) == 2 else 0.5

    assert Recorded(capacity=2**30).block(margin_of).margin == 7.0
    assert len(verified) == 2


@pytest.mark.parametrize(("margin", "blocks"), [(0.5, 3), (7.0, 1), (float("nan"), 1)])
def test_no_block_follows_one_with_a_wrong_output(monkeypatch, margin, blocks):
    run, made = measuring(), []
    monkeypatch.setattr(run, "_submission", contextlib.nullcontext)
    monkeypatch.setattr(run, "_attach", lambda worker: worker)
    monkeypatch.setattr(speed, "overhead", lambda *_: 0.0)

    def run_block(*_, margin_of, **__):
        made.append(margin_of is not None)
        return Block((0.004,) * 3, 1, margin if margin_of else 0.0)

    monkeypatch.setattr(speed, "run_block", run_block)
    found = run._speed()
    assert sum(made) == blocks and len(made) == 2 * blocks + 1
    assert (found.verdict is Verdict.FAIL) == (blocks == 1)


def test_a_block_like_an_earlier_one_has_as_many_goes_of_as_many_calls(monkeypatch):
    bench, asked = Recorded(), []

    def go(*_, sets=1, null=False, watched=False, compare=False):
        asked.append(sets)
        return 0.001 * sets, []

    monkeypatch.setattr(bench, "go", go)
    first = bench.block()
    asked.clear()
    assert bench.block(like=first) == first
    assert asked == [1, first.sets, *[first.sets] * len(first.seconds)]  # two are not counted


def test_nobody_else_has_the_device_while_it_is_measured(monkeypatch):
    seen = []

    def look(request, emit, ahead):
        with device_lock.held("uuid-of-a-test", alone=False, wait_s=0.0) as had:
            seen.append(had)

    monkeypatch.setattr(measure, "_measure_all", look)
    request = MeasureRequest(sources=(), device="cuda", device_uuid="uuid-of-a-test")
    measure.measure(request, lambda event: None)
    look(None, None, None)
    assert seen == [False, True]
