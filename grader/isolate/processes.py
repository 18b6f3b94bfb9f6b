"""The judge's own child processes: started in groups of their own, stopped together on Ctrl-C."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grader.base import scratch
from grader.isolate import forks, reaper, sandbox
from grader.spec.problem import ROOT

GRACE_S = 8.0
# A child sends a sign of life every second, unless something has stopped it by a signal: no machine
# is so busy that thirty are missing in a row.
SILENCE_S = 30.0
_LOOK_S = 1.0
_MAX_LINE_BYTES = 2**20
_MAX_REST_BYTES = 2**20  # what may lie in a pipe when its writer dies
_OUTPUT_TAIL_BYTES = 64 * 1024
_FORKED = ("pytest", "grader.judge.measure")  # modules that import torch first of all


@dataclasses.dataclass
class Ending:
    """How a child ended: its exit status, or what it was killed for, and what it printed."""

    exit_code: int | None = None
    timed_out: bool = False
    silent: bool = False
    output: str = ""

    @property
    def regular(self) -> bool:
        """Whether the child exited by itself: no signal, deadline or silence ended it."""
        done = self.exit_code is not None and self.exit_code >= 0
        return done and not self.timed_out and not self.silent

    @property
    def last_line(self) -> str:
        lines = self.output.strip().splitlines()
        return lines[-1][-200:] if lines else "no output"


class Children:
    """Starts trusted Python modules and reads the lines they write on a pipe of their own."""

    def __init__(self, kernels: Path | None = None) -> None:
        """Let children keep in the folder `kernels` what they compile for an absent GPU."""
        self.kernels = kernels
        self._running: set[Any] = set()
        self._lock = threading.Lock()
        self._server: forks.ForkServer | None = None

    def open_server(self, *, differentiate: bool = False) -> None:
        """Let children that import torch be forked. The server ends with the calling thread.

        With `differentiate` some of what they run computes gradients.
        """
        environment = sandbox.server_environment(differentiate=differentiate, judges=True)
        self._server = self._server or forks.ForkServer.open(environment)

    def close(self) -> None:
        """End the server; the children live on."""
        server, self._server = self._server, None
        if server:
            server.close()

    def events(
        self, module: str, arguments: list[str], request: str, deadline_s: float, ending: Ending
    ) -> Iterator[bytes]:
        """Run `python -m module arguments --request-fd=N --events-fd=M`; yield its event lines.

        The request is in an open file without a name. Afterwards `ending` is filled in.
        """
        asked = os.memfd_create("request", os.MFD_CLOEXEC)
        read, write = os.pipe()
        with tempfile.TemporaryFile() as log:
            try:
                with os.fdopen(os.dup(asked), "wb") as file:
                    file.write(request.encode())
                os.lseek(asked, 0, os.SEEK_SET)
                child = self._start(module, arguments, asked, write, log.fileno())
            except BaseException:
                os.close(read)
                raise
            finally:
                os.close(asked)
                os.close(write)
            with self._lock:
                self._running.add(child)
            try:
                with os.fdopen(read, "rb", buffering=0) as stream:
                    yield from _lines(stream, child, time.monotonic() + deadline_s, ending)
                if ending.timed_out or ending.silent:
                    _signal_group(child, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(SILENCE_S)  # it has closed the pipe, and only has to exit
            finally:
                _signal_group(child, signal.SIGKILL)
                child.wait()
                with self._lock:
                    self._running.discard(child)
                reaper.ended(child)
                if child.returncode:  # it may not have removed its folder
                    scratch.sweep()
                size = log.seek(0, os.SEEK_END)
                log.seek(max(0, size - _OUTPUT_TAIL_BYTES))
                ending.output = log.read().decode("utf-8", "replace")
                ending.exit_code = child.returncode

    def _start(self, module: str, arguments: list[str], asked: int, events: int, log: int) -> Any:
        env = _trusted_environment()
        server = self._server
        if server is not None and module in _FORKED:
            request = {"module": module, "arguments": arguments, "cwd": str(ROOT), "env": env}
            pid = server.fork([asked, events, log], **request)
            if pid is not None:
                return forks.Forked(pid)
            reaper.kill_orphans()  # the server may have forked a child too late
        return reaper.start(
            [
                *(sys.executable, "-m", module, *arguments),
                *(f"--request-fd={asked}", f"--events-fd={events}"),
            ],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(asked, events),
            start_new_session=True,
            env=env,
        )

    def stop(self, grace_s: float | None = None) -> None:
        """Interrupt every child (a pytest ends its workers), then end what is left."""
        with self._lock:
            children = list(self._running)
        for child in children:
            _signal_group(child, signal.SIGINT)
        deadline = time.monotonic() + (GRACE_S if grace_s is None else grace_s)
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.1, deadline - time.monotonic()))
            _signal_group(child, signal.SIGKILL)


def _lines(stream: Any, child: Any, deadline: float, ending: Ending) -> Iterator[bytes]:
    """Yield the lines that the child writes, until it closes its end, is gone, or has to be ended.

    Other processes may hold the pipe open and write into it: neither shows that the child lives.
    """
    pending = b""
    heard = looked = time.monotonic()
    gone, stopped, rest = False, False, _MAX_REST_BYTES
    while True:
        ready, _, _ = select.select([stream], [], [], _LOOK_S)
        chunk = stream.read(65536) if ready else b""
        if ready and not chunk:
            return
        now = time.monotonic()
        if now - looked >= _LOOK_S or not ready:
            looked, gone, stopped = now, child.poll() is not None, _is_stopped(child.pid)
        if chunk and not stopped:
            heard = now
        *lines, pending = (pending + chunk).split(b"\n")
        yield from lines
        if len(pending) > _MAX_LINE_BYTES:
            pending = b""
        rest -= len(chunk) if gone else 0
        if gone and (rest <= 0 or not ready):
            return
        ending.timed_out = now >= deadline
        ending.silent = now - heard >= SILENCE_S
        if ending.timed_out or ending.silent:
            return


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError):
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in "Tt"
    return False


def _signal_group(child: Any, number: int) -> None:
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)


def _trusted_environment() -> dict[str, str]:
    """Return the environment of the judge's own processes: nothing changes pytest or Triton."""
    hidden = ("PYTEST_", "TRITON_", "PYTHONSTARTUP", "PYTHONINSPECT")
    env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    # Of pytest's plugins the judge names those that it needs: others cost time in each run.
    return env | {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
