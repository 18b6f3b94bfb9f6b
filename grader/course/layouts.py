"""How submissions of a class lie in a folder, as Gradescope, Canvas, Moodle or GitHub leave them.

Only names are looked at here, and Gradescope's list; no submission is read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from grader.course import gradescope
from grader.course.matching import Matching
from grader.course.unpacking import SourceError, copy_regular, is_archive, without_suffix
from grader.intake.archives import holds_answers
from grader.intake.entries import IGNORED, shown
from grader.manifest import load_problem, problem_ids

_CANVAS = re.compile(r"([^_]+)_(LATE_)?(\d+)_(\d+)_(.+)", re.DOTALL)
_MOODLE = re.compile(r"(.*)_(\d+)_assignsubmission_(file|onlinetext)_?", re.DOTALL)
_MAX_NOTES = 20
_MAX_NAME = 200


@dataclasses.dataclass(frozen=True)
class Found:
    """A submission and whose it is; `order` sorts those of one student, the last is the largest.

    A `number` below zero is of what was handed in together with another one, and stands behind it.
    """

    student: str
    path: Path
    shown_as: str
    submitted_at: str | None = None
    number: int = 0
    notes: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[str, int, float, str]:
        """By time, then by the number of the attempt, then by when the file was written."""
        return self.submitted_at or "", self.number, _written(self.path), self.shown_as


def find(folder: Path, matching: Matching, work: Path) -> tuple[list[Found], list[str]]:
    """Return the submissions below `folder`, and notes of what is none.

    What lies in several files is put together in `work`.

    Raises:
        SourceError: the folder is empty, or one submission and not those of a class.
    """
    folder = _inner(folder, matching)
    entries = _entries(folder)
    names = [entry.name for entry in entries]
    if _is_submission(folder):
        raise SourceError(
            "got one submission, expected a folder or archive with one for each student;"
            " python -m grader grade --submission grades one"
        )
    if gradescope.FILE in names:
        return _of_gradescope(folder, matching)
    # Moodle names folders, and Canvas files, of whose names students choose the end.
    folders = [entry.is_dir(follow_symlinks=False) for entry in entries]
    if any(_MOODLE.fullmatch(name) for name in itertools.compress(names, folders)):
        return _of_moodle(entries, matching)
    if any(entry.is_file(follow_symlinks=False) and _CANVAS.fullmatch(entry.name)
           for entry in entries):  # fmt: skip
        return _of_canvas(entries, matching, work)
    return _by_name(entries, matching)


def _inner(folder: Path, matching: Matching) -> Path:
    """Return the folder that holds the submissions: archives often have one folder around all."""
    for _ in range(5):
        entries = _entries(folder)
        if len(entries) != 1 or not entries[0].is_dir(follow_symlinks=False):
            break
        name = entries[0].name
        whose = matching.student(name) or matching.of_clone(name) or _MOODLE.fullmatch(name)
        if whose or _is_submission(folder) or _is_submission(folder / name):
            break
        folder = folder / name
    if not _entries(folder):
        raise SourceError("got no files, expected a submission for each student")
    return folder


def _entries(folder: Path) -> list[os.DirEntry]:
    try:
        with os.scandir(folder) as found:
            kept = [entry for entry in found if entry.name not in IGNORED]
    except OSError as error:
        raise SourceError(f"{shown(folder.name)}: cannot be read: {error.strerror}") from None
    return sorted(kept, key=lambda entry: entry.name)


def _is_submission(folder: Path) -> bool:
    names = {entry.name for entry in _entries(folder)}
    return any(id in names or load_problem(id).file in names for id in problem_ids())


def _written(path: Path) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


def _of_gradescope(folder: Path, matching: Matching) -> tuple[list[Found], list[str]]:
    found, notes = [], []
    listed = gradescope.read_metadata(folder / gradescope.FILE)
    for submission in listed:
        path = folder / submission.folder
        if not path.is_dir():
            notes.append(f"{gradescope.FILE} lists {submission.folder}, which is not there")
            continue
        for submitter in submission.submitters:
            names = [submitter.sid, submitter.email, submitter.name]
            student = next(filter(None, map(matching.student, names)), None)
            student = student or submitter.sid or submitter.email or submission.folder
            number = int(re.sub(r"\D", "", submission.folder) or 0)
            found.append(Found(student[:_MAX_NAME], path, submission.folder,
                               submission.submitted_at, number))  # fmt: skip
    unlisted = {entry.name for entry in _entries(folder)} - {s.folder for s in listed}
    notes += [f"{shown(n)} is not in {gradescope.FILE}" for n in sorted(unlisted)
              if n != gradescope.FILE]  # fmt: skip
    return found, notes[:_MAX_NOTES]


def _of_moodle(entries: list[os.DirEntry], matching: Matching) -> tuple[list[Found], list[str]]:
    found, notes = [], []
    for entry in entries:
        match = _MOODLE.fullmatch(entry.name)
        if match is None or match[3] == "onlinetext" or not entry.is_dir(follow_symlinks=False):
            notes.append(f"{shown(entry.name)} is no submission of files: left out")
            continue
        student = matching.student(match[2]) or matching.student(match[1]) or match[2]
        found += _in_folder(student, Path(entry.path), entry.name)
    return found, notes[:_MAX_NOTES]


def _of_canvas(
    entries: list[os.DirEntry], matching: Matching, work: Path
) -> tuple[list[Found], list[str]]:
    files: dict[tuple[str, str], list[tuple[int, str, os.DirEntry]]] = {}
    late: set[str] = set()
    notes = []
    for entry in entries:
        match = _CANVAS.fullmatch(entry.name)
        if match is None or not entry.is_file(follow_symlinks=False):
            notes.append(f"{shown(entry.name)} is not named as Canvas does: left out")
            continue
        files.setdefault((match[1], match[3]), []).append((int(match[4]), match[5], entry))
        late |= {match[3]} if match[2] else set()
    found = []
    for (name, user), parts in files.items():
        student = matching.student(user) or matching.student(name) or user
        said = ("Canvas says that it is late",) if user in late else ()
        parts.sort(key=lambda part: part[0])
        archives = [part for part in parts if is_archive(part[1])]
        loose = [part for part in parts if not is_archive(part[1])]
        for number, _, entry in archives:
            found.append(Found(student, Path(entry.path), entry.name, None, number, said))
        folder = _gathered([(inner, Path(entry.path)) for _, inner, entry in loose], work)
        if not archives or holds_answers(folder):  # the archives may be of something else
            number, name = (-1 if archives else loose[-1][0]), loose[0][2].name
            found.append(Found(student, folder, name, None, number, said))
    return found, notes[:_MAX_NOTES]


def _gathered(files: list[tuple[str, Path]], work: Path) -> Path:
    """Return a folder with files under the names that the student gave them; the last stays."""
    folder = Path(tempfile.mkdtemp(dir=work)) / "the files handed in"  # as messages call it
    folder.mkdir()
    for name, path in files:
        target = folder / name
        with contextlib.suppress(OSError):  # reading the submission says what is missing
            target.unlink(missing_ok=True)
            copy_regular(path, target)
    return folder


def _by_name(entries: list[os.DirEntry], matching: Matching) -> tuple[list[Found], list[str]]:
    """A folder or an archive for each student, named by id, email, its local part, or a clone."""
    folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    prefix = _prefix_of_clones(entries) if matching.is_empty else ""
    found, notes = [], []
    for entry in entries:
        is_folder = entry.name in folders
        if not is_folder and not (entry.is_file(follow_symlinks=False) and is_archive(entry.name)):
            notes.append(f"{shown(entry.name)} is no folder and no archive: left out")
            continue
        name = entry.name if is_folder else without_suffix(entry.name)
        student = matching.student(name) or matching.of_clone(name) or name.removeprefix(prefix)
        if not 0 < len(student) <= _MAX_NAME:
            notes.append(f"{shown(entry.name)} is no name of a student: left out")
        elif is_folder:
            found += _in_folder(student, Path(entry.path), entry.name)
        else:
            found.append(Found(student, Path(entry.path), entry.name))
    return found, notes[:_MAX_NOTES]


def _prefix_of_clones(entries: list[os.DirEntry]) -> str:
    """Return what all clones of an assignment begin with, when nobody says who is in the class."""
    clones = [e.name for e in entries if os.path.isdir(os.path.join(e.path, ".git"))]
    common = os.path.commonprefix(clones)  # noqa: RUF071 - these are names
    return common[: common.rfind("-") + 1] if len(clones) > 1 else ""


def _in_folder(student: str, folder: Path, name: str) -> Iterator[Found]:
    """Give the submission in a student's folder, or its archives where it has no answer itself."""
    try:
        inner = _entries(folder)
    except SourceError:  # reading the submission says why, and the others are read
        inner = []
    packed = [e for e in inner if e.is_file(follow_symlinks=False) and is_archive(e.name)]
    if not packed or holds_answers(folder):
        yield Found(student, folder, name)
        return
    others = [f"{shown(e.name)} is no archive: left out" for e in inner if e not in packed]
    for entry in packed:
        shown_as = f"{name}/{entry.name}"
        yield Found(student, Path(entry.path), shown_as, notes=tuple(others[:_MAX_NOTES]))
