"""Workers that are forked from a process with torch and Triton imported: 0.1 s each, not 1.7 s.

Tests and commands that judge hundreds of sources use them; without it each worker is a fresh
interpreter (tests/test_worker.py is about both). The server that they are forked from lives as long
as the process that asks: to start one takes longer than most tests. Whoever grades in this process
forks from it too.
"""

import atexit
import contextlib
import functools
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any
from unittest import mock

import pytest
import torch

from grader.isolate import forks, sandbox
from grader.isolate.forks import ForkServer

# A busy machine takes a minute to import torch; fresh interpreters would keep it busier still.
_PATIENCE_S = 600.0


@functools.cache
def _server() -> ForkServer:
    with mock.patch.object(forks, "_FIRST_S", _PATIENCE_S):
        environment = sandbox.server_environment(differentiate=True, judges=True)
        server = ForkServer.open(environment)
    atexit.register(server.close)
    return server


def servers() -> set[int]:
    """The process of the server that this process has opened."""
    return {_server()._process.pid} if _server.cache_info().currsize else set()


class Shared:
    """The server, for whoever opens one and closes it."""

    def __init__(self) -> None:
        """Open it for the first who asks."""
        self.fork = _server().fork

    def close(self) -> None:
        """Leave the server to who comes next."""


@contextlib.contextmanager
def forked_workers() -> Iterator[None]:
    """While active, workers are forked, and children that judge."""
    shared = Shared()
    opens = mock.patch.object(ForkServer, "open", lambda environment: shared)
    with opens, mock.patch.multiple(forks, _server=shared, _ANSWER_S=_PATIENCE_S):
        yield


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Fork the workers of a module of tests, which says `_quick = forked.quick`."""
    with forked_workers():
        yield


def _begin() -> None:
    """Run once in each process of the pool."""
    torch.set_num_threads(1)
    forked_workers().__enter__()


def in_pool(
    work: Callable[..., Any], tasks: Iterable[tuple], jobs: int
) -> Iterator[tuple[tuple, Any]]:
    """Do `work` of each task in a pool of processes; yield the task and what came out of it.

    That is the exception where it raised one, of the test's own: the others go on.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _begin) as pool:
        futures = {pool.submit(work, *task): task for task in tasks}
        try:
            for future in as_completed(futures):
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    raise error
                yield futures[future], error or future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
