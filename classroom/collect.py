"""`grader class collect` and `status`: assigns submissions to students, and shows the class.

Each submission is read, and the last file of every student and problem is stored.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from classroom.decisions import open_requests
from classroom.folder import DATABASE, holder, locked, open_class
from classroom.grades import Standing, Status, read_standing
from classroom.keeping import MAX_NOTES, Collected, Kept, keep, merged
from classroom.lateness import read_policy
from classroom.layouts import Found, find
from classroom.records import CourseError, Decision, HandIn, Part, Student, now
from classroom.roster import NAMED, Matching, Times, read_roster, read_times
from classroom.store import Store
from classroom.unpacking import own_folder, unpacked
from grader.base import stdout
from grader.base.options import Command
from grader.base.text import clean, plural, wrap
from grader.source.intake import archives, receipt
from grader.source.intake.entries import shown
from grader.spec.problem import problem_ids

_CONFLICTS = 10  # to name in a message


def collect(
    source: Path,
    students: Sequence[Student] = (),
    times: Times | None = None,
    *,
    assignment: str | None = None,
    choose: Collection[str] = (),
) -> Collected:
    """Read the submissions in a folder or an archive; `times` says when they were handed in.

    The names of clones begin with `assignment`. `choose` names the submission that counts for a
    student for whom several accounts handed in.

    Raises:
        CourseError: `source` is no folder or archive of submissions, none is of a student on the
            roster, or a student has submissions of several accounts.
    """
    with unpacked(source) as (folder, notes), own_folder() as work:
        matching = Matching(students)
        found, left_out = find(folder, matching, work, assignment)
        by_student: dict[str, list[Found]] = {}
        for one in _decided(found, matching.ids, choose):
            by_student.setdefault(one.student, []).append(one)
        known_times = _by_student(times or {}, matching)
        read = _Read()
        hand_ins = tuple(
            read.student(student, ones, known_times.get(student))
            for student, ones in sorted(by_student.items())
        )
    return Collected(hand_ins, (*notes, *left_out), read.data, tuple(read.requests))


def _decided(found: Sequence[Found], ids: Collection[str], choose: Collection[str]) -> list[Found]:
    """Return the submissions without those that lose to an account named in `choose`.

    `ids` are those of the roster; without a roster everybody counts. Only the instructor decides
    between several accounts of a student, never a date.
    """
    by_student: dict[str, dict[str, list[Found]]] = {}
    for one in found:
        by_student.setdefault(one.student, {}).setdefault(one.source, []).append(one)
    kept: list[Found] = []
    conflicts: list[str] = []
    for student, sources in by_student.items():
        entries = {source: _entry(ones[0]) for source, ones in sources.items()}
        chosen = [s for s, ones in sources.items() if any(_is_in(choose, one) for one in ones)]
        if len(sources) == 1 or (ids and student not in ids):
            kept += [one for ones in sources.values() for one in ones]
        elif len(chosen) == 1:
            counts = entries.pop(chosen[0])
            notes = [f"{other} is not read: {counts} was chosen" for other in entries.values()]
            kept += [
                dataclasses.replace(one, notes=(*one.notes, *notes)) for one in sources[chosen[0]]
            ]
        else:
            conflicts.append(f"{shown(student)} has {' and '.join(entries.values())}")
    if conflicts:
        more = len(conflicts) - _CONFLICTS
        some = "; ".join(conflicts[:_CONFLICTS]) + f"; and {more} more" * (more > 0)
        raise CourseError(
            f"SOURCE: got submissions of different accounts for one student ({some}), expected"
            " one account each: find out whose they are, then name each one that counts with"
            " --choose NAME, or correct the roster"
        )
    return kept


def _entry(one: Found) -> str:
    return shown(one.shown_as.partition("/")[0])


def _is_in(choose: Collection[str], one: Found) -> bool:
    return _entry(one) in choose or one.shown_as.partition("/")[0] in choose


def _by_student(times: Times, matching: Matching) -> dict[str, str]:
    """Return the times by student, who is found by the row's id, or else by its login."""
    found: dict[str, str] = {}
    for (id, login), time in times.items():
        student = matching.student(id, *NAMED) or matching.student(login, "login")
        for name in [student] if matching.ids else [id, login]:
            if name:
                found[name] = max(time, found.get(name, ""))
    return found


class _Read:
    """Reads hand-ins; `data` has all files by SHA-256, `requests` the requests for a regrade."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.requests: list[Decision] = []

    def student(
        self, student: str, ones: Iterable[Found], time: str | None
    ) -> tuple[HandIn, Mapping[str, bytes]]:
        """Read all submissions of a student: the last file of each problem counts.

        A submission with a `number` below zero is read only if those beside it cannot be.
        """
        ordered = sorted(ones, key=lambda one: one.order, reverse=True)
        time = time or ordered[0].submitted_at
        found: HandIn | None = None
        read: list[HandIn] = []
        failed: list[str] = []
        unused: list[str] = []
        for one in ordered:
            if read and one.number < 0:
                unused.append(f"{shown(one.shown_as)} is not read: {read[0].source} counts")
                continue
            given = {"student": student, "source": shown(one.shown_as)}
            given["submitted_at"] = one.submitted_at if read and one.submitted_at else time
            try:
                hand_in = self._read(one, given)
            except archives.ArchiveError as fault:
                failed.append(clean(str(fault)))
                found = found or HandIn(**given, notes=one.notes, error=failed[0])
                continue
            lead = "" if one.number < 0 else "a later submission cannot be read: "
            if read:
                unused.append(f"{hand_in.source} is an earlier submission")
            else:
                notes = [*hand_in.notes, *(f"{lead}{text}" for text in failed)]
                found = hand_in = hand_in.model_copy(update={"notes": tuple(notes)})
            read.append(hand_in)
        for later in reversed(read):
            found = later if later is read[-1] else merged(found, later, self.data.__getitem__)
        notes = (*found.notes, *unused)[:MAX_NOTES]
        hand_in = found.model_copy(update={"notes": notes})
        return hand_in, {problem: self.data[sha] for problem, sha in hand_in.files.items()}

    def _read(self, one: Found, given: Mapping[str, Any]) -> HandIn:
        contents = archives.read(one.path, or_requests=True)
        code = receipt.code(contents.files)
        files, parts = {}, {}
        for path, data in contents.files.items():
            problem, sha256 = path.split("/")[0], hashlib.sha256(data).hexdigest()
            files[problem], self.data[sha256] = sha256, data
            of = {"source": given["source"], "submitted_at": given["submitted_at"]}
            parts[problem] = (Part(sha256=sha256, code=code, version=contents.version, **of),)
        for problem, reason in contents.requests.items():
            who = {"student": given["student"], "author": given["student"]}
            at = given["submitted_at"] or now()
            asked = Decision(kind="request", problem=problem, reason=reason, at=at, **who)
            self.requests.append(asked)
        notes = (*one.notes, *contents.notes)
        return HandIn(**given, files=files, parts=parts, notes=notes)


_LISTED = 20
_LABEL = 14


def render(
    standing: Standing,
    *,
    width: int,
    color: bool,
    kept: Kept | None = None,
    left_out: Sequence[str] = (),
    graded: int = 0,
    cached: int = 0,
    written: Sequence[Path] = (),
    interrupted: bool = False,
    running: str | None = None,
) -> str:
    """Return the summary of a class as lines of at most `width` cells.

    It shows who is missing, what failed and what is left. `kept`, `left_out`, `graded`, `cached`
    and `written` are known only to a run.
    """
    lines: list[str] = []

    def row(label: str, text: str) -> None:
        lines.extend(wrap(clean(text, 4000), width, f"{label:<{_LABEL}}"))

    def rows(label: str, texts: Sequence[str]) -> None:
        for text in texts[:_LISTED]:
            row(label, text)
        if len(texts) > _LISTED:
            row("", f"and {len(texts) - _LISTED} more")

    ids = {student.id: clean(student.id, 60) for student in standing.students}
    hand_ins = standing.hand_ins
    grades = [grade for grade in standing.grades.values() if grade.key is not None]
    if running:
        row("at work", running)
    # A hand-in with a request for a regrade alone is no submission.
    submitted = {id for id, one in hand_ins.items() if one.files or one.error}
    row("students", f"{len(ids)}, {len(ids.keys() & submitted)} have handed in")
    if missing := [id for id in ids if id not in submitted]:
        row("not handed in", _some(missing))
    if unknown := sorted(hand_ins.keys() - ids.keys()):
        row("not on roster", f"{_some(unknown)}: not graded")
    if kept:
        words = {"same": "as before", "refused": "cannot be read"}
        parts = [f"{len(those)} {words.get(name, name)}" for name, those in kept.items() if those]
        row("collected", ", ".join(parts) or "nothing")
    if graded or cached:
        row("graded now", f"{plural(graded, 'file')}, {cached} from before")
    if counts := collections.Counter(standing.files.values()):
        total = counts.total()
        done = total - counts[Status.PENDING]
        parts = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        row("files", f"{done} of {total}, {100 * done // total} %: {parts}")
    if asked := len(open_requests(standing.asked)):
        row("requests", f"{asked} without an answer; see grader class requests")
    refused = [
        f"{ids[h.student]}: {h.error}" for h in hand_ins.values() if h.error and h.student in ids
    ]
    refused += [
        f"{ids[g.student]} {g.problem}: {g.reason}" for g in grades if g.status is Status.REFUSED
    ]
    faults = [f"{ids[g.student]} {g.problem}: {g.fault}" for g in grades if g.fault]
    rows("refused", refused)
    rows("fault", faults)
    rows("note", [f"{clean(h.student, 60)}: {note}" for h in hand_ins.values() for note in h.notes])
    for text in left_out:
        row("left out", text)
    for path in written:
        row("written", str(path))
    if faults:
        row("", "faults decide no points; --retry-faults grades these files again")
    if interrupted:
        row("interrupted", "everything that was finished is kept; the same command goes on")
    return "\n".join(lines) + "\n"


def _some(names: Iterable[str]) -> str:
    """Return the number of names, the first of them, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{len(names)}: {', '.join(clean(name, 60) for name in names[:_LISTED])}{more}"


LISTS = {  # who is in the class, and when each handed in
    "--roster CSV": "who is in the class",
    "--assignment NAME": "what stands before -<login> in the names of clones (default: what all"
    " begin with)",
    "--choose NAME...": "the submission that counts where several accounts handed in for one"
    " student",
    "--times CSV": "when each handed in: id,submitted_at",
}


def _collect(options: argparse.Namespace) -> int:
    """Collect, show the summary of the class; return 0."""
    with locked(options.course), Store(options.course / DATABASE) as store:
        collected, kept = into(store, options)
        standing = read_standing(store, problems=problem_ids())
    stdout.show(render, standing, kept=kept, left_out=collected.notes)
    return 0


def _status(options: argparse.Namespace) -> int:
    """Show the summary; return 0."""
    with open_class(options.course) as store:
        standing = read_standing(store, read_policy(options.course), problem_ids())
        running = holder(options.course)
    stdout.show(render, standing, running=running)
    return 0


def into(store: Store, options: argparse.Namespace) -> tuple[Collected, Kept | None]:
    """Store a roster and submissions in the database, after both were read completely.

    Raises:
        CourseError: the roster, the times or the submissions cannot be used.
    """
    source, roster = options.source, options.roster
    for option in ("times", "assignment", "choose"):
        if getattr(options, option) and not source:
            raise CourseError(f"--{option}: got it without SOURCE, expected the submissions too")
    students = read_roster(roster) if roster else store.students()
    times = read_times(options.times) if options.times else {}
    collected = Collected()
    if source:
        given = {"assignment": options.assignment, "choose": options.choose}
        collected = collect(source, students, times, **given)
    if roster:
        store.set_students(students)
    return collected, keep(store, collected) if source else None


COLLECT = Command(
    "read submissions and a roster; grades nothing",
    _collect,
    {
        "SOURCE": "folder or archive of submissions: Gradescope, Canvas, Moodle, GitHub, one per"
        " student; or a bare git repository",
        **LISTS,
    },
)
STATUS = Command("say who handed in, what is graded, what failed and what is left", _status)
