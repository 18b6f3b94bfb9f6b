"""Work in a thread behind its owner: in order, bounded, and an error is told once."""

import threading

import pytest

from grader.base.background import Behind
from tests.harness import PROMPT_S


def fails():
    raise OSError("planted")


def test_pieces_are_done_in_order_while_the_owner_goes_on():
    behind, go, done = Behind(8), threading.Event(), []
    behind.add(lambda: done.append(go.wait(PROMPT_S)))
    for number in range(3):
        behind.add(lambda number=number: done.append(number))
    assert done == []  # the first still waits
    go.set()
    behind.finish()
    assert done == [True, 0, 1, 2]


def test_its_thread_ends_and_begins_again():
    before = threading.active_count()
    behind, done = Behind(2), []
    behind.finish()  # without a piece there is nothing to wait for
    for number in range(2):
        behind.add(lambda number=number: done.append((number, threading.current_thread().daemon)))
        behind.finish()
        assert threading.active_count() == before
    assert done == [(0, True), (1, True)]


def test_who_brings_more_than_may_wait_waits():
    behind, go = Behind(1), threading.Event()
    behind.add(go.wait)

    def more():
        for _ in range(3):
            behind.add(lambda: None)

    owner = threading.Thread(target=more)
    owner.start()
    owner.join(0.2)
    assert owner.is_alive()
    go.set()
    owner.join(PROMPT_S)
    assert not owner.is_alive()
    behind.finish()


def test_an_error_is_raised_once_and_the_others_are_done_all_the_same():
    behind, done = Behind(4), []
    behind.add(fails)
    behind.add(lambda: done.append(1))
    with pytest.raises(OSError, match="planted"):
        behind.finish()
    assert done == [1]
    behind.finish()
    behind.add(fails)
    while behind._error is None:
        threading.Event().wait(0.001)
    with pytest.raises(OSError, match="planted"):
        behind.add(lambda: done.append(2))
    behind.add(lambda: done.append(3))
    behind.finish()
    assert done == [1, 3]
