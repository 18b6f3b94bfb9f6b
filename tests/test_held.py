"""Workers started before anything is timed: when they are, and what they have done by then."""

import contextlib
import functools
import time

import pytest

from grader.isolate import capacity, jail
from grader.isolate.compiled import call_of
from grader.isolate.sandbox import Sandbox
from grader.judge import measure, measurement
from grader.spec.findings import MeasureRequest, SourceFile
from grader.spec.problem import load_problem
from grader.spec.protocol import Status
from grader.timing import device_lock, speed
from grader.timing.speed import Block
from grader.timing.stopwatch import Bench, Timed
from grader.timing.workers_ahead import WorkersAhead
from tests import needs

REQUEST = MeasureRequest(sources=(SourceFile.of("p01", b""),), device="cpu")


def measuring(request=REQUEST, emit=lambda event: None):
    """A measurement of the only file of a request, whose baseline is nobody."""
    bench, baseline = Bench("cpu"), Timed(None, "x")
    bench.device = request.device
    (file,) = request.sources
    return measurement.Measurement(bench, baseline, file, emit, request, WorkersAhead())


class Held:
    """A worker that waits for its turn; `did` is what has happened to it and to others."""

    def __init__(self, number, did):
        self._number, self._did = number, did

    def wait_for_imports(self):
        self._did.append(f"{self._number} has imported")

    def warm_up(self):
        self._did.append(f"{self._number} warms up")

    def wait_for_start(self):
        self._did.append(f"{self._number} is warm")

    def __enter__(self):
        self._did.append(f"turn of {self._number}")
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._did.append(f"{self._number} is closed")


def test_held_workers_have_imported_before_anything_is_timed(monkeypatch):
    did, run = [], measuring()
    monkeypatch.setattr(run, "_held", lambda: [Held(number, did) for number in range(4)])
    monkeypatch.setattr(run, "_attach", lambda worker: worker)
    monkeypatch.setattr(speed, "overhead", lambda *_: did.append("timed") or 0.0)
    monkeypatch.setattr(speed, "run_block", lambda *_, **__: Block((0.1,) * 3, 1, 0.5))
    assert run._blocks == 3
    run._measure_speed(load_problem("p01").benchmarks_on("cpu")[0])
    steps = ("has imported", "warms up", "is warm")
    assert did[:13] == [*(f"{n} {step}" for step in steps for n in range(4)), "timed"]
    turns = [line for number in range(3) for line in (f"turn of {number}", f"{number} is closed")]
    assert did[13:] == [*turns, "3 is closed"]


def test_what_a_held_worker_allocates_at_import_counts(monkeypatch):
    did, run = [], measuring(REQUEST.model_copy(update={"device": "cuda"}))
    monkeypatch.setattr(run, "_naive_memory", list)
    monkeypatch.setattr(run, "_naive_block", lambda *_, **__: None)
    monkeypatch.setattr(speed, "overhead", lambda *_: 0.0)
    monkeypatch.setattr(run, "_bytes_before", lambda: did.append("bytes") or 7)
    monkeypatch.setattr(run, "_attach", lambda worker: did.append("import"))

    def memory_of(workers, naive_extra, before):
        raise KeyError(before)

    monkeypatch.setattr(run, "_memory_of", memory_of)
    with pytest.raises(KeyError, match="7"):
        run._measure_in([Held(0, did)], load_problem("p04").benchmarks_on("cuda")[0])
    assert did.index("bytes") < did.index("import")


def test_workers_are_held_in_a_jail_on_a_gpu_alone(monkeypatch):
    asked = []
    monkeypatch.setattr(measurement, "_worker", lambda *_, **settings: asked.append(settings))
    for device, jailed, official, blocks in (
        ("cuda", True, True, 3),
        ("cuda", True, False, 1),
        ("cuda", False, True, 0),
        ("cpu", True, True, 0),
    ):
        update = {"device": device, "jailed": jailed, "official": official}
        run = measuring(REQUEST.model_copy(update=update))
        assert len(run._held()) == blocks
    assert len(asked) == 4 and all(settings["held"] for settings in asked)


def test_a_held_worker_imports_its_file_when_its_turn_has_come(tmp_path, monkeypatch):
    needs.a_jail()
    (tmp_path / "kernels").mkdir()
    monkeypatch.setattr(jail, "_kernels", tmp_path / "kernels")
    source = b"print('imported', flush=True)\ndef entry():\n    pass\n"
    file = (source, "held.py", "entry")
    with Sandbox(*file, device="cpu", held=True) as worker:
        worker.wait_for_imports()
        worker.warm_up()
        assert worker.wait_for_start().status == Status.OK
        time.sleep(0.2)
        worker._read_output()
        assert not worker.output()
        assert worker.ready().status == Status.OK
        assert "imported" in worker.output()


FILES = tuple(SourceFile.of(problem, b"") for problem in ("p03", "p04"))
OFFICIAL = MeasureRequest(
    sources=FILES, device="cuda", device_uuid="held", jailed=True, official=True
)


def test_what_is_timed_is_compiled_before_the_gpu_is_waited_for(monkeypatch):
    asked, waited = {}, []

    class Compilers:
        def __init__(self, problem, source, calls, workers, capability):
            assert (workers, capability) == (1, 90)
            asked[problem.id] = calls

        def wait(self, seconds):
            waited.append(seconds)

    monkeypatch.setattr(measure, "Compilers", Compilers)
    sources = tuple(SourceFile.of(problem, b"") for problem in ("p01", "p02", "p06"))
    request = OFFICIAL.model_copy(update={"sources": sources, "capability": 90})
    for update in ({"capability": None}, {"jailed": False}, {"device": "cpu"}, {"capability": 61}):
        measure._compile_ahead(request.model_copy(update=update))
    assert not asked
    measure._compile_ahead(request)
    assert asked.keys() == {"p02", "p06"} and len(waited) == 2  # p01 has no kernels
    problem = load_problem("p06")
    timed = next(case for case in problem.benchmarks_on("cuda") if case.seqlen_q == 8192)
    cases = [timed, *problem.memory_cases("cuda")]  # naive at 16384 takes more than 80 GiB
    assert asked["p06"] == [call_of(problem, case, problem.outputs) for case in cases]


@pytest.fixture
def did(monkeypatch):
    """What happens to the workers that a measurement starts, and to its device."""
    did, numbers = [], iter(range(100))

    def start(source, file, *_, **settings):
        assert settings["held"]
        did.append(f"{file} is started")
        return Held(next(numbers), did)

    @contextlib.contextmanager
    def held(device, *, alone):
        did.append(f"{device} is had{' alone' * alone}")
        yield True
        did.append(f"{device} is given back")

    monkeypatch.setattr(measurement, "_worker", start)
    monkeypatch.setattr(device_lock, "held", held)
    monkeypatch.setattr(capacity, "cores", lambda: 16.0)
    monkeypatch.setattr(capacity, "free_bytes", lambda: 2**36)
    return did


def test_workers_of_all_files_have_imported_before_the_gpu_is_waited_for(did, monkeypatch):
    def take_some(request, emit, ahead):
        assert len(ahead.take("p04")) == 3 and ahead.take("p04") == []
        ahead.baseline().close()
        assert ahead.baseline() is None

    monkeypatch.setattr(measure, "_measure_all", take_some)
    measure.measure(OFFICIAL, lambda event: None)
    names = [load_problem(file.problem).file for file in FILES]
    assert did[:7] == [
        f"{name} is started" for name in ["naive.py", *names[:1] * 3, *names[1:] * 3]
    ]
    assert sorted(did[7:14]) == [f"{number} has imported" for number in range(7)]
    # What nobody took is ended too, after all measurements.
    closed = [f"{number} is closed" for number in (0, 1, 2, 3)]
    assert did[14:] == ["held is had alone", closed[0], "held is given back", *closed[1:]]


def test_a_problem_whose_workers_were_taken_starts_its_own(did):
    starts = {"p04": [functools.partial(measurement._worker, b"", "early.py", held=True)] * 3}
    with WorkersAhead(of_problems=starts) as ahead:
        run = measuring(OFFICIAL.model_copy(update={"sources": FILES[1:]}))
        run._ahead = ahead
        assert [len(run._held()), len(run._held())] == [3, 3]
    file = load_problem("p04").file
    assert did == [
        *["early.py is started"] * 3,
        *(f"{number} has imported" for number in range(3)),
        *[f"{file} is started"] * 3,
    ]


@pytest.mark.parametrize(
    ("cores", "free", "problems"),
    [(16.0, 2**36, 9), (2.0, 2**36, 6), (0.5, 2**36, 1), (16.0, 4 * 2**30, 1), (16.0, 0, 1)],
)
def test_later_problems_wait_where_cores_or_memory_are_few(did, monkeypatch, cores, free, problems):
    monkeypatch.setattr(capacity, "cores", lambda: cores)
    monkeypatch.setattr(capacity, "free_bytes", lambda: free)
    start = functools.partial(measurement._worker, b"", "x.py", held=True)
    with WorkersAhead(of_problems={str(n): [start] * 3 for n in range(9)}):
        assert did.count("x.py is started") == 3 * problems


def test_workers_that_need_not_be_waited_for_are_not_started_ahead(did):
    for update in ({"device": "cpu"}, {"jailed": False}, {"sources": ()}):
        request = OFFICIAL.model_copy(update=update)
        assert measure._workers_ahead(request, lambda event: None).take("p03") == []
    assert did == []
