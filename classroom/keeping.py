"""Merges newly collected hand-ins with earlier ones: the last file of each problem counts.

A course collects several times into one folder, and students hand in their whole repository each
time. So problems missing in a submission stay as they were, a file that is handed in again
unchanged keeps its first time, and an untouched stub never replaces an answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from classroom.records import Decision, HandIn, Part
from classroom.store import Store
from grader.source.steps import step_regions, steps_begun

MAX_NOTES = 20


@dataclasses.dataclass(frozen=True)
class Collected:
    """The contents of a source: for each student in it, a hand-in and its files by problem.

    `notes` say what was left out. `earlier` has, by SHA-256, all files that were read, superseded
    ones included; `requests` the students' requests for a regrade.
    """

    hand_ins: tuple[tuple[HandIn, Mapping[str, bytes]], ...] = ()
    notes: tuple[str, ...] = ()
    earlier: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    requests: tuple[Decision, ...] = ()


# Ids of students by what happened to their hand-in: "new", "changed", "same", or "refused" because
# it cannot be read; then an earlier hand-in that can be read stays.
Kept = Mapping[str, list[str]]


def is_stub(data: bytes) -> bool:
    """Whether a file has steps, none of which was begun."""
    text = data.decode("utf-8", "replace")
    return bool(step_regions(text)) and not steps_begun(text)


def merged(old: HandIn, new: HandIn, data: Callable[[str], bytes]) -> HandIn:
    """Return a hand-in merged with a later one; `data` returns the bytes of a SHA-256."""
    is_same = old.files == new.files
    parts = {problem: old.parts_of(problem) for problem in old.files}
    for problem in new.files:
        for part in new.parts_of(problem):
            parts[problem] = _with(parts.get(problem, ()), part, data, is_same=is_same)
    files = {problem: those[-1].sha256 for problem, those in sorted(parts.items())}
    return new.model_copy(update={"files": files, "parts": dict(sorted(parts.items()))})


def _with(
    parts: Sequence[Part], new: Part, data: Callable[[str], bytes], *, is_same: bool
) -> tuple[Part, ...]:
    """Return the files of a problem with one added, in the order of submission."""
    known = next((part for part in parts if part.sha256 == new.sha256), None)
    if known is None:
        if parts and is_stub(data(new.sha256)):
            return tuple(parts)
        begun = [part for part in parts if not is_stub(data(part.sha256))]
        return _placed(begun, new, new.submitted_at)
    if known.code == new.code if known.code else is_same:  # the same submission as before
        times = [time for time in (known.submitted_at, new.submitted_at) if time]
        again = new.model_copy(update={"submitted_at": min(times, default=None)})
        return tuple(again if part is known else part for part in parts)
    return _placed([part for part in parts if part is not known], known, new.submitted_at)


def _placed(parts: Sequence[Part], part: Part, sent_at: str | None) -> tuple[Part, ...]:
    later = [p for p in parts if sent_at and p.submitted_at and p.submitted_at > sent_at]
    at = parts.index(later[0]) if later else len(parts)
    return (*parts[:at], part, *parts[at:])


def keep(store: Store, collected: Collected) -> Kept:
    """Store what was collected; an unreadable hand-in never replaces a readable one."""
    before = store.hand_ins()
    kept: dict[str, list[str]] = {name: [] for name in ("new", "changed", "same", "refused")}
    for hand_in, files in collected.hand_ins:
        old = before.get(hand_in.student)
        fresh = {hand_in.files[problem]: data for problem, data in files.items()}
        fresh |= collected.earlier

        def data(sha256: str, fresh: Mapping[str, bytes] = fresh) -> bytes:
            return fresh[sha256] if sha256 in fresh else store.data(sha256)

        if hand_in.error is not None:
            kept["refused"].append(hand_in.student)
            if old is not None and old.files:
                note = f"{hand_in.source} cannot be read: {hand_in.error}"
                notes = (*old.notes[: MAX_NOTES - 1], note)
                known = note in old.notes
                hand_in = old if known else old.model_copy(update={"notes": notes})
        else:
            hand_in = merged(old, hand_in, data) if old is not None and old.files else hand_in
            changed = "same" if old and old.files == hand_in.files else "changed"
            kept["new" if old is None else changed].append(hand_in.student)
        if hand_in != old:
            own = {p: data(sha) for p, sha in hand_in.files.items()}
            store.save_hand_in(hand_in, own, [data(sha) for sha in hand_in.all_files])
    asked = {(d.student, d.problem, d.reason) for d in store.decisions("request")}
    store.add(*(d for d in collected.requests if (d.student, d.problem, d.reason) not in asked))
    return kept
