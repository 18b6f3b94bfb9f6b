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
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grader.base import scratch
from grader.isolate import forks, jail, reaper, usage, warden
from grader.spec.protocol import IMPORTED, REPLY, STARTED, Ended, Reply

_WORKER = Path(__file__).with_name("worker.py")
_ROOT = _WORKER.parent.parent.parent
_OUTPUT_TAIL_BYTES = 16 * 1024
_FRAME = re.compile(r'  File "([^"\n]*)", line \d+,? in ')  # of faulthandler, of a traceback
_BELOW_FRAME = ("    ", "  [Previous line repeated")
_COMPILER = b"/triton/compiler/"  # a folder that is in a frame while Triton compiles
_WARNING = re.compile(r"([^:\n]+):\d+: \w*Warning: ")  # Python's; a line of source follows
# Around the whole kernel in PTX, which Triton prints when the assembler refuses it.
_DUMP_RULE = "\n" + 64 * "=" + "\n"
_DUMP_END = "\nplease share the reproducer above with Triton project.\n"
_MANY_TIMES = 5  # a line that is so often in a dump's hundred frames is of a recursive function
_LIVENESS_S = 0.5
PATIENCE = 5.0  # a call may take so many times its limit while it waits for a core
_DUMP_S = 1.0
_SIGNALLED = 128  # bubblewrap's exit status for a worker that signal N ended is that plus N
START_TIMEOUT_S = 120.0  # the interpreter and torch, perhaps from a cold network disk
IMPORT_TIMEOUT_S = 60.0  # the submitted file
MEMORY_LIMIT_BYTES = 4 * 2**30  # what a submission may take on the CPU beyond torch itself
_THREAD_BYTES = 256 * 2**20  # address space, hardly memory: a stack and malloc's arena
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
        count_launches: bool = False,
        threads: int = 1,
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
        self.filename = filename
        self._folder = Path(tempfile.mkdtemp(prefix="submission-", dir=scratch.folder()))
        path = self._folder / filename
        path.write_bytes(source)
        self._tail = bytearray()
        self._imported, self._held = False, held
        self._started: Reply | Ended | None = None
        self.starved_s = 0.0  # how long the last request waited for a core, if that is counted
        self._load_nonce = secrets.randbits(63)
        reaper.adopt_orphans()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._channel = ours
        environment = _environment(device, threads, self._folder)
        environment |= {"GRADER_HELD": "1" * held, "GRADER_DIFFERENTIATES": "1" * differentiates}
        kernels = self._folder / kernels if kernels else jail.kernels()
        if kernels:
            environment["TRITON_CACHE_DIR"] = str(kernels)
        self._jailed = jail.kernels() is not None
        self._first = 0  # process 1 of the jail
        self._warden: warden.Warden | None = None
        forked = None
        if not fresh and not self._jailed:
            forked = forks.start(self._folder, environment, theirs.fileno())
        command = [
            *(sys.executable, "-I", "-B", "-u", "-X", "utf8"),
            *(str(_WORKER), str(theirs.fileno())),
        ]
        if self._jailed:
            gpu = jail.gpu() if device == "cuda" else None
            environment |= jail.named_to_cuda(gpu) if gpu else {}
            jail.let_in(self._folder)
            path.chmod(0o644)
            command = jail.enclose(command, self._folder, [path, _WORKER], gpu=gpu)
        self._process = forked or reaper.start(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            cwd=self._folder,
            env=environment,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        self._pid = self._process.pid
        assert self._process.stdout is not None
        self._stdout = self._process.stdout
        os.set_blocking(self._stdout.fileno(), False)
        self._poll = select.poll()
        self._poll.register(self._channel, select.POLLIN)
        self._poll.register(self._stdout, select.POLLIN)
        settings |= {
            "path": str(path),
            "entry": entry,
            "device": device,
            "role": role,
            "count_launches": count_launches,
            "memory_limit_bytes": MEMORY_LIMIT_BYTES + (threads - 1) * _THREAD_BYTES,
            "nonce": self._load_nonce,
            "held": held,
        }
        self._settings = json.dumps(settings).encode()
        if not held:
            self.warm_up()

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
        if not self._imported:
            self._imported = True
            self._receive(IMPORTED, START_TIMEOUT_S)

    def wait_for_start(self) -> Reply | Ended:
        """Wait until the worker is about to import the submission, or has ended."""
        self.warm_up()
        self._started = self._started or self._receive(STARTED, START_TIMEOUT_S)
        return self._started

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
        return self._receive(self._load_nonce, IMPORT_TIMEOUT_S)

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
        self._tail.clear()
        try:
            socket.send_fds(self._channel, [packet], list(fds))
        except OSError:
            return self._ended(timeout=False, waited_s=0.0)
        return self._receive(nonce, timeout_s, patience)

    def _receive(self, nonce: int, timeout_s: float, patience: float = 1.0) -> Reply | Ended:
        start = time.monotonic()
        self.starved_s = 0.0
        waiting = None
        while True:
            self.starved_s += waiting.next_s() if waiting else 0.0
            waited_s = time.monotonic() - start - self.starved_s
            if waiting is None and patience > 1.0 and waited_s >= _LIVENESS_S:  # most end before
                waiting = usage.Waiting(self.tree())
            if waited_s >= timeout_s:
                return self._ended(timeout=True, waited_s=timeout_s)
            if waited_s + self.starved_s >= patience * timeout_s:
                ended = self._ended(timeout=True, waited_s=waited_s)
                return dataclasses.replace(ended, starved_s=self.starved_s)
            dead = self._process.poll() is not None  # asked first: all that it sent has arrived
            look_s = 0.0 if dead else min(timeout_s - waited_s, _LIVENESS_S)
            events = dict(self._poll.poll(1000 * look_s))
            if self._stdout.fileno() in events:
                self._read_output()
            if self._channel.fileno() in events:
                try:
                    packet = self._channel.recv(REPLY.size + 1)
                except OSError:
                    packet = b""
                if not packet:
                    return self._ended(timeout=False, waited_s=waited_s)
                reply = Reply.unpack(packet)
                if reply is not None and reply.nonce == nonce:
                    self._read_output()
                    return dataclasses.replace(reply, text=self._shown(reply.text))
                # Anything else on the channel is not an answer to this request: ignore it.
            elif dead:  # a child of the worker's holds the channel open
                return self._ended(timeout=False, waited_s=waited_s)

    def _ended(self, *, timeout: bool, waited_s: float) -> Ended:
        if timeout:  # the worker's fault handler prints where it is, then it dies
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_DUMP_S)
        code = self._process.poll()
        self._read_output()
        self.kill()
        lines = self._last_lines()
        line, recursive = (lines or [0])[0], max(map(lines.count, lines), default=0) >= _MANY_TIMES
        if timeout:
            compiling = _COMPILER in bytes(self._tail).rpartition(b"Fatal Python error")[2]
            self._tail[:] = self._tail.replace(b"Fatal Python error: Aborted", b"Stopped here:")
            how = {"recursive": recursive, "compiling": compiling}
            return Ended(timeout=True, line=line, waited_s=waited_s, **how)
        name = None
        if self._jailed and code is not None and code > _SIGNALLED:
            code = _SIGNALLED - code
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        over = self._warden.over if self._warden else None
        if over is not None:
            jail.forget_kernels()
        return Ended(False, code, name, line, waited_s, recursive=recursive, over=over)

    def _last_lines(self) -> list[int]:
        """Return the submission's lines in the last dump of a fatal signal, the innermost first."""
        pattern = rf'File "[^"\n]*{re.escape(self.filename)}"(?:, line |:)(\d{{1,7}})\b'
        output = self.output()
        fatal = output.rfind("Fatal Python error")
        return [int(n) for n in re.findall(pattern, output[fatal:])] if fatal >= 0 else []

    def _read_output(self) -> None:
        """Take what lies in the pipe, a megabyte at most: the worker may write without end."""
        for _ in range(16):
            try:
                chunk = os.read(self._stdout.fileno(), 65536)
            except BlockingIOError:
                return
            if not chunk:
                with contextlib.suppress(KeyError):
                    self._poll.unregister(self._stdout)
                return
            self._tail += chunk
            del self._tail[:-_OUTPUT_TAIL_BYTES]

    def output(self) -> str:
        """Return the tail of what the worker printed since the current request began."""
        lines = self._shown(bytes(self._tail).decode("utf-8", "replace")).splitlines(keepends=True)
        return "".join(self._own(lines)).strip("\n")

    def _own(self, lines: list[str]) -> Iterator[str]:
        """Yield lines but for frames and warnings of other files, and the source below them."""
        foreign, below = False, _BELOW_FRAME
        for line in lines:
            frame, warning = _FRAME.match(line), _WARNING.match(line)
            place = frame or warning
            if place:
                foreign = place[1] != self.filename
                below = _BELOW_FRAME if frame else ("  ",)
            elif not line.startswith(below):
                foreign = line.startswith("Extension modules:")
            if not foreign:
                yield line

    def _shown(self, text: str) -> str:
        """Return `text` without what means nothing to a student: temporary folder, PTX."""
        before, end, after = text.rpartition(_DUMP_END)
        if end:  # if the tail has lost the dump's beginning, all before its end belongs to it
            head, _, dump = before.removesuffix(_DUMP_RULE[:-1]).partition(_DUMP_RULE)
            text = (head + "\n" if dump else "") + after
        return text.replace(str(self._folder) + os.sep, "")

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
        self._stdout.close()
        scratch.remove_tree(self._folder)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
    environment = _environment("cpu", 1, scratch.folder())
    wanted = {"GRADER_DIFFERENTIATES": differentiate, "GRADER_JUDGES": judges}
    return environment | {name: "1" for name, is_wanted in wanted.items() if is_wanted}


def _environment(device: str, threads: int, folder: Path) -> dict[str, str]:
    env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    env |= {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "OMP_NUM_THREADS": str(threads),
        "TRITON_CACHE_DIR": str(_ROOT / ".cache" / "triton"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "GRADER_SYS_PATH": os.pathsep.join(
            p for p in sys.path if p and os.path.exists(p) and Path(p).resolve() != _ROOT
        ),
    }
    if device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    return env
