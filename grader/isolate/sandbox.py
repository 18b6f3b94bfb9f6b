"""Starts a worker process for one submitted file, talks to it under a deadline, and ends it.

The worker is a fresh interpreter, or is forked from one that has seen nothing but torch (forks.py),
never from the judge; in an official run it is a fresh one in a jail (jail.py). It has a session of
its own, a small environment, no inherited descriptor but its end of the channel, and a private copy
of exactly the bytes that were checked. What it prints is read while the judge waits, which stores
only the tail of the current request. The judge adopts processes that it leaves behind, and kills
them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from grader.base import scratch
from grader.isolate import forks, jail, reaper, usage, warden
from grader.isolate.printed import Printed
from grader.spec.protocol import IMPORTED, REPLY, STARTED, Ended, Reply

_WORKER = Path(__file__).with_name("worker.py")
_ROOT = _WORKER.parent.parent.parent
_MANY_TIMES = 5  # a line that is so often in a dump's hundred frames is of a recursive function
_LIVENESS_S = 0.5
PATIENCE = 5.0  # a call may take so many times its limit while it waits for a core
_DUMP_S = 1.0
_SIGNALLED = 128  # bubblewrap's exit status for a worker that signal N ended is that plus N
START_TIMEOUT_S = 120.0  # the interpreter and torch, perhaps from a cold network disk
IMPORT_TIMEOUT_S = 60.0  # the submitted file
MEMORY_LIMIT_BYTES = 4 * 2**30  # what a submission may take on the CPU beyond torch itself
_PASSED_ON = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "TRITON_LIBCUDA_PATH",
    "TRITON_PTXAS_PATH",
    "CC",
)


class Sandbox:
    """One worker for one file, started at once; `ready` waits until it has imported the file."""

    def __init__(
        self,
        source: bytes,
        filename: str,
        entry: str,
        *,
        device: str,
        role: str = "call",
        kernels: Path | None = None,
        fresh: bool = False,
        held: bool = False,
        differentiates: bool = False,
        **settings: Any,
    ) -> None:
        """Start a worker, which gets the `settings` too.

        Its `role` is one of grader/isolate/worker.py, such as "call", on data. It stores what it
        compiles in `kernels`, if given: an absolute path, or one in its own folder. A `fresh` one
        is never forked. A `held` one imports what Triton needs and, if it `differentiates`, a
        gradient, but uses its device only after `warm_up`, and imports the file only in `ready`.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="submission-", dir=scratch.folder()))
        path = self._folder / filename
        path.write_bytes(source)
        self._held = held
        self._heard: dict[int, Reply | Ended] = {}  # replies that come unasked, by nonce
        self.starved_s = 0.0  # how long the last request waited for a core, if that is counted
        self._load_nonce = secrets.randbits(63)
        self._jailed = jail.kernels() is not None
        self._first = 0  # process 1 of the jail
        self._warden: warden.Warden | None = None
        environment = _environment(device, self._folder)
        environment |= {"GRADER_HELD": "1" * held, "GRADER_DIFFERENTIATES": "1" * differentiates}
        kernels = self._folder / kernels if kernels else jail.kernels()
        if kernels:
            environment["TRITON_CACHE_DIR"] = str(kernels)
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        with theirs:
            gpu = jail.gpu() if device == "cuda" else None
            self._process = self._start(path, environment, theirs.fileno(), gpu, fresh=fresh)
        self._pid = self._process.pid
        self._printed = Printed(self._process.stdout, filename, self._folder)
        self._poll = select.poll()
        self._poll.register(self._channel, select.POLLIN)
        self._poll.register(self._printed.stream, select.POLLIN)
        settings |= {
            "path": str(path),
            "entry": entry,
            "device": device,
            "role": role,
            "memory_limit_bytes": MEMORY_LIMIT_BYTES,
            "nonce": self._load_nonce,
            "held": held,
        }
        self._settings = json.dumps(settings).encode()
        if not held:
            self.warm_up()

    def _start(
        self, path: Path, environment: dict[str, str], channel: int, gpu: str | None, *, fresh: bool
    ) -> subprocess.Popen | forks.Forked:
        """Start the process: in a jail with that GPU, or forked, or as a fresh interpreter."""
        command = forks.isolated(_WORKER, channel)
        if self._jailed:
            environment |= jail.named_to_cuda(gpu) if gpu else {}
            jail.let_in(self._folder)
            path.chmod(0o644)
            command = jail.enclose(command, self._folder, [path, _WORKER], gpu=gpu)
        elif not fresh and (forked := forks.start(self._folder, environment, channel)):
            return forked
        return reaper.start(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            cwd=self._folder,
            env=environment,
            pass_fds=(channel,),
            start_new_session=True,
        )

    def warm_up(self) -> None:
        """Let the worker make its context on the device, and return at once."""
        settings, self._settings = self._settings, b""
        if settings:
            with contextlib.suppress(OSError):
                self._channel.send(settings)

    @property
    def pid(self) -> int:
        return self._pid

    def tree(self) -> usage.Tree:
        """Return the worker with all that it starts, once it is ready."""
        started = (lambda: {self._pid}) if self._jailed else reaper.started
        return usage.Tree(self._pid, started, self._first)

    def wait_for_imports(self) -> None:
        """Wait until a worker that is not forked has imported torch, or has ended."""
        self._hear(IMPORTED)

    def wait_for_start(self) -> Reply | Ended:
        """Wait until the worker is about to import the submission, or has ended."""
        self.warm_up()
        return self._hear(STARTED)

    def _hear(self, nonce: int) -> Reply | Ended:
        """Return a reply that the worker sends unasked, and once."""
        if nonce not in self._heard:
            self._heard[nonce] = self._receive(nonce, _Clock(self, START_TIMEOUT_S))
        return self._heard[nonce]

    def ready(self) -> Reply | Ended:
        """Wait until the submission is imported."""
        started = self.wait_for_start()
        if isinstance(started, Ended):
            return dataclasses.replace(started, started=False)
        if self._jailed and self._warden is None:
            self._first, self._pid = warden.processes_of(self._process.pid) or (0, 0)
            if not self._first:  # it died
                return self._ended(timeout=False, waited_s=0.0)
            self._warden = warden.Warden(self._first, kernels=jail.kernels())
        if self._held:
            with contextlib.suppress(OSError):
                self._channel.send(b"go")
        return self._receive(self._load_nonce, _Clock(self, IMPORT_TIMEOUT_S))

    def ask(
        self,
        what: str,
        timeout_s: float,
        fds: tuple[int, ...] = (),
        *,
        patience: float = 1.0,
        **fields: Any,
    ) -> Reply | Ended:
        """Send one request and wait for its reply: a `Reply`, or `Ended` if none came.

        With a `patience` above 1 the time in which the worker waits for a core does not count
        towards `timeout_s`; in all the request may take `patience` times that.
        """
        nonce = secrets.randbits(63)
        packet = json.dumps({"do": what, "nonce": nonce, **fields}).encode()
        self._read_output()
        self._printed.forget()
        self.starved_s = 0.0
        try:
            socket.send_fds(self._channel, [packet], list(fds))
        except OSError:
            return self._ended(timeout=False, waited_s=0.0)
        clock = _Clock(self, timeout_s, patience)
        result = self._receive(nonce, clock)
        self.starved_s = clock.starved_s
        return result

    def _receive(self, nonce: int, clock: _Clock) -> Reply | Ended:
        while not clock.is_over():
            dead = self._process.poll() is not None  # asked first: all that it sent has arrived
            look_s = 0.0 if dead else min(clock.timeout_s - clock.waited_s, _LIVENESS_S)
            events = dict(self._poll.poll(1000 * look_s))
            if self._printed.stream.fileno() in events:
                self._read_output()
            if self._channel.fileno() in events:
                try:
                    packet = self._channel.recv(REPLY.size + 1)
                except OSError:
                    packet = b""
                if not packet:
                    return self._ended(timeout=False, waited_s=clock.waited_s)
                reply = Reply.unpack(packet)
                if reply is not None and reply.nonce == nonce:
                    self._read_output()
                    return dataclasses.replace(reply, text=self._printed.shown(reply.text))
                # Anything else on the channel is not an answer to this request: ignore it.
            elif dead:  # a child of the worker's holds the channel open
                return self._ended(timeout=False, waited_s=clock.waited_s)
        if clock.waited_s >= clock.timeout_s:
            return self._ended(timeout=True, waited_s=clock.timeout_s)
        ended = self._ended(timeout=True, waited_s=clock.waited_s)
        return dataclasses.replace(ended, starved_s=clock.starved_s)

    def _ended(self, *, timeout: bool, waited_s: float) -> Ended:
        if timeout:  # the worker's fault handler prints where it is, then it dies
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_DUMP_S)
        code = self._process.poll()
        self._read_output()
        self.kill()
        lines = self._printed.fatal_lines()
        most = max(map(lines.count, lines), default=0)
        ended = Ended(line=(lines or [0])[0], waited_s=waited_s, recursive=most >= _MANY_TIMES)
        if timeout:
            compiling = self._printed.in_compiler()
            self._printed.say_stopped()
            return dataclasses.replace(ended, timeout=True, compiling=compiling)
        name = None
        if self._jailed and code is not None and code > _SIGNALLED:
            code = _SIGNALLED - code
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        over = self._warden.over if self._warden else None
        if over is not None:
            jail.forget_kernels()
        return dataclasses.replace(ended, exit_code=code, signal_name=name, over=over)

    def _read_output(self) -> None:
        if not self._printed.read():
            with contextlib.suppress(KeyError):
                self._poll.unregister(self._printed.stream)

    def output(self) -> str:
        """Return the tail of what the worker printed since the current request began."""
        return self._printed.text()

    def kill(self) -> None:
        """End the worker, every process of its group, and those that left the group."""
        if self._warden:
            self._warden.stop()
        first, self._first = self._first, 0
        if first:  # all processes of the jail die with it
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)
        reaper.ended(self._process)

    def close(self) -> None:
        """End the worker and remove its folder."""
        self._channel.close()
        self.kill()
        self._printed.stream.close()
        scratch.remove_tree(self._folder)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Clock:
    """The time of one request: what the worker `waited_s` for it without what it was `starved_s`.

    The request may take `timeout_s`. With a `patience` above 1 the time in which the worker's
    processes wait for a core does not count; in all the request may take `patience` times as long.
    """

    def __init__(self, worker: Sandbox, timeout_s: float, patience: float = 1.0) -> None:
        self._worker, self.timeout_s, self._patience = worker, timeout_s, patience
        self._start = time.monotonic()
        self._waiting: usage.Waiting | None = None
        self.waited_s = self.starved_s = 0.0

    def is_over(self) -> bool:
        """Read the clock; return whether the time is used up."""
        self.starved_s += self._waiting.next_s() if self._waiting else 0.0
        passed_s = time.monotonic() - self._start
        self.waited_s = passed_s - self.starved_s
        if self._patience > 1.0 and not self._waiting and self.waited_s >= _LIVENESS_S:
            self._waiting = usage.Waiting(self._worker.tree())  # most requests end before
        return self.waited_s >= self.timeout_s or passed_s >= self._patience * self.timeout_s


def prepare(*, jailed: bool, gpu: str | None) -> None:
    """Set how the workers of this process start from now on: in a jail, or forked from a server.

    The server imports while this process does other things; `forks.close_server` ends it.
    """
    if jailed:
        jail.require(gpu)
    else:
        forks.open_server(server_environment())


def server_environment(*, differentiate: bool = False, judges: bool = False) -> dict[str, str]:
    """Return the environment of a process that workers are forked from; it sees no GPU.

    With `differentiate` it imports what torch does for the first gradient of a process, with
    `judges` what a child of the judge's imports that runs tests.
    """
    environment = _environment("cpu", scratch.folder())
    wanted = {"GRADER_DIFFERENTIATES": differentiate, "GRADER_JUDGES": judges}
    return environment | {name: "1" for name, is_wanted in wanted.items() if is_wanted}


def _environment(device: str, folder: Path) -> dict[str, str]:
    env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    env |= {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        # With more threads a time on the CPU follows whatever else the machine is doing.
        "OMP_NUM_THREADS": "1",
        "TRITON_CACHE_DIR": str(_ROOT / ".cache" / "triton"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "GRADER_SYS_PATH": os.pathsep.join(
            p for p in sys.path if p and os.path.exists(p) and Path(p).resolve() != _ROOT
        ),
    }
    if device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    return env
