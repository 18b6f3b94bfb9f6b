"""`python -m tests.class_on_gpus N --course DIR`: grades the model answers N times on all GPUs.

A class of N students, all with the right files, graded officially by `grader class grade`. Figures:
gradings per hour, how long each GPU was had for measuring and how busy its driver says it was, and
how points and speed-ups differ from student to student. Run it with `--gpus 0` and with all of them
for what a second GPU brings. Ctrl-C or SIGTERM keeps what was graded; the same command goes on.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from classroom.folder import DATABASE
from classroom.records import Key
from classroom.store import Store
from grader.spec.environment import probe
from grader.spec.grade_record import SpeedFigures
from grader.spec.problem import ROOT, load_problem, problem_ids
from grader.timing import device_lock
from tests.harness import model_answer

_LOOK_S = 0.2
_UUIDS = """import torch
for i in range(torch.cuda.device_count()):
    print(torch.cuda.get_device_properties(i).uuid)"""
_QUERY = ("nvidia-smi", "--query-gpu=uuid,utilization.gpu", "--format=csv,noheader,nounits")


def main() -> int:
    """Make the class, grade it, print figures; return 1 if points differ by more than one."""
    parser = argparse.ArgumentParser(prog="python -m tests.class_on_gpus")
    parser.add_argument("count", type=int, metavar="N", help="students")
    parser.add_argument("--course", type=Path, required=True, metavar="DIR")
    parser.add_argument("--first", type=int, default=0, help="number of the first student")
    parser.add_argument("--only", default=",".join(problem_ids()), metavar="p02,p04")
    parser.add_argument("--gpus", metavar="0,1", help="of those that CUDA sees (default: all)")
    parser.add_argument("--jobs", type=int, metavar="N", help="gradings side by side")
    parser.add_argument("--calibration", type=Path, metavar="FILE")
    parser.add_argument("--within", type=float, default=1e6, metavar="S", help="end after so long")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = options.gpus
    problems = options.only.split(",")
    students = [f"s{options.first + n:03}" for n in range(options.count)]
    write_class(options.course, students, problems)
    figures = graded(options, students, problems)
    print(json.dumps({k: v for k, v in figures.items() if k != "gradings"}, indent=1))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return int(any(row["range"] > 1.0 for row in figures["problems"].values()))


def write_class(course: Path, students: list[str], problems: list[str]) -> None:
    """Write a submission for each student: the model answers, no two of the same bytes."""
    for student in students:
        for problem in problems:
            path = course / "submissions" / student / problem / load_problem(problem).file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{model_answer(problem)}\n# {student}\n", encoding="utf-8")


def graded(options: argparse.Namespace, students: list[str], problems: list[str]) -> dict:
    """Grade the class and return the figures."""
    command = [
        sys.executable,
        "-m",
        "grader",
        "class",
        "grade",
        str(options.course / "submissions"),
    ]
    command += ["--course", str(options.course), "--only", options.only, "--official"]
    command += ["--jobs", str(options.jobs)] * bool(options.jobs)
    command += ["--calibration", str(options.calibration)] * bool(options.calibration)
    began, done = time.monotonic(), {}
    child = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    asked = subprocess.run([sys.executable, "-c", _UUIDS], capture_output=True, text=True)
    gpus = Gpus(asked.stdout.split())
    alarm = threading.Timer(options.within, child.send_signal, [signal.SIGINT])
    alarm.start()
    for line in child.stderr:
        print(f"{time.monotonic() - began:6.1f} s  {line}", end="", flush=True)
        if (words := line.split()) and words[0] in students:
            done[words[0]] = round(time.monotonic() - began, 1)
    child.wait()
    alarm.cancel()
    figures = {
        "exit_code": child.returncode,
        "machine": probe("auto").model_dump(mode="json"),
        "cores": len(os.sched_getaffinity(0)),
        "jobs": options.jobs,
        "seconds": round(time.monotonic() - began, 1),
        "graded_at_s": done,
        "gradings_per_hour": round(3600 * len(done) / max(done.values(), default=1.0), 1),
        "gpus": gpus.end(),
    }
    with Store(options.course / DATABASE) as store:
        return figures | points(store, list(done), problems)


def points(store: Store, students: list[str], problems: list[str]) -> dict:
    """Return points and speed-ups, by student and how they spread."""
    versions, hand_ins = store.versions(), store.hand_ins()
    gradings: dict[str, dict] = {}
    for student in students:
        for problem in problems:
            sha256 = hand_ins[student].files[problem]
            result = store.result(Key(problem=problem, sha256=sha256, version=versions[problem]))
            if result is None:
                continue
            found = result.result
            speed = found.components.get("speed")
            is_timed = speed is not None and isinstance(speed.figures, SpeedFigures)
            gradings.setdefault(student, {})[problem] = {
                "points": found.points.earned,
                "available": found.points.available,
                "verdict": found.verdict,
                "speedup": speed.figures.speedup if is_timed else None,
                "naive_ms": speed.figures.naive_ms if is_timed else None,
            }
    spread = {}
    for problem in problems:
        rows = [found[problem] for found in gradings.values() if problem in found]
        earned = [row["points"] for row in rows]
        speedups = sorted(row["speedup"] for row in rows if row["speedup"])
        spread[problem] = {
            "gradings": len(rows),
            "points": [min(earned, default=0.0), max(earned, default=0.0)],
            "range": round(max(earned, default=0.0) - min(earned, default=0.0), 3),
            "speedup": [round(s, 3) for s in (speedups[:1] + speedups[-1:])],
            "median_speedup": round(statistics.median(speedups), 3) if speedups else None,
        }
    return {"problems": spread, "gradings": gradings}


class Gpus:
    """Looks from outside how long each GPU is had alone, and what its driver says of it."""

    def __init__(self, uuids: list[str]) -> None:
        self._uuids = uuids
        self._looks = {uuid: [] for uuid in uuids}
        self._busy: dict[str, list[float]] = {uuid: [] for uuid in uuids}
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=look) for look in (self._look, self._ask)]
        for thread in self._threads:
            thread.start()

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_S):
            for uuid in self._uuids:
                self._looks[uuid].append(_is_had_alone(device_lock.file_of(uuid)))

    def _ask(self) -> None:
        while shutil.which(_QUERY[0]) and not self._ended.wait(_LOOK_S):
            asked = subprocess.run(_QUERY, capture_output=True, text=True, check=False)
            for line in asked.stdout.splitlines():
                uuid, _, busy = line.partition(", ")
                uuid = uuid.removeprefix("GPU-")
                if uuid in self._busy and busy.strip().isdigit():
                    self._busy[uuid].append(float(busy))

    def end(self) -> dict[str, dict[str, float | None]]:
        """Stop looking; return per cent of the time, by GPU."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        return {
            uuid: {
                "had_for_measuring_percent": _percent(self._looks[uuid]),
                "busy_percent": _percent([b / 100 for b in self._busy[uuid]]),
            }
            for uuid in self._uuids
        }


def _percent(values: list) -> float | None:
    return round(100 * statistics.fmean(values), 1) if values else None


def _is_had_alone(path: Path) -> bool:
    """Whether somebody has this lock file alone, by the kernel's list of locks."""
    try:
        inode = str(path.stat().st_ino)
    except FileNotFoundError:
        return False
    locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    writers = (line.split() for line in locks if " FLOCK " in line and " WRITE " in line)
    return any(row[1] != "->" and row[5].rpartition(":")[2] == inode for row in writers)


if __name__ == "__main__":
    sys.exit(main())
