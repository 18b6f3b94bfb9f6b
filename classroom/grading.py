"""Grades the files of one student in a process of its own; runs on whatever machine a worker is.

All that a grading needs is in its `Task`, all that it came to in its `Outcome`: nothing is shared
with the machine that asked for it but the checkout and the packages.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from classroom.leash import leash
from grader.base import scratch
from grader.base.regular_file import open_regular
from grader.isolate import inspection, reaper
from grader.spec.environment import EnvironmentFault, probe
from grader.spec.grade_record import Environment
from grader.spec.problem import ROOT, load_problem

MAX_RECORD_BYTES = 32 * 2**20
# The judge's own limits end a grading long before: total_s of problem.toml is 180 s, and a problem
# waits at most 900 s for its turn to be measured.
LIMIT_S = 1800.0
_START_S = 120.0
_GRACE_S = 20.0
_TAIL_BYTES = 4096


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to grade; `calibration` is the text of one, `limit_s` the most seconds per problem."""

    device: str = "auto"
    official: bool = False
    quick: bool = False
    calibration: str | None = None
    limit_s: float = LIMIT_S

    def most_s(self, files: int) -> float:
        """Return after how many seconds a grading of so many files is ended."""
        return _START_S + self.limit_s * files


@dataclasses.dataclass(frozen=True)
class Task:
    """The files to grade, by problem, and how."""

    files: Mapping[str, bytes]
    settings: Settings


@dataclasses.dataclass(frozen=True)
class GradingOutcome:
    """How a grading ended: `record` is the JSON it wrote, as far as it came.

    `exit_code` is None where it was killed at its limit, negative where a signal ended it.
    """

    exit_code: int | None
    record: str | None
    last_words: str = ""
    seconds: float = 0.0


def look(settings: Settings) -> Environment | str:
    """Return what machine this is, or why nothing can be graded on it."""
    try:
        machine = probe(settings.device)
        if settings.official:
            inspection.inspect(gpu=machine.device_uuid)
    except EnvironmentFault as fault:
        return str(fault)
    except inspection.JailFault as fault:
        return f"no submission can be jailed on this machine: {fault}"
    return machine


def grade(task: Task) -> GradingOutcome:
    """Grade a task's files; no exception comes out of it but for a fault of this machine.

    Raises:
        OSError: no folder or process can be made.
    """
    reaper.adopt_orphans()
    started = time.monotonic()
    folder = scratch.folder() / f"task-{os.urandom(8).hex()}"
    try:
        submission = folder / "submission"
        for problem, data in task.files.items():
            path = submission / problem / load_problem(problem).file
            path.parent.mkdir(parents=True)
            path.write_bytes(data)
        record = folder / "record.json"
        if task.settings.calibration is not None:
            (folder / "calibration.json").write_text(task.settings.calibration, encoding="utf-8")
        limit_s = task.settings.most_s(len(task.files))
        exit_code, text, last_words = _run(command(task, folder), record, limit_s)
        return GradingOutcome(exit_code, text, last_words, time.monotonic() - started)
    finally:
        scratch.remove_tree(folder)


def command(task: Task, folder: Path) -> list[str]:
    """Return the command that grades the submission in `folder` and writes its record there."""
    settings = task.settings
    given = [sys.executable, "-m", "grader", "grade", "--exit-zero", "--submission"]
    given += [str(folder / "submission"), "--only", ",".join(task.files)]
    given += ["--json", str(folder / "record.json"), "--device", settings.device]
    given += ["--official"] * settings.official + ["--quick"] * settings.quick
    if settings.calibration is not None:
        given += ["--calibration", str(folder / "calibration.json")]
    return given


def _run(command: list[str], record: Path, limit_s: float) -> tuple[int | None, str | None, str]:
    """Run a grading in a process group of its own; return its exit code, record and last words.

    At the limit the record is read before anything is ended: what an interrupted grading writes
    has problems in it that are half done.
    """
    child = reaper.start(
        [*leash(signal.SIGTERM), *command],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    exit_code: int | None = None
    try:
        last_words = _listen(child, time.monotonic() + limit_s)
        exit_code = child.poll()
        return exit_code, _read(record), last_words
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, number if child.poll() is None else signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_GRACE_S)
        child.stderr.close()
        reaper.ended(child)


def _listen(child: subprocess.Popen, deadline: float) -> str:
    """Wait for a child's end or the deadline; return the end of what it wrote."""
    stream, tail = child.stderr, b""
    os.set_blocking(stream.fileno(), False)
    while time.monotonic() < deadline:
        gone = child.poll() is not None
        ready, _, _ = select.select([stream], [], [], 0.0 if gone else 0.5)
        chunk = stream.read(65536) if ready else None
        tail = (tail + (chunk or b""))[-_TAIL_BYTES:]
        if gone and not chunk:
            break
        if chunk == b"":  # all have closed it; the child may still be at work
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
            break
    return tail.decode("utf-8", "replace")


def _read(path: Path) -> str | None:
    """Return a file's text; None where there is none, or no regular file, or too large a one."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        with open_regular(path) as file:
            data = file.read(MAX_RECORD_BYTES + 1)
            return data.decode("utf-8") if len(data) <= MAX_RECORD_BYTES else None
    return None
