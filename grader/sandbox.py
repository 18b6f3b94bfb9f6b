"""Starts a worker process for one submitted file, talks to it under a deadline, and ends it.

The worker is a fresh interpreter (exec, never fork) in a process group of its own, with a small
environment, no inherited descriptor but its end of the channel, and a private copy of exactly the
bytes that were checked. What it prints is drained and only the tail is kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from grader.protocol import REPLY, Reply, Status

_WORKER = Path(__file__).with_name("worker.py")
_ROOT = _WORKER.parent.parent
_OUTPUT_TAIL_BYTES = 16 * 1024
START_TIMEOUT_S = 60.0
MEMORY_LIMIT_BYTES = 4 * 2**30  # what a submission may take on the CPU beyond torch itself
_PASSED_ON = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    "TRITON_LIBCUDA_PATH",
    "TRITON_PTXAS_PATH",
    "CC",
)


@dataclasses.dataclass(frozen=True)
class Ended:
    """Why a worker gave no reply: `timeout`, or it died by `signal_name` or with `exit_code`."""

    timeout: bool = False
    exit_code: int | None = None
    signal_name: str | None = None
    line: int = 0
    waited_s: float = 0.0


class Sandbox:
    """One worker for one file. `start` returns at once; `ready` waits for the import."""

    def __init__(
        self,
        source: bytes,
        filename: str,
        entry: str,
        *,
        device: str,
        interpret: bool,
        threads: int = 1,
    ) -> None:
        self.filename = filename
        self._folder = Path(tempfile.mkdtemp(prefix="submission-"))
        self._path = self._folder / filename
        self._path.write_bytes(source)
        self._tail = bytearray()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = ours
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-X", "utf8", str(_WORKER), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._folder,
            env=_environment(device, interpret, threads, self._folder),
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        self._drain = threading.Thread(target=self._collect_output, daemon=True)
        self._drain.start()
        settings = {
            "path": str(self._path),
            "entry": entry,
            "device": device,
            "interpret": interpret,
            "memory_limit_bytes": MEMORY_LIMIT_BYTES,
        }
        with contextlib.suppress(OSError):
            self._channel.send(json.dumps(settings).encode())

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    def ready(self) -> Reply | Ended:
        """Wait until the submission is imported."""
        return self._receive(0, START_TIMEOUT_S)

    def ask(self, what: str, timeout_s: float, fds: tuple[int, ...] = (), **fields: Any):
        """Send one request and wait for its reply: a `Reply`, or `Ended` if none came."""
        nonce = secrets.randbits(63)
        packet = json.dumps({"do": what, "nonce": nonce, **fields}).encode()
        try:
            socket.send_fds(self._channel, [packet], list(fds))
        except OSError:
            return self._ended(timeout=False, waited_s=0.0)
        return self._receive(nonce, timeout_s)

    def _receive(self, nonce: int, timeout_s: float) -> Reply | Ended:
        start = time.monotonic()
        deadline = start + timeout_s
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return self._ended(timeout=True, waited_s=time.monotonic() - start)
            self._channel.settimeout(left)
            try:
                packet = self._channel.recv(REPLY.size + 1)
            except TimeoutError:
                return self._ended(timeout=True, waited_s=time.monotonic() - start)
            except OSError:
                packet = b""
            if not packet:
                return self._ended(timeout=False, waited_s=time.monotonic() - start)
            reply = Reply.unpack(packet)
            if reply is not None and reply.nonce == nonce:
                return reply
            # Anything else on the channel is not an answer to this request: ignore it.

    def _ended(self, *, timeout: bool, waited_s: float) -> Ended:
        if not timeout:  # the channel is closed: the process is dead or about to be
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2.0)
        code = self._process.poll()
        self.kill()
        name = None
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return Ended(timeout, code, name, self._last_line(), waited_s)

    def _last_line(self) -> int:
        """Return the line of the submission in the last dump of a fatal signal, 0 if none."""
        pattern = rf'File "[^"]*{re.escape(self.filename)}"(?:, line |:)(\d+)'
        output = self.output()
        fatal = output.rfind("Fatal Python error")
        match = re.search(pattern, output[max(fatal, 0) :]) if fatal >= 0 else None
        return int(match[1]) if match else 0

    def _collect_output(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while chunk := stream.read1(65536):
            self._tail += chunk
            del self._tail[:-_OUTPUT_TAIL_BYTES]

    def output(self) -> str:
        """Return the tail of what the worker printed so far."""
        if self._process.poll() is not None:
            self._drain.join(1.0)
        text = bytes(self._tail).decode("utf-8", "replace")
        return text.replace(str(self._folder) + os.sep, "")

    def kill(self) -> None:
        """End the worker and every process of its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)

    def close(self) -> None:
        """End the worker and remove its folder."""
        self._channel.close()
        self.kill()
        self._drain.join(1.0)
        if self._process.stdout:
            self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _environment(device: str, interpret: bool, threads: int, folder: Path) -> dict[str, str]:
    env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    env |= {
        "HOME": str(folder),
        "OMP_NUM_THREADS": str(threads),
        "TRITON_CACHE_DIR": str(_ROOT / ".cache" / "triton"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "GRADER_SYS_PATH": os.pathsep.join(
            p for p in sys.path if p and os.path.exists(p) and Path(p).resolve() != _ROOT
        ),
    }
    if interpret:
        env["TRITON_INTERPRET"] = "1"
    if device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    return env


def failed(result: Reply | Ended) -> bool:
    """Whether a reply is anything but success."""
    return isinstance(result, Ended) or result.status != Status.OK
