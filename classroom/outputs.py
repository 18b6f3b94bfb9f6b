"""The files that come out of a class, in the folder of the course."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from grader.spec.environment import EnvironmentFault

CLASS_PAGE = "class.html"
SIMILAR_PAGE = "similar.html"
LEADERBOARD_PAGE = "leaderboard.html"
REPORTS = "reports"
_PLAIN = re.compile(r"[a-z0-9_][a-z0-9_-]{0,63}")
# Names that Windows keeps for devices, with any ending.
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)")


def file_stem(student: str) -> str:
    """Return a file name without ending, another one for each id, whatever the id holds.

    An id of small letters, digits, "_" and "-" stays as it is. Any other is told by its hash: a
    file system may not tell capitals, and a name may be a path, a device or too long.
    """
    if _PLAIN.fullmatch(student) and not _DEVICES.fullmatch(student):
        return student
    digest = hashlib.sha256(student.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    plain = re.sub(r"[^a-z0-9]+", "-", student.lower()).strip("-")[:40]
    return f"id-{plain}.{digest}" if plain else f"id.{digest}"


def report_files(course: Path, student: str) -> tuple[Path, Path]:
    """Return where the reports of a student are, as a page and as text."""
    stem = file_stem(student)
    return course / REPORTS / f"{stem}.html", course / REPORTS / f"{stem}.txt"


def about_all(course: Path) -> tuple[Path, ...]:
    """Return the pages that may show any student, or a figure of one."""
    return tuple(course / name for name in (CLASS_PAGE, SIMILAR_PAGE, LEADERBOARD_PAGE))


def reports_folder(course: Path) -> Path:
    """Return the folder of the students' reports, made where it is not there.

    Raises:
        OSError: it cannot be made.
        EnvironmentFault: it is a link to somewhere else.
    """
    folder = course / REPORTS
    folder.mkdir(exist_ok=True)
    if folder.is_symlink():
        raise EnvironmentFault(f"{folder}: got a link, expected a folder: remove it")
    return folder


def stale_reports(course: Path, students: Iterable[str]) -> list[Path]:
    """Return the reports in the folder that are of none of these students."""
    wanted = {file.name for student in students for file in report_files(course, student)}
    with os.scandir(course / REPORTS) as entries:
        return sorted(
            course / REPORTS / entry.name
            for entry in entries
            if entry.name.endswith((".html", ".txt"))
            and entry.name not in wanted
            and entry.is_file(follow_symlinks=False)
        )
