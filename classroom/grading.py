"""Grades the files of one student in a separate process, on the machine of a worker.

A `Task` has all input of a grading, a `GradingOutcome` all its output: the worker's machine shares
only the checkout and the packages with the one that asked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from classroom.leash import leash
from classroom.records import FileResult, Key, now
from grader.base import scratch
from grader.base.regular_file import open_regular
from grader.base.text import clean
from grader.isolate import inspection, reaper
from grader.judge.results import NOT_REACHED
from grader.spec.environment import EnvironmentFault, probe
from grader.spec.grade_record import Environment, GradeRecord, ProblemResult, Verdict
from grader.spec.problem import ROOT, load_problem

MAX_RECORD_BYTES = 32 * 2**20
# The judge's own limits end a grading long before: total_s in problem.toml is 180 s, and a problem
# waits at most 900 s for its measurement.
LIMIT_S = 1800.0
_START_S = 120.0
_GRACE_S = 20.0
_TAIL_BYTES = 4096


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to grade: `calibration` is its JSON text, `limit_s` the most seconds per problem."""

    device: str = "auto"
    official: bool = False
    quick: bool = False
    calibration: str | None = None
    limit_s: float = LIMIT_S

    def most_s(self, files: int) -> float:
        """Return after how many seconds a grading of `files` files is killed."""
        return _START_S + self.limit_s * files


@dataclasses.dataclass(frozen=True)
class Task:
    """The files to grade, by problem, and how."""

    files: Mapping[str, bytes]
    settings: Settings


@dataclasses.dataclass(frozen=True)
class GradingOutcome:
    """How a grading ended: `record` is the JSON it had written by then.

    `exit_code` is None if the grading was killed at its limit, negative if a signal ended it.
    """

    exit_code: int | None
    record: str | None
    last_words: str = ""
    seconds: float = 0.0


def look(settings: Settings) -> Environment | str:
    """Return this machine's environment, or why nothing can be graded on it."""
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
    """Grade a task's files; raise only for a fault of this machine.

    Raises:
        OSError: a folder or a process cannot be made.
    """
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
    """Run a grading in a new session; return its exit code, record and the end of its output.

    At the limit the record is read before the kill: the one that an interrupted grading writes
    contains unfinished problems.
    """
    with tempfile.TemporaryFile(dir=scratch.folder()) as said:
        child = reaper.start(
            [*leash(signal.SIGTERM), *command],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(limit_s)
            exit_code, text = child.poll(), _read(record)
            said.seek(max(0, os.fstat(said.fileno()).st_size - _TAIL_BYTES))
            return exit_code, text, said.read().decode("utf-8", "replace")
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, number if child.poll() is None else signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_GRACE_S)
            reaper.ended(child)


def _read(path: Path) -> str | None:
    """Return the text of a regular file; None if it is missing, too large or not UTF-8."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        with open_regular(path) as file:
            data = file.read(MAX_RECORD_BYTES + 1)
            return data.decode("utf-8") if len(data) <= MAX_RECORD_BYTES else None
    return None


BUSY = "not measured: the machine is busy"
_WORDS = 300
_USAGE = 2  # the exit code for wrong options, or a broken problem set


@dataclasses.dataclass(frozen=True)
class Judged:
    """The results of a grading, and by key the reason why there is none."""

    results: tuple[FileResult, ...] = ()
    faults: Mapping[Key, str] = dataclasses.field(default_factory=dict)


def judged(
    keys: Mapping[str, Key], outcome: GradingOutcome, machine: Environment, *, official: bool
) -> Judged:
    """Return the results of a grading of `keys`, by problem, on a machine like `machine`.

    A problem counts if it was graded completely, from the bytes of its key, on the expected device,
    and without a fault of the judge. Of an incomplete record the finished problems count.
    """
    ending = _ending(outcome)
    if outcome.record is None:
        return all_faults(keys, ending or "it wrote no record")
    try:
        record = GradeRecord.model_validate_json(outcome.record)
    except ValidationError as error:
        return all_faults(keys, f"its record is not valid: {error.errors()[0]['msg']}; {ending}")
    here = record.environment
    if (here.device, here.device_name) != (machine.device, machine.device_name):
        got = f"graded on {clean(here.device_name, 60)}"
        return all_faults(keys, f"{got}, expected {clean(machine.device_name, 60)}")
    if record.mode != ("official" if official else "local"):
        return all_faults(keys, f"graded in mode {record.mode}")
    found = {problem.id: problem for problem in record.problems}
    graded = {"mode": record.mode, "seed": record.seed, "environment": here, "graded_at": now()}
    results, faults = [], {}
    for problem, key in keys.items():
        result = found.get(problem)
        why = _no_result(result, key) if result else "it is not in the record"
        if why or result is None:
            faults[key] = clean("; ".join(filter(None, (why, ending))), _WORDS)
        else:
            results.append(FileResult(key=key, result=result, **graded))
    return Judged(tuple(results), faults)


def all_faults(keys: Mapping[str, Key], text: str) -> Judged:
    """Return `text` as the fault of all `keys`."""
    return Judged(faults=dict.fromkeys(keys.values(), clean(text, _WORDS)))


def refusal(outcome: GradingOutcome) -> str | None:
    """Return why the judge refused to start; None if it started."""
    return _last_line(outcome) if outcome.exit_code == _USAGE and not outcome.record else None


def _last_line(outcome: GradingOutcome) -> str:
    lines = outcome.last_words.strip().splitlines()
    return clean(lines[-1], _WORDS).removeprefix("grader: ") if lines else "no message"


def _ending(outcome: GradingOutcome) -> str:
    """Return how a grading ended, "" if it ended normally."""
    if outcome.exit_code is None:
        return f"the grading took longer than its limit ({outcome.seconds:.0f} s)"
    if outcome.exit_code < 0:
        return f"the grading was killed (signal {-outcome.exit_code})"
    if outcome.exit_code:
        return f"the grading ended with exit code {outcome.exit_code}: {_last_line(outcome)}"
    return ""


def _no_result(result: ProblemResult, key: Key) -> str | None:
    """Return why a problem of a record does not count; None if it does."""
    if result.source_sha256 not in (None, key.sha256):
        return "other bytes were graded"
    parts = [(c.verdict, c.reason) for c in result.components.values()]
    parts += [(c.verdict, c.message.headline if c.message else None) for c in result.checks]
    parts.append((result.verdict, result.message.headline if result.message else None))
    for verdict, reason in parts:
        if reason == NOT_REACHED:
            return "it was not graded to its end"
    for verdict, reason in parts:
        if verdict is Verdict.INTERNAL and reason:
            return f"fault of the judge: {reason}"
        if verdict is Verdict.NOT_MEASURED and reason and reason.startswith(BUSY):
            return reason
    return "fault of the judge" if any(v is Verdict.INTERNAL for v, _ in parts) else None
