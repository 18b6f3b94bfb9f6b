"""`python -m tests.class_load N --course DIR`: grades a class of N here, and measures that.

Submissions are answers, known mistakes, stubs, broken files and hostile ones, each of one or two
problems. The run is killed (SIGKILL) at random points and gone on with; at the end nothing may have
been graded twice, no file may lack a result, and no process of a run may be left. Figures: files
per hour, how much faster than one after another, memory.
"""

import argparse
import collections
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import psutil

from classroom.folder import DATABASE
from classroom.grades import Status, read_standing
from classroom.grading import Settings, Task, grade
from classroom.store import Store
from grader.spec.problem import ROOT, load_problem, problem_ids
from tests.harness import model_answer
from tests.hostile.catalogue import CATALOGUE
from tests.mutants import MUTANTS

# How many of each there are among twenty.
SHARES = {"answer": 6, "mutant": 7, "stub": 3, "broken": 2, "hostile": 2}
_BROKEN = ("def (\n", "", "import os\n", "x = 1\n", "\xff" * 10)


def main() -> int:
    """Make the class, grade it, print figures; return 1 if something is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.class_load")
    parser.add_argument("count", type=int, metavar="N", help="submissions")
    parser.add_argument("--course", type=Path, required=True, metavar="DIR", help="a new folder")
    parser.add_argument("--only", default=",".join(problem_ids()), metavar="p02,p04")
    parser.add_argument("--device", default="cpu", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--jobs", type=int, metavar="N")
    parser.add_argument("--kills", type=int, default=3, metavar="N")
    parser.add_argument("--alone", type=int, default=3, metavar="N",
                        help="submissions to grade one after another, for the ratio")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--official", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    source = options.course / "submissions"
    shutil.rmtree(source, ignore_errors=True)
    random.seed(options.seed)
    kinds = make_class(options.count, source, options.only.split(","))
    runs = Runs(options, source)
    kill_after = sorted(random.sample(range(1, max(options.count, 2)), k=min(
        options.kills, max(options.count - 1, 1))))  # fmt: skip
    for lines in kill_after:
        runs.run(kill_at=lines)
    code = runs.run()
    figures = runs.figures() | {"submissions": kinds, "exit_code": code}
    figures |= one_after_another(options, source, figures["seconds_per_submission"])
    print(json.dumps(figures, indent=1))
    return int(bool(figures["wrong"]))


def make_class(count: int, folder: Path, problems: list[str]) -> dict[str, int]:
    """Write submissions s000, s001, ... and roster.csv; return how many there are of each kind."""
    order = [kind for kind, share in SHARES.items() for _ in range(share)]
    random.shuffle(order)
    kinds = [order[number % len(order)] for number in range(count)]
    for number, kind in enumerate(kinds):
        for problem in random.sample(problems, k=min(len(problems), random.choice((1, 2)))):
            path = folder / f"s{number:03}" / problem / load_problem(problem).file
            path.parent.mkdir(parents=True)
            path.write_bytes(_source(kind, problem, number))
    rows = "".join(f"s{n:03},Student {n},s{n:03}@example.org\n" for n in range(count))
    (folder.parent / "roster.csv").write_text(f"id,name,email\n{rows}missing,Nobody,\n")
    return dict(collections.Counter(kinds))


def _source(kind: str, problem: str, number: int) -> bytes:
    """Return a file of a kind; no two answers are the same bytes."""
    mark = f"\n# submission {number}\n".encode()
    if kind == "stub":
        return (ROOT / "problems" / problem / load_problem(problem).file).read_bytes()
    if kind == "broken":
        return random.choice(_BROKEN).encode("latin-1")
    answer = model_answer(problem)
    if kind == "mutant":
        edits = [m.edits for m in MUTANTS if m.problem == problem]
        fitting = [e for e in edits if all(answer.count(old) == 1 for old, *_ in e)]
        for old, new, *_ in random.choice(fitting):  # those of `given` are not the student's
            answer = answer.replace(old, new)
        return answer.encode() + mark
    if kind == "hostile":
        hostile = [
            entry.source
            for entry in CATALOGUE
            if entry.source and entry.problem in (None, problem) and not entry.gpu
        ]
        chosen = random.choice(hostile)
        data = chosen.encode("utf-8", "replace") if isinstance(chosen, str) else chosen
        return data.replace(b"RUN_FOLDER", b"/nowhere/at/all")
    return answer.encode() + mark


class Runs:
    """Runs of `grader class grade` over one class."""

    def __init__(self, options: argparse.Namespace, source: Path) -> None:
        self._course = options.course
        self._count = options.count
        self._command = [
            *(sys.executable, "-m", "grader", "class", "grade", str(source)),
            *("--roster", str(options.course / "roster.csv"), "--course", str(options.course)),
            *("--only", options.only, "--device", options.device),
            *("--jobs", str(options.jobs)) * bool(options.jobs),
            *["--official"] * options.official,
            *["--quick"] * options.quick,
        ]
        self._mark = uuid.uuid4().hex
        self._graded: collections.Counter[tuple[str, str]] = collections.Counter()
        self._wrong: list[str] = []
        self._seconds: list[float] = []
        self._lines: list[int] = []
        self._peak_bytes = 0

    def run(self, kill_at: int | None = None) -> int | None:
        """Run until the end, or until so many students are done; return the exit code."""
        began, lines = time.monotonic(), 0
        child = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=os.environ | {"CLASS_LOAD": self._mark},
            stdout=subprocess.DEVNULL if kill_at else None,
            stderr=subprocess.PIPE,
            text=True,
        )
        ended = threading.Event()
        watching = threading.Thread(target=self._watch, args=(child.pid, ended))
        watching.start()
        for line in child.stderr:
            lines += 1
            student, *words = line.split()
            for problem, what in itertools.pairwise(words):
                if problem in problem_ids() and what != "fault:":
                    self._graded[student, problem] += 1
            if kill_at and lines >= kill_at:
                child.send_signal(signal.SIGKILL)
                break
        child.wait()
        ended.set()
        watching.join()
        self._seconds.append(time.monotonic() - began)
        self._lines.append(lines)
        self._expect_gone()
        print(f"run: {lines} students, {self._seconds[-1]:.0f} s", file=sys.stderr)
        return child.returncode

    def _watch(self, pid: int, ended: threading.Event) -> None:
        while not ended.wait(1.0):
            try:
                family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
                pss = sum(getattr(p.memory_full_info(), "pss", 0) for p in family)
                self._peak_bytes = max(self._peak_bytes, pss)
            except psutil.Error:
                continue

    def _expect_gone(self) -> None:
        deadline = time.monotonic() + 60
        while left := self._left():
            if time.monotonic() > deadline:
                self._wrong.append(f"processes are left: {left}")
                return
            time.sleep(0.2)

    def _left(self) -> list[str]:
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self._mark.encode() in path.read_bytes():
                    found.append(path.parent.name)
            except OSError:
                continue
        return found

    def figures(self) -> dict:
        """Return what was measured, and what is `wrong`."""
        twice = [key for key, count in self._graded.items() if count > 1]
        if twice:
            self._wrong.append(f"graded twice: {twice}")
        with Store(self._course / DATABASE) as store:
            found = read_standing(store).grades.values()
            faults = [(g.student, g.problem, g.reason) for g in found if g.status is Status.FAULT]
            pending = [(g.student, g.problem) for g in found if g.status is Status.PENDING]
            times_failed = collections.Counter(fault.key for fault in store.faults())
        if pending:
            self._wrong.append(f"not graded: {pending}")
        if times_failed and max(times_failed.values()) > 3:
            self._wrong.append("a file was tried more than three times")
        total = sum(self._seconds)
        return {
            "wrong": self._wrong,
            "faults": faults,
            "runs": [{"students": n, "seconds": round(s, 1)}
                     for n, s in zip(self._lines, self._seconds, strict=True)],
            "files_graded": sum(self._graded.values()),
            "files_per_hour": round(3600 * sum(self._graded.values()) / total, 1),
            "seconds_per_submission": round(total / self._count, 2),
            "peak_memory_mib": self._peak_bytes >> 20,
        }  # fmt: skip


def one_after_another(options: argparse.Namespace, source: Path, seconds: float) -> dict:
    """Grade a sample with all cores, one after another; return the ratio."""
    settings = Settings(device=options.device, official=options.official, quick=options.quick)
    sample = random.sample(sorted(source.iterdir()), k=min(options.alone, options.count))
    if not sample:
        return {}
    began = time.monotonic()
    for student in sample:
        files = {p.parent.name: p.read_bytes() for p in student.rglob("*.py")}
        grade(Task(files, settings))
    alone = (time.monotonic() - began) / len(sample)
    return {"seconds_one_after_another": round(alone, 2), "times_faster": round(alone / seconds, 2)}


if __name__ == "__main__":
    sys.exit(main())
