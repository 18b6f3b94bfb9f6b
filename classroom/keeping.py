"""Puts what was collected beside what was collected before: the last file of each problem counts.

A course collects in stages into one folder, and students hand in their whole repository each time.
So a submission says nothing of problems that it does not hold, a file that is handed in again
unchanged keeps its first time, and an untouched stub takes no answer's place.
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
    """What a source holds: a hand-in with its files by problem for everyone who is in it.

    `notes` say what was left out. `earlier` has files that others of the same student follow, by
    SHA-256; `requests` what students ask to have looked at again.
    """

    hand_ins: tuple[tuple[HandIn, Mapping[str, bytes]], ...] = ()
    notes: tuple[str, ...] = ()
    earlier: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    requests: tuple[Decision, ...] = ()


# What became of a source: ids of students whose hand-in is "new", "changed" or the "same"; of
# those "refused" it cannot be read, and where there was one that can, that one stays.
Kept = Mapping[str, list[str]]


def is_stub(data: bytes) -> bool:
    """Whether a file is a stub in which no step was begun."""
    text = data.decode("utf-8", "replace")
    return bool(step_regions(text)) and not steps_begun(text)


def merged(old: HandIn, new: HandIn, data: Callable[[str], bytes]) -> HandIn:
    """Return a hand-in with the files of a later one; `data` returns the bytes of a SHA-256."""
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
    """Return the files of a problem with one more, in the order in which they were handed in."""
    known = next((part for part in parts if part.sha256 == new.sha256), None)
    if known is None:
        if parts and is_stub(data(new.sha256)):
            return tuple(parts)
        begun = [part for part in parts if not is_stub(data(part.sha256))]
        return _placed(begun, new, new.submitted_at)
    if known.code == new.code if known.code else is_same:  # this submission was collected before
        times = [time for time in (known.submitted_at, new.submitted_at) if time]
        again = new.model_copy(update={"submitted_at": min(times, default=None)})
        return tuple(again if part is known else part for part in parts)
    return _placed([part for part in parts if part is not known], known, new.submitted_at)


def _placed(parts: Sequence[Part], part: Part, sent_at: str | None) -> tuple[Part, ...]:
    later = [p for p in parts if sent_at and p.submitted_at and p.submitted_at > sent_at]
    at = parts.index(later[0]) if later else len(parts)
    return (*parts[:at], part, *parts[at:])


def keep(store: Store, collected: Collected) -> Kept:
    """Store what was collected; one that cannot be read never takes the place of one that can."""
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
