"""Starts processes by forking one that has imported torch: in 0.1 s rather than 1.2.

A forked worker differs from a fresh interpreter in nothing else: it has its own session and folder,
the environment it is given, one descriptor, and the judge as its parent. Whoever runs submissions
opens a server; without one, or when it does not answer, workers are fresh interpreters. The same
holds for the judge's own children.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from grader.isolate import reaper

_SERVER = Path(__file__).with_name("fork_server.py")
_FIRST_S = 30.0  # torch, perhaps from a cold network disk
_ANSWER_S = 10.0  # a fork on a busy machine; the judge waits no longer for a server that hangs


def isolated(script: Path, channel: int) -> list[str]:
    """Return the command of an interpreter that reads nothing of ours but a script of the judge's.

    The script gets the number of a descriptor, its channel to the judge.
    """
    return [sys.executable, "-I", "-B", "-u", "-X", "utf8", str(script), str(channel)]


class Forked:
    """As much of `subprocess.Popen` as the judge needs, for a child that it did not start."""

    def __init__(self, pid: int, stdout: int | None = None) -> None:
        self.pid = pid
        self.stdout = None if stdout is None else os.fdopen(stdout, "rb", buffering=0)
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit status, None while the child runs."""
        with self._lock, contextlib.suppress(ChildProcessError):
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float = math.inf) -> int | None:
        """Wait for the child's end, or raise `subprocess.TimeoutExpired`."""
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() >= end:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            time.sleep(0.001)
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """One process that forks others; it imports while the judge does other things."""

    def __init__(self, process: Any, channel: socket.socket) -> None:
        """Use a server that has started, and reads its requests from `channel`."""
        self._process = process
        self._channel = channel
        self._lock = threading.Lock()
        channel.settimeout(_FIRST_S)

    @classmethod
    def open(cls, environment: dict[str, str]) -> ForkServer:
        """Start a server; its `environment` is that of the workers as far as imports read it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = reaper.start(
            isolated(_SERVER, theirs.fileno()),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        return cls(process, ours)

    def fork(self, fds: list[int], **request: Any) -> int | None:
        """Fork a process for a request; return its id, None where a fresh one has to be started.

        It is a worker, or with `module` and `arguments` a child of the judge's; each has a `cwd`
        and an `env`.
        """
        with self._lock:
            return reaper.adopt(lambda: self._ask(json.dumps(request).encode(), fds))

    def _ask(self, request: bytes, fds: list[int]) -> int:
        """Return the process id that the server answers; 0 if it does not, now or earlier."""
        answer = b""
        with contextlib.suppress(OSError):  # it is dead, or was given up, and the channel is closed
            socket.send_fds(self._channel, [request], fds)
            answer = self._channel.recv(8)
        if len(answer) == 8:
            self._channel.settimeout(_ANSWER_S)
            return int.from_bytes(answer, "little")
        self._process.kill()  # a worker forked too late would read requests to its replacement
        self._channel.close()
        return 0

    def close(self) -> None:
        """End the server; the workers live on."""
        with self._lock:
            self._channel.close()
        self._process.kill()
        self._process.wait(10.0)
        reaper.ended(self._process)


_server: ForkServer | None = None


def start(cwd: Path, env: dict[str, str], channel: int) -> Forked | None:
    """Fork a worker from the open server; None where there is none or it does not serve."""
    if _server is None:  # no import of a server looks for a GPU: a worker finds its own
        return None
    reader, writer = os.pipe()
    pid = _server.fork([channel, writer], cwd=str(cwd), env=env)
    os.close(writer)
    if pid is None:
        os.close(reader)
        return None
    return Forked(pid, reader)


def open_server(environment: dict[str, str]) -> None:
    """Let the workers of this process be forked from now on."""
    global _server
    _server = _server or ForkServer.open(environment)


def inherit_server(pid: int, channel: socket.socket) -> None:
    """Take over a server that this process was given when it was forked itself."""
    global _server
    if reaper.adopt(lambda: pid) is not None:
        _server = ForkServer(Forked(pid), channel)


def close_server() -> None:
    """End the server; workers are fresh interpreters from now on."""
    global _server
    server, _server = _server, None
    if server:
        server.close()
