"""Grades hostile submissions, several in a run, and lists what the judge should not have allowed.

Each run has a copy of this checkout, so that its files can be counted afterwards, with less
patience than the real one: a call that does not come back costs seconds, not half a minute.
"""

import contextlib
import dataclasses
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from grader.spec.grade_record import CheckResult, GradeRecord, ProblemResult
from grader.spec.problem import ROOT, load_problem
from tests.hostile.entry import SEED, Hostile, answer

HONEST = ("p01", "p02", "p03")  # in each run the first that is free has an honest answer
_ANY = ("p04", "p05", "p06", "p07", "p08", "p09")
_PARTS = ("grader", "reference", "problems", "solutions")
# Seconds of one call, of calls that do not come back, of all calls. An answer with tricks loses
# some in each; an honest one has time enough on a busy machine.
_LIMITS = {"call_s": 4, "lost_s": 8, "total_s": 20}
_TRICK_LIMITS = {"call_s": 3, "lost_s": 90, "total_s": 180}
_HONEST_S = 8.0  # an honest answer beside a hostile one, on two idle cores
_GPU_NOISE_BYTES = 64 * 2**20
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclasses.dataclass
class Run:
    """What came of grading `entries` side by side with honest answers; `faults` are sentences."""

    entries: dict[str, Hostile]
    honest: tuple[str, ...]
    record: GradeRecord | None
    seconds: float
    faults: list[str]

    @property
    def busy(self) -> float:
        """How many times as long the honest answers took as on two idle cores, 1 at the least."""
        times = (self.problem(id).duration_s / _HONEST_S for id in self.honest)
        return min(max([1.0, *times]), 4.0)

    def problem(self, problem_id: str) -> ProblemResult:
        """The result of one problem."""
        assert self.record is not None
        return next(p for p in self.record.problems if p.id == problem_id)


def packed(entries: Iterable[Hostile]) -> list[dict[str, Hostile]]:
    """Share entries among as few runs as possible, one to a problem; an honest answer in each."""
    runs: list[dict[str, Hostile]] = []
    entries = sorted(entries, key=lambda entry: (entry.problem is None, kind(entry)))
    for entry in entries:
        wanted = [entry.problem] if entry.problem else list(_ANY)
        for run in runs:
            free = [p for p in wanted if p not in run]
            alike = all(kind(e) == kind(entry) for e in run.values())
            if free and alike and set(HONEST) - run.keys() - {free[0]}:
                run[free[0]] = entry
                break
        else:
            runs.append({wanted[0]: entry})
    return runs


def kind(entry: Hostile) -> tuple[bool, bool, bool, bool]:
    """What has to be the same for all entries of a run."""
    return entry.measured, entry.policy, entry.jailed, entry.gpu


def grade(entries: dict[str, Hostile], folder: Path, *, timeout_s: float = 400.0) -> Run:
    """Grade `entries` by problem, in `folder`; look at record, report, neighbours, leftovers."""
    folder = folder.resolve()
    checkout, submission, scratch = folder / "checkout", folder / "submission", folder / "tmp"
    honest = tuple(p for p in HONEST if p not in entries)[:1]
    measured = any(entry.measured for entry in entries.values())
    policy = any(entry.policy for entry in entries.values())
    jailed = any(entry.jailed for entry in entries.values())
    gpu = any(entry.gpu for entry in entries.values())
    _copy_checkout(checkout, entries)
    sent = {id: Hostile("an honest answer", answer(id)) for id in honest} | entries
    hashes = {id: _put(submission, id, entry) for id, entry in sent.items()}
    scratch.mkdir()
    before, free_bytes = _files(checkout), _free_bytes() if gpu else 0
    shared = set(os.listdir("/dev/shm"))
    record_path = folder / "record.json"
    start = time.monotonic()
    code, out, err = _run(
        [
            *(sys.executable, "-m", "grader", "grade", "--submission", str(submission)),
            *("--only", ",".join([*honest, *entries]), "--seed", SEED),
            *("--device", "cuda" if gpu else "cpu"),
            *("--json", str(record_path), *([] if measured else ["--quick"])),
            *([] if policy else ["--no-policy"]),
            *(["--jail"] if jailed else []),
        ],
        cwd=checkout,
        env=os.environ | {"TMPDIR": str(scratch), "PYTHONDONTWRITEBYTECODE": "1"},
        timeout_s=timeout_s,
    )
    run = Run(entries, honest, None, time.monotonic() - start, [])
    run.faults += _left_behind(folder, scratch)
    left = sorted(set(os.listdir("/dev/shm")) - shared)
    run.faults += [f"{name} was left in /dev/shm" for name in left if not name.startswith("sem.")]
    if gpu and _free_bytes() < free_bytes - _GPU_NOISE_BYTES:
        run.faults.append(f"{free_bytes - _free_bytes()} bytes of GPU memory were not given back")
    run.faults += [f"{path} was left in the checkout" for path in sorted(_files(checkout) ^ before)]
    try:
        run.record = GradeRecord.model_validate_json(record_path.read_bytes())
    except (OSError, ValueError) as error:
        run.faults.append(f"no valid record: {error}; exit code {code}; {err[-2000:]}")
        return run
    run.faults += _faults_of_run(run, code, out, err)
    for result in run.record.problems:
        if hashes[result.id] and result.source_sha256 not in (None, hashes[result.id]):
            run.faults.append(f"{result.id}: got the hash of another file")
    for problem_id, entry in entries.items():
        run.faults += [f"{entry.name}: {fault}" for fault in _faults(run, problem_id, entry)]
    return run


def _copy_checkout(checkout: Path, entries: dict[str, Hostile]) -> None:
    for part in _PARTS:
        shutil.copytree(ROOT / part, checkout / part, symlinks=True)
    shutil.copy(ROOT / "pyproject.toml", checkout)
    for path in checkout.glob("problems/p*/problem.toml"):
        text = path.read_text("utf-8")
        entry = entries.get(path.parent.name)
        limits = (_TRICK_LIMITS if entry.tricks or entry.measured else _LIMITS) if entry else {}
        for name, seconds in limits.items():
            text, count = re.subn(rf"(?m)^{name} = .*$", f"{name} = {seconds}", text)
            assert count == 1, f"{path}: no {name}"
        if path.parent.name == "p03" or (path.parent.name in HONEST and not entry):
            # Of an honest answer one case of each check.
            text = re.sub(r"(?m)^(cases = \[\n.*\n)(?:  .*\n)+", r"\1", text)
        if path.parent.name == "p01":  # what is timed on a CPU, with two heads for eight
            timed = 'device = "cpu"\nbatch = 1\nnum_q_heads = '
            assert f"{timed}8\n" in text
            text = text.replace(f"{timed}8\n", f"{timed}2\n")
        path.write_text(text, "utf-8")


def _put(submission: Path, problem_id: str, entry: Hostile) -> str | None:
    """Put a file into the submission; return the hash of what is to be graded."""
    problem = load_problem(problem_id)
    path = submission / problem_id / problem.file
    path.parent.mkdir(parents=True)
    if entry.make is not None:
        entry.make(path)
        return None
    source = entry.source
    if isinstance(source, str):
        source = source.replace("ENTRY", problem.entry)
        source = source.replace("RUN_FOLDER", os.path.realpath(submission.parent))
        source = source.encode("utf-8", "surrogatepass")
    path.write_bytes(source)
    return hashlib.sha256(source).hexdigest()


def _run(command: list[str], *, timeout_s: float, **options) -> tuple[int | None, str, str]:
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        **options,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # it ends its children
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        out, err = process.communicate()
        return None, out, err
    return process.returncode, out, err


def _faults_of_run(run: Run, code: int | None, out: str, err: str) -> list[str]:
    assert run.record is not None
    faults = []
    if code not in (0, 1):
        faults.append(f"exit code {code}, expected 0 or 1")
    if "Traceback" in err:
        faults.append(f"a traceback on standard error: {err[-1500:]}")
    if found := _CONTROL.search(out + err):
        faults.append(f"the report has the character {found[0]!r}")
    points = f"{run.record.totals.earned:g} of {run.record.totals.available:g}"
    if points not in out:
        faults.append(f"the report does not say {points}")
    for problem_id in run.honest:
        points = run.problem(problem_id).points
        if points.earned < points.available or not points.available:
            got = f"{points.earned:g} of {points.available:g}"
            faults.append(f"the honest answer of {problem_id} came to {got} points")
    return faults


def _faults(run: Run, problem_id: str, entry: Hostile) -> list[str]:
    result = run.problem(problem_id)
    faults = []
    verdicts = [result.verdict, *(c.verdict for c in result.components.values())]
    if "internal" in [*verdicts, *(check.verdict for check in result.checks)]:
        faults.append(f"internal: {_headlines(result, 'internal')}")
    if entry.verdicts and result.verdict not in entry.verdicts:
        headlines = _headlines(result, result.verdict)
        faults.append(f"{result.verdict}, expected {' or '.join(entry.verdicts)}: {headlines}")
    if not entry.tricks and result.points.earned > entry.points:
        faults.append(f"{result.points.earned:g} points, at most {entry.points:g} were earned")
    allowed_s = entry.limit_s * run.busy
    if result.duration_s > allowed_s:
        faults.append(f"{result.duration_s:.1f} s, expected at most {allowed_s:.0f} s")
    tricks = {trick.check: trick for trick in entry.tricks}
    products = {c.id for c in load_problem(problem_id).checks if c.judges == "products"}
    for check in result.checks if tricks else ():
        trick = tricks.get(check.id)
        seen = entry.policy or check.id not in products  # who audits operators counts products
        verdicts = trick.verdicts if trick else ("pass" if seen else "not-measured",)
        name = trick.name if trick else f"no trick ({check.id})"
        if check.verdict not in verdicts:
            told = _told(check)
            faults.append(f"{name}: {check.verdict}, expected {' or '.join(verdicts)}: {told}")
        if check.points.earned and check.verdict != "pass":
            faults.append(f"{name}: earned {check.points.earned:g} points")
    return faults


def _told(check: CheckResult) -> str:
    return check.message.headline if check.message else "no message"


def _headlines(result: ProblemResult, verdict: str) -> list[str]:
    messages = [result.message, *(c.message for c in result.checks if c.verdict == verdict)]
    texts = [message.headline for message in messages if message]
    texts += [c.reason for c in result.components.values() if c.verdict == verdict and c.reason]
    return texts[:3]


def _free_bytes() -> int:
    import torch

    return torch.cuda.mem_get_info()[0]


def _files(checkout: Path) -> set[str]:
    """Files of the checkout, Triton's cache apart."""
    found = set()
    for parent, folders, files in os.walk(checkout):
        folders[:] = [name for name in folders if name != ".cache"]
        found |= {os.path.relpath(os.path.join(parent, name), checkout) for name in files}
    return found


def _left_behind(folder: Path, scratch: Path) -> list[str]:
    """Processes of the run that still live, and what lies in its temporary folder."""
    faults = []
    for pid in _processes_of(folder):
        faults.append(f"process {pid} was left behind: {_command_of(pid)}")
    for number in (signal.SIGSTOP, signal.SIGKILL) if faults else ():
        for pid in _processes_of(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    for path in sorted(scratch.iterdir()):
        if not path.name.endswith(".lock"):
            faults.append(f"{path.name} was left in the temporary folder")
    return faults


def _processes_of(folder: Path) -> list[int]:
    """Living processes that have `folder` in their environment or work in it."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            known = os.fsencode(folder) in (path / "environ").read_bytes()
            known = known or str(folder) in os.readlink(path / "cwd")
            if known and state not in "ZX":
                found.append(int(path.name))
    return found


def _command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    return "?"
