"""The judge's own child processes: started in groups of their own, stopped together on Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from grader.manifest import ROOT

GRACE_S = 8.0


class Children:
    """Starts trusted Python modules and reads the JSON lines they write on a pipe of their own."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen] = set()
        self._lock = threading.Lock()

    def events(
        self, module: str, arguments: list[str], deadline_s: float, outcome: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """Run `python -m module arguments --events-fd=N`; yield its events until it ends.

        Afterwards `outcome` holds `output` (what it printed), `timed_out` and `exit_code`.
        """
        read, write = os.pipe()
        with tempfile.TemporaryFile() as log:
            child = subprocess.Popen(
                [sys.executable, "-m", module, *arguments, f"--events-fd={write}"],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(write,),
                start_new_session=True,
                env=_trusted_environment(),
            )
            os.close(write)
            with self._lock:
                self._running.add(child)
            try:
                with os.fdopen(read, "rb", buffering=0) as stream:
                    yield from _lines(stream, time.monotonic() + deadline_s, outcome)
                if outcome.get("timed_out"):
                    _signal_group(child, signal.SIGKILL)
                child.wait()
            finally:
                _signal_group(child, signal.SIGKILL)
                child.wait()
                with self._lock:
                    self._running.discard(child)
                log.seek(0)
                outcome["output"] = log.read().decode("utf-8", "replace")
                outcome["exit_code"] = child.returncode

    def stop(self) -> None:
        """Interrupt every child (a pytest still writes its report), then end what is left."""
        with self._lock:
            children = list(self._running)
        for child in children:
            _signal_group(child, signal.SIGINT)
        deadline = time.monotonic() + GRACE_S
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.1, deadline - time.monotonic()))
            _signal_group(child, signal.SIGKILL)


def _lines(stream: Any, deadline: float, outcome: dict[str, Any]) -> Iterator[dict[str, Any]]:
    pending = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            outcome["timed_out"] = True
            return
        ready, _, _ = select.select([stream], [], [], min(left, 1.0))
        if not ready:
            continue
        chunk = stream.read(65536)
        if not chunk:
            return
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            yield json.loads(line)


def _signal_group(child: subprocess.Popen, number: int) -> None:
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)


def _trusted_environment() -> dict[str, str]:
    """The environment of the judge's own processes: nothing that changes pytest or Triton."""
    hidden = ("PYTEST_", "TRITON_", "PYTHONSTARTUP", "PYTHONINSPECT")
    env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return env | {"PYTHONDONTWRITEBYTECODE": "1"}
