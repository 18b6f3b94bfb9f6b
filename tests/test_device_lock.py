"""Who may use a device: tests side by side, one measurement alone, and nobody waits for ever."""

import contextlib
import fcntl
import os
import threading
import time

import pytest

from grader.timing import device_lock
from tests.harness import PROMPT_S, until


@pytest.fixture
def lock(tmp_path, monkeypatch):
    monkeypatch.setattr(device_lock.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path / f"grader-{os.getuid()}-gpu.lock"


def alone(wait_s=PROMPT_S):
    return device_lock.held("gpu", alone=True, wait_s=wait_s)


def beside(wait_s=PROMPT_S):
    return device_lock.held("gpu", alone=False, wait_s=wait_s)


@pytest.mark.parametrize("what", ["", "-gate"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "dangling link", "no rights", "device"])
def test_something_else_in_the_place_of_the_lock_costs_nothing(lock, tmp_path, kind, what):
    path, precious = lock.with_stem(f"{lock.stem}{what}"), tmp_path / "precious"
    precious.write_text("kept")
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "no rights":
        path.touch(0)
    else:
        targets = {"link": precious, "dangling link": tmp_path / "none", "device": "/dev/full"}
        path.symlink_to(targets[kind])
    begin = time.monotonic()
    with alone() as had:
        assert had
    assert time.monotonic() - begin < PROMPT_S
    assert precious.read_text() == "kept" and not (tmp_path / "none").exists()


def test_tests_run_side_by_side_and_a_measurement_alone(lock):
    with beside() as one, beside(0.0) as other, alone(0.0) as measurement:
        assert (one, other, measurement) == (True, True, False)
    with alone() as measurement, beside(0.0) as test, alone(0.0) as other:
        assert (measurement, test, other) == (True, False, False)
    with alone(0.0) as again:
        assert again


def test_what_comes_later_does_not_pass_what_waits(lock):
    order = []

    def use(name, had):
        with had:
            order.append(name)

    test = contextlib.ExitStack()
    test.enter_context(beside())
    measurement = threading.Thread(target=use, args=("measurement", alone()))
    measurement.start()

    def is_passed():
        with beside(0.0) as had:
            return had

    assert until(lambda: not is_passed())
    later = threading.Thread(target=use, args=("a later test", beside()))
    later.start()
    later.join(0.2)
    assert order == []
    test.close()
    measurement.join(PROMPT_S)
    later.join(PROMPT_S)
    assert order == ["measurement", "a later test"]


def test_a_lock_that_is_never_given_back_is_waited_for_so_long(lock):
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        begin = time.monotonic()
        with alone(0.3) as had:
            assert not had and 0.2 < time.monotonic() - begin < PROMPT_S


def test_the_lock_is_given_back_whatever_happens(lock):
    with pytest.raises(ZeroDivisionError), alone():
        raise ZeroDivisionError
    with alone(0.0) as had:
        assert had
