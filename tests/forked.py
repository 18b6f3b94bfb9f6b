"""Workers that are forked from a process with torch and Triton imported: 0.1 s each, not 1.7 s.

Tests and commands that judge hundreds of sources use them; without it each worker is a fresh
interpreter (tests/test_worker.py is about both). The servers that they are forked from live as long
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


class Servers:
    """A server for workers that interpret kernels, and one for those that do not."""

    def __init__(self) -> None:
        """Open both; they end with the calling thread."""
        self._servers = {
            interpret: ForkServer.open(
                sandbox.server_environment(interpret=interpret, differentiate=True)
            )
            for interpret in (True, False)
        }
        for server in self._servers.values():
            atexit.register(server.close)

    def start(self, program: str, cwd: Path, env: dict[str, str], channel: int) -> Forked | None:
        """Fork a worker, see `ForkServer.start`."""
        return self._servers["TRITON_INTERPRET" in env].start(program, cwd, env, channel)

    def close(self) -> None:
        """Leave the servers to who comes next."""


_servers = functools.cache(Servers)


def servers() -> set[int]:
    """The processes of the servers that this process has opened."""
    if not _servers.cache_info().currsize:
        return set()
    return {server._process.pid for server in _servers()._servers.values()}


@contextlib.contextmanager
def forked_workers() -> Iterator[None]:
    """While active, workers are forked."""
    with mock.patch.object(forks, "_server", _servers()):
        yield


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Fork the workers of a module of tests, which says `_quick = forked.quick`."""
    with forked_workers():
        yield
