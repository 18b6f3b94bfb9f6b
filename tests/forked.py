"""Workers that are forked from a process with torch and Triton imported: 0.1 s each, not 1.7 s.

Tests and commands that judge hundreds of sources use them; without it each worker is a fresh
interpreter (tests/test_worker.py is about both). The server that they are forked from lives as long
as the process that asks: to start one takes longer than most tests.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from grader.isolate import forks, sandbox
from grader.isolate.forks import Forked, ForkServer

# A busy machine takes a minute to import torch; fresh interpreters would keep it busier still.
_PATIENCE_S = 600.0


class Server:
    """A server that stays open for who comes next."""

    def __init__(self) -> None:
        """Open one; it ends with the calling thread."""
        with mock.patch.object(forks, "_FIRST_S", _PATIENCE_S):
            self.server = ForkServer.open(sandbox.server_environment(differentiate=True))
        atexit.register(self.server.close)

    def start(self, cwd: Path, env: dict[str, str], channel: int) -> Forked | None:
        """Fork a worker, see `ForkServer.start`."""
        return self.server.start(cwd, env, channel)

    def close(self) -> None:
        """Leave the server to who comes next."""


_server = functools.cache(Server)


def servers() -> set[int]:
    """The process of the server that this process has opened."""
    if not _server.cache_info().currsize:
        return set()
    return {_server().server._process.pid}


@contextlib.contextmanager
def forked_workers() -> Iterator[None]:
    """While active, workers are forked."""
    with mock.patch.multiple(forks, _server=_server(), _ANSWER_S=_PATIENCE_S):
        yield


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Fork the workers of a module of tests, which says `_quick = forked.quick`."""
    with forked_workers():
        yield
