"""Finds the submissions in a folder in the layouts of Gradescope, Canvas, Moodle and GitHub.

This module reads only names and Gradescope's list, and no submission.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from classroom import gradescope
from classroom.branches import branches, is_repository
from classroom.records import CourseError
from classroom.roster import NAMED, TEST_STUDENTS, Matching
from classroom.unpacking import copy_regular, is_archive, without_suffix
from grader.source.intake.archives import holds_answers
from grader.source.intake.entries import IGNORED, shown
from grader.spec.problem import load_problem, problem_ids

# Moodle's names have no underscore: the first number is Moodle's, the rest is the student's choice.
_MOODLE = re.compile(r"(.*?)_([0-9]+)_assignsubmission_(file|onlinetext)_?(.*)", re.DOTALL)
_CANVAS = re.compile(r"_([0-9]+)(?=_([0-9]+)_(.+))", re.DOTALL)
_TEST_STUDENTS = [re.sub(r"\W", "", name).lower() for name in TEST_STUDENTS]
_MAX_NOTES = 20
_MAX_NAME = 200


@dataclasses.dataclass(frozen=True)
class Found:
    """A submission of a student; `order` sorts those of one student, the last is the largest.

    `source` is the account on the platform that handed it in. A `number` below zero marks loose
    files that were handed in together with an archive, which has priority.
    """

    student: str
    path: Path
    shown_as: str
    source: str
    submitted_at: str | None = None
    number: int = 0
    notes: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[str, int, float, str]:
        """The sort key: time, then number of the attempt, then time of writing, then name."""
        return self.submitted_at or "", self.number, _written(self.path), self.shown_as


_Read = tuple[list[Found], list[str]]


def find(folder: Path, matching: Matching, work: Path, assignment: str | None = None) -> _Read:
    """Return the submissions below `folder`, and notes on entries that are none.

    Submissions of several files are put together in `work`. `assignment` is the part before the
    login in the names of clones: "" if there are no clones, None to infer it from the names.

    Raises:
        CourseError: the folder is empty, is a single submission, has none of a student on the
            roster, or has one whose name fits several students.
    """
    folder = _inner(folder, matching, assignment)
    entries = _entries(folder)
    if is_repository(folder):
        found, notes = _of_branches(folder, matching, work)
        return _expect_some(found, notes, matching, "branches")
    if _is_submission(folder):
        raise CourseError(
            "got one submission, expected a folder or archive with one for each student;"
            " python -m grader grade --submission grades one"
        )
    layout = _layout(entries)
    if layout == "Gradescope":
        found, notes = _of_gradescope(folder, matching)
    elif layout:
        read = _of_moodle if layout == "Moodle" else _of_canvas
        found, notes = _of_platform(read, entries, matching, work)
    else:
        found, notes = _by_name(entries, matching, assignment)
    return _expect_some(found, notes, matching, layout)


def _expect_some(found: list[Found], notes: list[str], matching: Matching, layout: str) -> _Read:
    if not found or (matching.ids and not any(one.student in matching.ids for one in found)):
        some = [shown(one.shown_as) for one in found[:3]] or notes[:3] or ["nothing"]
        raise CourseError(
            f"SOURCE: got no submission of a student{' on the roster' * bool(matching.ids)}"
            f" ({'; '.join(some)}), expected {_EXPECTED[layout]}"
        )
    return found, notes[:_MAX_NOTES]


_EXPECTED = {
    "Gradescope": "the roster's id as SID, or its email: pass Gradescope's own roster as --roster",
    "Moodle": (
        "the number behind the name as the roster's id or in its column number: pass the"
        " assignment's grading worksheet as --roster (in the settings of the assignment tick"
        " Offline grading worksheet); submissions must be files, not online text"
    ),
    "Canvas": (
        "the first number as the roster's id or in its column number: pass the gradebook that"
        " Canvas exports as --roster"
    ),
    "branches": "a branch for each student, named by the roster's id, email or login",
    "": (
        "a folder or an archive for each student, named by the roster's id, email or login, or"
        " clones <assignment>-<login>; --assignment NAME says what stands before the login"
    ),
}


def _layout(entries: list[os.DirEntry]) -> str:
    """Return the layout that most entries have, so that one student's odd name has no effect."""
    if any(entry.name == gradescope.FILE for entry in entries):
        return "Gradescope"
    counts = Counter(map(_named_as_in, entries))
    layout = max(("Moodle", "Canvas", ""), key=counts.__getitem__)
    return layout if counts[layout] else ""


def _named_as_in(entry: os.DirEntry) -> str | None:
    is_file = entry.is_file(follow_symlinks=False)
    is_folder = entry.is_dir(follow_symlinks=False)
    moodle, canvas = _MOODLE.fullmatch(entry.name), _CANVAS.search(entry.name)
    if moodle and is_file and canvas:  # the platform's number comes first
        return "Moodle" if moodle.start(2) <= canvas.start(1) else "Canvas"
    if moodle and (is_file or (is_folder and not moodle[4])):
        return "Moodle"
    if is_file and canvas:
        return "Canvas"
    return "" if is_folder or (is_file and is_archive(entry.name)) else None


def _inner(folder: Path, matching: Matching, assignment: str | None) -> Path:
    """Return the folder that holds the submissions; archives often wrap them in another."""
    for _ in range(5):
        entries = _entries(folder)
        if len(entries) != 1 or not entries[0].is_dir(follow_symlinks=False):
            break
        name = entries[0].name
        whose = matching.student(name, *NAMED) or matching.of_clone(name)
        whose = whose or (assignment and name.casefold().startswith(f"{assignment}-".casefold()))
        if whose or _MOODLE.fullmatch(name) or any(map(_is_submission, (folder, folder / name))):
            break
        folder = folder / name
    if not _entries(folder):
        raise CourseError("got no files, expected a submission for each student")
    return folder


def _entries(folder: Path) -> list[os.DirEntry]:
    try:
        with os.scandir(folder) as found:
            kept = [entry for entry in found if entry.name not in IGNORED]
    except OSError as error:
        raise CourseError(f"{shown(folder.name)}: cannot be read: {error.strerror}") from None
    return sorted(kept, key=lambda entry: entry.name)


def _is_submission(folder: Path) -> bool:
    names = {entry.name for entry in _entries(folder)}
    return any(id in names or load_problem(id).file in names for id in problem_ids())


def _written(path: Path) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


def _of_gradescope(folder: Path, matching: Matching) -> _Read:
    found, notes = [], []
    listed = gradescope.read_metadata(folder / gradescope.FILE)
    for submission in listed:
        path = folder / submission.folder
        if not path.is_dir():
            notes.append(f"{gradescope.FILE} lists {submission.folder}, which is not there")
            continue
        source = str(sorted((one.sid, one.email) for one in submission.submitters))
        number = int(re.sub(r"\D", "", submission.folder) or 0)
        for submitter in submission.submitters:
            by_sid = matching.student(submitter.sid, "id")
            student = matching.student(submitter.email, "id", "email") or by_sid
            other = by_sid if by_sid != student else None
            said = (f"the address is this student's, the SID that of {shown(other)}",) * bool(other)
            student = student or submitter.sid or submitter.email or submission.folder
            found += _in_folder(Found(student[:_MAX_NAME], path, submission.folder, source,
                                      submission.submitted_at, number, said))  # fmt: skip
    unlisted = {entry.name for entry in _entries(folder)} - {s.folder for s in listed}
    notes += [f"{shown(n)} is not in {gradescope.FILE}" for n in sorted(unlisted)
              if n != gradescope.FILE]  # fmt: skip
    return found, notes


# One of the files of a platform that puts all files in one folder, and the student's name for it.
_Part = tuple[Found, str]


def _of_platform(
    read: Callable[[os.DirEntry, Matching], _Part | str],
    entries: list[os.DirEntry],
    matching: Matching,
    work: Path,
) -> _Read:
    """Group the files of a platform; `read` returns an entry's owner, or why it is left out."""
    found, notes = [], []
    files: dict[tuple[str, str], list[_Part]] = {}
    for entry in entries:
        part = read(entry, matching)
        if isinstance(part, str):
            notes.append(f"{shown(entry.name)} {part}: left out")
            continue
        one, _ = part
        if entry.is_file(follow_symlinks=False):
            files.setdefault((one.student, one.source), []).append(part)
        else:
            found += _in_folder(one)
    for parts in files.values():
        found += _in_files(parts, work)
    return found, notes


def _of_moodle(entry: os.DirEntry, matching: Matching) -> _Part | str:
    match = _MOODLE.fullmatch(entry.name)
    if match is None or match[3] == "onlinetext" or _named_as_in(entry) != "Moodle":
        return "is no submission of files"
    student = matching.student(match[2], "number") or match[2]
    one = Found(student, Path(entry.path), entry.name, f"{match[1]}_{match[2]}")
    return one, match[4]


def _of_canvas(entry: os.DirEntry, matching: Matching) -> _Part | str:
    readings = list(_CANVAS.finditer(entry.name))
    if not readings or not entry.is_file(follow_symlinks=False):
        return "is not named as Canvas does"
    first = readings[0]
    student = matching.student(first[1], "number")
    others = {matching.student(reading[1], "number") for reading in readings} - {student, None}
    if others:  # the text on either side of the number is the student's choice
        raise CourseError(
            f"SOURCE: {shown(entry.name)}: got the numbers of {first[1]} and of"
            f" {shown(', '.join(sorted(others)))} in one name, expected one student's: see in"
            " Canvas whose it is, unpack the archive and rename or remove this file"
        )
    name = re.sub("_LATE$", "", entry.name[: first.start()], flags=re.IGNORECASE)
    if student is None and name in _TEST_STUDENTS:
        return "is of Canvas's test student"
    said = ("Canvas says that it is late",) * (len(name) < first.start())
    whose = student or first[1], Path(entry.path), entry.name, f"{name}_{first[1]}"
    return Found(*whose, number=int(first[2]), notes=said), first[3]


def _in_files(parts: list[_Part], work: Path) -> Iterator[Found]:
    """Give each archive of a student as a submission, and the loose files as another."""
    parts = sorted(parts, key=lambda part: part[0].number)
    said = next((one.notes for one, _ in parts if one.notes), ())
    parts = [(dataclasses.replace(one, notes=said), name) for one, name in parts]
    archives = [one for one, name in parts if is_archive(name)]
    loose = [(one, name) for one, name in parts if not is_archive(name)]
    yield from archives
    folder = _gathered(loose, work)
    if not archives or holds_answers(folder):  # the archives may hold no answers
        (first, _), (last, _) = loose[0], loose[-1]
        yield dataclasses.replace(first, path=folder, number=-1 if archives else last.number)


def _gathered(parts: list[_Part], work: Path) -> Path:
    """Return a folder with the files under the student's names; the last of equal names stays."""
    folder = Path(tempfile.mkdtemp(dir=work)) / "the files handed in"  # the name in messages
    folder.mkdir()
    for one, name in parts:
        target = folder / name
        try:
            target.unlink(missing_ok=True)
            copy_regular(one.path, target)
        except OSError as error:  # reading the submission will report the missing file
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
    return folder


def _by_name(entries: list[os.DirEntry], matching: Matching, assignment: str | None) -> _Read:
    """Return a folder or an archive for each student, named by the instructor, or clones."""
    notes = []
    usable: dict[os.DirEntry, str] = {}
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            usable[entry] = entry.name
        elif entry.is_file(follow_symlinks=False) and is_archive(entry.name):
            usable[entry] = without_suffix(entry.name)
        else:
            notes.append(f"{shown(entry.name)} is no folder and no archive: left out")
    if assignment is None:
        names = list(usable.values())
        assignment = _assignment(names, matching) if matching.ids else _of_all_clones(entries)
    start = f"{assignment}-" if assignment else ""
    columns = ("login",) if start else NAMED  # a student may choose another's id as login
    found = []
    for entry, name in usable.items():
        called = name[len(start) :]
        if not name.casefold().startswith(start.casefold()):
            notes.append(f"{shown(entry.name)} does not begin with {shown(start)}: left out")
            continue
        student = matching.student(called, *columns) or (name if matching.ids else called)
        if not 0 < len(student) <= _MAX_NAME:
            notes.append(f"{shown(entry.name)} is no name of a student: left out")
            continue
        one = Found(student, Path(entry.path), entry.name, name)
        found += _in_folder(one) if entry.is_dir(follow_symlinks=False) else [one]
    return _with_owners(found), notes


def _with_owners(found: list[Found]) -> list[Found]:
    """Add a note where one account of this machine wrote the submissions of several students.

    In a shared folder students choose the names. If all files have one owner, the instructor put
    them there, and no note is added.
    """
    owners = {one: one.path.lstat().st_uid for one in found}
    if len(set(owners.values())) < 2:
        return found
    students: dict[int, set[str]] = {}
    for one, owner in owners.items():
        students.setdefault(owner, set()).add(one.student)
    said = "written by the account (uid {}) that wrote {}'s, too: see whose it is"
    noted = []
    for one, owner in owners.items():
        others = sorted(students[owner] - {one.student})
        more = tuple(said.format(owner, shown(other)) for other in others[:1])
        noted.append(dataclasses.replace(one, notes=(*one.notes, *more)))
    return noted


def _of_branches(repository: Path, matching: Matching, work: Path) -> _Read:
    found = []
    for name, archive, pushed_at in branches(repository, work):
        student = matching.student(name, *NAMED) or name
        found.append(Found(student[:_MAX_NAME], archive, name, name, pushed_at))
    return found, []


def _assignment(names: list[str], matching: Matching) -> str:
    """Return the part before the login in the names of all clones, "" if there are no clones."""
    strange = [name for name in names if not matching.student(name, *NAMED)]
    ways = {assignment: name for name in strange for assignment in matching.of_clone(name)}
    common = [way for way in ways if all(n.casefold().startswith(f"{way}-") for n in names)]
    if not ways or (len(common) == 1 and len(names) > 1):
        return next(iter(common), "")
    some = (common or list(ways))[:3]
    raise CourseError(
        f"SOURCE: got {shown(ways[some[0]])}, which can be a clone"
        f" {' or '.join(shown(f'{way}-<login>') for way in some)}, expected two or more names"
        f" that all begin with one assignment; say which it is, as --assignment {shown(some[0])},"
        " or --assignment '' where these are no clones"
    )


def _of_all_clones(entries: list[os.DirEntry]) -> str:
    """Return the part before the login in the names of clones, where there is no roster."""
    clones = [e.name for e in entries if os.path.isdir(os.path.join(e.path, ".git"))]
    common = os.path.commonprefix(clones)  # noqa: RUF071 - these are names
    return common.rpartition("-")[0] if len(clones) > 1 else ""


def _in_folder(whole: Found) -> Iterator[Found]:
    """Give a student's folder as a submission, or the archives in it if it has no answers."""
    try:
        inner = _entries(whole.path)
    except CourseError:  # reading the submission will report why
        inner = []
    packed = [e for e in inner if e.is_file(follow_symlinks=False) and is_archive(e.name)]
    if not packed or holds_answers(whole.path):
        yield whole
        return
    others = [f"{shown(e.name)} is no archive: left out" for e in inner if e not in packed]
    for entry in packed:
        yield dataclasses.replace(
            whole,
            path=Path(entry.path),
            shown_as=f"{whole.shown_as}/{entry.name}",
            notes=(*whole.notes, *others[:_MAX_NOTES]),
        )
