"""Workers that are forked from a process with torch and Triton imported: 0.1 s each, not 1.7 s.

Tests and commands that judge hundreds of sources use them in place of the sandbox's own, which
starts a fresh interpreter for each (tests/test_worker.py is about those). The worker's code, its
limits and all that the judge does with it are the same.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent


# -- the process that forks ------------------------------------------------------------------------


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
                _become_worker(worker, json.loads(packet), fds, [channel.fileno(), reader, writer])
            os.write(writer, pid.to_bytes(8, "little"))
            os._exit(0)
        os.waitpid(middle, 0)
        channel.send(os.read(reader, 8))
        for fd in (reader, writer, *fds):
            os.close(fd)


def _become_worker(worker: Any, request: dict, fds: list[int], foreign: list[int]) -> None:
    for fd in foreign:
        os.close(fd)
    os.setsid()
    os.chdir(request["env"]["HOME"])
    channel, output = fds
    for target in (1, 2):
        os.dup2(output, target)
    os.close(output)
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["worker.py", str(channel)]
    try:
        worker._main()
    finally:
        os._exit(0)


# -- the judge's side ------------------------------------------------------------------------------


class _Child:
    """As much of `subprocess.Popen` as the sandbox needs, for a child that was adopted."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
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


@functools.cache
def _zygote(judge: int) -> socket.socket:
    """The channel to the process that forks for the process `judge`, which is this one."""
    from grader.running import reaper

    reaper.adopt_orphans()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    search_path = [p for p in sys.path if p and Path(p).resolve() != _ROOT and os.path.exists(p)]
    reaper.start(
        [sys.executable, "-I", "-u", "-X", "utf8", __file__, str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        env={
            "PATH": os.environ.get("PATH", ""),
            "OMP_NUM_THREADS": "1",
            "TRITON_INTERPRET": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "GRADER_SYS_PATH": os.pathsep.join(search_path),
        },
        pass_fds=(theirs.fileno(),),
    )
    theirs.close()
    return ours


def _fork(env: dict[str, str], channel: socket.socket, output: int) -> _Child:
    from grader.running import reaper

    zygote = _zygote(os.getpid())
    socket.send_fds(zygote, [json.dumps({"env": env}).encode()], [channel.fileno(), output])
    child = _Child(int.from_bytes(zygote.recv(8), "little"))
    reaper._own.add(child.pid)
    return child


@functools.cache
def _forked_sandbox() -> type:
    from grader.running import sandbox, scratch

    class ForkedSandbox(sandbox.Sandbox):
        """A sandbox whose worker is forked."""

        def __init__(
            self,
            source: bytes,
            filename: str,
            entry: str,
            *,
            device: str,
            interpret: bool,
            count_launches: bool = False,
            threads: int = 1,
        ) -> None:
            self.filename = filename
            self._folder = Path(tempfile.mkdtemp(prefix="submission-", dir=scratch.folder()))
            (self._folder / filename).write_bytes(source)
            self._tail = bytearray()
            self._load_nonce = secrets.randbits(63)
            self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._channel.setblocking(False)
            reader, writer = os.pipe()
            env = sandbox._environment(device, interpret, threads, self._folder)
            self._process = _fork(env, theirs, writer)
            theirs.close()
            os.close(writer)
            self._stdout = os.fdopen(reader, "rb", buffering=0)
            os.set_blocking(reader, False)
            self._poll = select.poll()
            self._poll.register(self._channel, select.POLLIN)
            self._poll.register(self._stdout, select.POLLIN)
            settings = {
                "path": str(self._folder / filename),
                "entry": entry,
                "device": device,
                "interpret": interpret,
                "count_launches": count_launches,
                "memory_limit_bytes": sandbox.MEMORY_LIMIT_BYTES,
                "nonce": self._load_nonce,
            }
            self._channel.send(json.dumps(settings).encode())

    return ForkedSandbox


@contextlib.contextmanager
def forked_workers() -> Iterator[None]:
    """While active, sessions on the CPU fork their workers."""
    from grader.running import session

    fresh = session.Sandbox

    def sandbox(*args: Any, device: str, **options: Any) -> Any:
        kind = _forked_sandbox() if device == "cpu" else fresh
        return kind(*args, device=device, **options)

    session.Sandbox = sandbox
    try:
        yield
    finally:
        session.Sandbox = fresh


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
