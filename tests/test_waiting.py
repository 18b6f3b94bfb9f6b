"""Workers that are started before their turn: which one is taken, and what one has done by then."""

import pytest

from grader import measure
from grader.findings import MeasureRequest, SourceFile
from grader.running import capacity, jail
from grader.running.protocol import Status
from grader.running.sandbox import Sandbox
from grader.running.waiting import Waiting
from tests.forked import forked_workers
from tests.jailed import require_jail


class Fake:
    def __init__(self, name):
        self.name, self.closed = name, False

    def close(self):
        self.closed = True


@pytest.fixture
def started():
    return []


def turns(names, started):
    def turn(number, name):
        def start():
            started.append(Fake(f"{name}{number}"))
            return started[-1]

        return name, start

    return Waiting(turn(*pair) for pair in enumerate(names))


def names(workers):
    return [worker.name for worker in workers]


def test_the_first_turn_comes_too_early_and_the_later_ones_were_started(started):
    waiting = turns("aaab", started)
    assert waiting.take("a") is None and names(started) == ["a1", "a2"]
    assert waiting.take("a").name == "a1" and names(started) == ["a1", "a2", "b3"]
    assert waiting.take("a").name == "a2"
    waiting.skip("a")
    assert waiting.take("b").name == "b3"
    assert waiting.take("b") is None and len(started) == 3


def test_one_turn_more_than_planned_leaves_the_others_waiting(started):
    waiting = turns("ab", started)
    waiting.take("a")
    assert waiting.take("a") is None
    assert waiting.take("b").name == "b1" and not started[0].closed


def test_turns_that_are_not_taken_are_dropped(started):
    waiting = turns("aaaabbb", started)
    waiting.take("a")
    waiting.skip("a")
    closed = {"a1": True, "a2": True, "b4": False, "b5": False}
    assert {worker.name: worker.closed for worker in started} == closed
    waiting.close()
    assert all(worker.closed for worker in started)
    assert waiting.take("b") is None and len(started) == 4


def test_without_turns_nothing_waits():
    waiting = Waiting()
    assert waiting.take("a") is None
    waiting.skip("a")
    waiting.close()


@pytest.mark.parametrize("jailed", [False, True])
def test_a_held_worker_imports_its_file_when_its_turn_has_come(jailed, tmp_path, monkeypatch):
    if jailed:
        require_jail()
        (tmp_path / "kernels").mkdir()
        monkeypatch.setattr(jail, "_kernels", tmp_path / "kernels")
    source = b"def entry():\n    pass\n"
    with (
        forked_workers(),
        Sandbox(source, "held.py", "entry", device="cpu", interpret=False, held=True) as worker,
    ):
        assert not worker._poll.poll(2000)  # not a word, though it has had time to start
        assert worker.ready().status == Status.OK


@pytest.mark.parametrize(
    "change",
    [{"jailed": False}, {"device": "cpu"}, {"cores": 3.0}, {"official": False}, {}],
    ids=str,
)
def test_workers_are_started_ahead_in_a_jail_on_a_gpu_with_cores_to_spare(change, monkeypatch):
    change = dict(change)
    monkeypatch.setattr(capacity, "cores", lambda: change.pop("cores", 4.0))
    few = "cores" in change
    files = (SourceFile.of("p03", b""), SourceFile.of("p04", b""))
    request = {"device": "cuda", "jailed": True, "official": True} | change
    request.pop("cores", None)
    waiting = measure._waiting(MeasureRequest(sources=files, **request))
    found = [whose for whose, _ in waiting._turns]
    if few or not request["jailed"] or request["device"] == "cpu":
        assert not found
    else:
        blocks = 3 if request["official"] else 1
        assert found == ["p03"] * blocks + ["p04"] * blocks
