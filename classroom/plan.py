"""What is still to be graded: each file once, whoever handed it in, and no file endlessly."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from classroom.grades import people
from classroom.records import Key
from classroom.store import Store

MAX_ATTEMPTS = 3


@dataclasses.dataclass(frozen=True)
class Job:
    """Files to grade together, by problem; `student` is whose they are, or the first of those."""

    student: str
    keys: Mapping[str, Key]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to grade now, what has a result (`cached`), and what has failed too often (`given_up`).

    `attempts` says how often each key may still be tried.
    """

    jobs: tuple[Job, ...]
    cached: int
    given_up: tuple[Key, ...]
    attempts: Mapping[Key, int]

    @property
    def files(self) -> int:
        """How many files there are to grade."""
        return sum(len(job.keys) for job in self.jobs)


def plan(
    store: Store, problems: Sequence[str], versions: Mapping[str, str], *, again: bool = False
) -> Plan:
    """Return what to grade of `problems` at `versions`; `again` tries what was given up on."""
    failed = collections.Counter(fault.key for fault in store.faults())
    hand_ins = store.hand_ins()
    seen: dict[Key, int] = {}
    jobs, given_up, cached = [], [], 0
    for student in people(store):
        files = hand_ins[student.id].files if student.id in hand_ins else {}
        keys = {}
        for problem in problems:
            if problem not in files:
                continue
            key = Key(problem=problem, sha256=files[problem], version=versions[problem])
            if key in seen:
                continue
            seen[key] = MAX_ATTEMPTS if again else max(0, MAX_ATTEMPTS - failed[key])
            if store.has_result(key):
                cached += 1
            elif not seen[key]:
                given_up.append(key)
            else:
                keys[problem] = key
        if keys and any(failed[key] for key in keys.values()):
            jobs += [Job(student.id, {problem: key}) for problem, key in keys.items()]
        elif keys:
            jobs.append(Job(student.id, keys))
    return Plan(tuple(jobs), cached, tuple(given_up), seen)
