"""Workers started before anything is timed: when they are, and what they have done by then."""

import time

from grader import measure
from grader.findings import MeasureRequest, SourceFile
from grader.manifest import load_problem
from grader.running import jail, speed
from grader.running.protocol import Status
from grader.running.sandbox import Sandbox
from grader.running.speed import Block
from grader.running.stopwatch import Bench, Timed
from tests.jailed import require_jail

REQUEST = MeasureRequest(sources=(SourceFile.of("p01", b""),), device="cpu")


def measurement(request=REQUEST):
    bench, baseline = Bench("cpu"), Timed(None, None, "x")
    bench.device = request.device
    (file,) = request.sources
    return measure.Measurement(bench, baseline, file, lambda event: None, request)


class Held:
    """A worker that waits for its turn; `did` is what has happened to it and to others."""

    def __init__(self, number, did):
        self._number, self._did = number, did

    def wait_for_imports(self):
        self._did.append(f"{self._number} has imported")

    def __enter__(self):
        self._did.append(f"turn of {self._number}")
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._did.append(f"{self._number} is closed")


def test_held_workers_have_imported_before_anything_is_timed(monkeypatch):
    did, run = [], measurement()
    monkeypatch.setattr(run, "_held", lambda: [Held(number, did) for number in range(4)])
    monkeypatch.setattr(run, "_attach", lambda worker: worker)
    monkeypatch.setattr(speed, "overhead", lambda *_: did.append("timed") or 0.0)
    monkeypatch.setattr(speed, "run_block", lambda *_, **__: Block((0.1,) * 3, 1, 0.5))
    assert run._blocks == 3
    run._measure_speed(load_problem("p01").benchmarks_on("cpu")[0])
    assert did[:5] == [*(f"{number} has imported" for number in range(4)), "timed"]
    turns = [line for number in range(3) for line in (f"turn of {number}", f"{number} is closed")]
    assert did[5:] == [*turns, "3 is closed"]


def test_workers_are_held_in_a_jail_on_a_gpu_alone(monkeypatch):
    asked = []
    monkeypatch.setattr(measure, "_worker", lambda *_, **settings: asked.append(settings))
    for device, jailed, official, blocks in (
        ("cuda", True, True, 3),
        ("cuda", True, False, 1),
        ("cuda", False, True, 0),
        ("cpu", True, True, 0),
    ):
        update = {"device": device, "jailed": jailed, "official": official}
        run = measurement(REQUEST.model_copy(update=update))
        assert len(run._held()) == blocks
    assert len(asked) == 4 and all(settings["held"] for settings in asked)


def test_a_held_worker_imports_its_file_when_its_turn_has_come(tmp_path, monkeypatch):
    require_jail()
    (tmp_path / "kernels").mkdir()
    monkeypatch.setattr(jail, "_kernels", tmp_path / "kernels")
    source = b"print('imported', flush=True)\ndef entry():\n    pass\n"
    file = (source, "held.py", "entry")
    with Sandbox(*file, device="cpu", interpret=False, held=True) as worker:
        worker.wait_for_imports()
        time.sleep(0.2)
        worker._read_output()
        assert not worker._tail
        assert worker.ready().status == Status.OK
        assert b"imported" in worker._tail
