"""Plans what to grade: each file once per version of the judge, and after a few faults no more."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from classroom.grades import files_that_count, people
from classroom.lateness import Policy
from classroom.records import Key
from classroom.store import Store
from grader.spec.grade_record import Environment
from grader.spec.problem import ROOT

MAX_ATTEMPTS = 3


@dataclasses.dataclass(frozen=True)
class Job:
    """Files to grade together, by problem, and the first `student` who handed them in."""

    student: str
    keys: Mapping[str, Key]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The jobs to run, how many files have a result (`cached`), and which were `given_up`.

    `attempts` says how often each key may still be tried.
    """

    jobs: tuple[Job, ...]
    cached: int
    given_up: tuple[Key, ...]
    attempts: Mapping[Key, int]

    @property
    def files(self) -> int:
        """The number of files to grade."""
        return sum(len(job.keys) for job in self.jobs)


def plan(
    store: Store,
    problems: Sequence[str],
    versions: Mapping[str, str],
    policy: Policy | None = None,
    *,
    again: bool = False,
) -> Plan:
    """Return what to grade of `problems` at `versions`; `again` retries files that were given up.

    Where by `policy` a late file and an earlier one can count, they are graded in separate jobs.
    """
    failed = collections.Counter(fault.key for fault in store.faults())
    counting = files_that_count(store, policy or Policy(), problems)
    attempts: dict[Key, int] = {}
    jobs, given_up, cached = [], [], 0
    for student in people(store):
        together, alone = {}, []
        for problem in problems:
            todo = []  # the last file first
            for part in reversed(counting.get((student.id, problem), ())):
                key = Key(problem=problem, sha256=part.sha256, version=versions[problem])
                if key in attempts:
                    continue
                attempts[key] = MAX_ATTEMPTS if again else max(0, MAX_ATTEMPTS - failed[key])
                if store.has_result(key):
                    cached += 1
                else:
                    (todo if attempts[key] else given_up).append(key)
            if todo:
                together[problem], *earlier = todo
                alone += earlier
        if any(failed[key] for key in together.values()):  # another file may be to blame
            together, alone = {}, [*together.values(), *alone]
        jobs += [Job(student.id, together)] if together else []
        jobs += [Job(student.id, {key.problem: key}) for key in alone]
    return Plan(tuple(jobs), cached, tuple(given_up), attempts)


# Rooms of grader/ that decide no points: commands, reports and the intake of submissions.
_DECIDES_NOTHING = ("commands/", "report/", "source/intake/", "__main__.py")


def versions(
    environment: Environment,
    problems: Sequence[str],
    *,
    official: bool = False,
    quick: bool = False,
    calibration: str | None = None,
    root: Path = ROOT,
) -> dict[str, str]:
    """Return, by problem, a hash of everything that a result depends on: 64 hex digits.

    That is the problem's problem.toml and tests, `given`, the reference and the judge, the versions
    of torch, Triton and numpy, the device, the mode, and the calibration (its text or None).
    """
    machine = environment.model_dump(
        mode="json", include={"device", "device_name", "torch", "triton", "numpy"}
    )
    graded = {"official": official, "quick": quick, "calibration": calibration}
    common = hashlib.sha256(json.dumps([machine, graded], sort_keys=True).encode())
    for path in _of_all_problems(root):
        _add(common, path, root)
    found = {}
    for problem in problems:
        digest, folder = common.copy(), root / "problems" / problem
        for path in (folder / "problem.toml", folder / f"test_{problem}.py"):
            _add(digest, path, root)
        found[problem] = digest.hexdigest()
    return found


def _of_all_problems(root: Path) -> Iterator[Path]:
    for folder in ("problems/given", "reference", "grader"):
        for path in sorted((root / folder).rglob("*.py")):
            inner = path.relative_to(root / folder)
            other = folder == "grader" and inner.as_posix().startswith(_DECIDES_NOTHING)
            if not other and "__pycache__" not in inner.parts:
                yield path


def _add(digest: hashlib._Hash, path: Path, root: Path) -> None:
    """Add a file's name and bytes, each with its length."""
    name, data = path.relative_to(root).as_posix().encode(), path.read_bytes()
    digest.update(b"%d %d " % (len(name), len(data)) + name + data)
