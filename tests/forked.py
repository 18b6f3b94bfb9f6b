"""Workers that are forked from a process with torch and Triton imported: 0.1 s each, not 1.7 s.

Tests and commands that judge hundreds of sources use them in place of the sandbox's own, which
starts a fresh interpreter for each (tests/test_worker.py is about those). The worker's code, its
limits and all that the judge does with it are the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

_ROOT = Path(__file__).resolve().parent.parent


# -- the process that forks -----------------------------------------------------------------------


def _serve(channel: socket.socket) -> None:
    """Fork a worker for each request, until the judge closes the channel."""
    sys.path.insert(0, str(_ROOT))
    sys.path += [p for p in os.environ["GRADER_SYS_PATH"].split(os.pathsep) if p]
    import torch
    import triton.language
    import triton.runtime.interpreter  # noqa: F401

    from grader.running import worker

    torch.set_num_threads(1)
    while True:
        packet, fds, _, _ = socket.recv_fds(channel, 65536, 2)
        if not packet:
            return
        reader, writer = os.pipe()
        middle = os.fork()
        if middle == 0:
            # The judge adopts the worker when this process ends: it is then the judge's child.
            middle, pid = os.getpid(), os.fork()
            if pid == 0:
                while os.getppid() == middle:  # else its end would be taken for the judge's
                    time.sleep(0.0005)
                for fd in (channel.fileno(), reader, writer):
                    os.close(fd)
                _become_worker(worker, json.loads(packet), *fds)
            os.write(writer, pid.to_bytes(8, "little"))
            os._exit(0)
        os.waitpid(middle, 0)
        channel.send(os.read(reader, 8))
        for fd in (reader, writer, *fds):
            os.close(fd)


def _become_worker(worker: Any, request: dict, channel: int, output: int) -> None:
    os.setsid()
    os.chdir(request["cwd"])
    for target in (1, 2):
        os.dup2(output, target)
    os.close(output)
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["worker.py", str(channel)]
    try:
        worker._main()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


# -- the judge's side -----------------------------------------------------------------------------


class _Child:
    """As much of `subprocess.Popen` as the sandbox needs, for a child that was adopted."""

    def __init__(self, pid: int, stdout: int) -> None:
        self.pid = pid
        self.stdout = os.fdopen(stdout, "rb", buffering=0)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() >= end:
                raise subprocess.TimeoutExpired("worker", timeout)
            time.sleep(0.0005)
        return self.returncode or 0


class _Forks:
    """Starts workers by forking a process that it starts for the first of them."""

    def __init__(self) -> None:
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen | None = None

    def _begin(self) -> socket.socket:
        from grader.running import reaper

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        paths = [p for p in sys.path if p and Path(p).resolve() != _ROOT and os.path.exists(p)]
        self._process = reaper.start(
            [sys.executable, "-I", "-B", "-u", "-X", "utf8", __file__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            env={
                "PATH": os.environ.get("PATH", ""),
                "OMP_NUM_THREADS": "1",
                "TRITON_INTERPRET": "1",
                "CUDA_VISIBLE_DEVICES": "",
                "GRADER_SYS_PATH": os.pathsep.join(paths),
            },
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        self._channel = ours
        return ours

    def start(self, command: list[str], **options: Any) -> Any:
        """Stand in for `reaper.start`: the worker of `command`, forked if it needs no GPU."""
        from grader.running import reaper

        env, (channel,) = options["env"], options["pass_fds"]
        if env.get("CUDA_VISIBLE_DEVICES") != "":
            return reaper.start(command, **options)
        forks = self._channel or self._begin()
        reader, writer = os.pipe()
        request = {"cwd": str(options["cwd"]), "env": env}
        socket.send_fds(forks, [json.dumps(request).encode()], [channel, writer])
        os.close(writer)
        child = _Child(int.from_bytes(forks.recv(8), "little"), reader)
        reaper._own.add(child.pid)
        return child

    def end(self) -> None:
        """End the process that forks."""
        from grader.running import reaper

        if self._channel and self._process:
            self._channel.close()
            self._process.wait(10.0)
            reaper.ended(self._process)


@contextlib.contextmanager
def forked_workers() -> Iterator[None]:
    """While active, the sandbox's workers are forked where they need no GPU."""
    from grader.running import reaper, sandbox

    forks = _Forks()
    stand_in = SimpleNamespace(
        start=forks.start, ended=reaper.ended, adopt_orphans=reaper.adopt_orphans
    )
    with mock.patch.object(sandbox, "reaper", stand_in):
        try:
            yield
        finally:
            forks.end()


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
