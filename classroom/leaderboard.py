"""The fastest right answers of those who asked to be listed, under names that they chose."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from types import SimpleNamespace

from classroom.figures import speed_of
from classroom.folder import one_of
from classroom.grades import Standing
from classroom.records import CourseError
from classroom.roster import column, table
from grader.base.text import clean
from grader.spec.problem import load_problem

_COLUMNS = ("id", "pseudonym")
_MAX_NAME = 40


def read_optins(path: Path, standing: Standing) -> dict[str, str]:
    """Return the pseudonyms of those who opted in, by id.

    Raises:
        CourseError: it is no such file, an id is unknown or twice there, or a pseudonym is empty,
            too long, taken, or what somebody of the class is called.
    """
    header, rows = table(path)
    columns = [column(header, (name,)) for name in _COLUMNS]
    if None in columns:
        got = ", ".join(map(clean, header))
        raise CourseError(f"{path}: got the columns {got}, expected {','.join(_COLUMNS)}")
    known = {student.id for student in standing.students}
    called = {
        _bare(text): student.id
        for student in standing.students
        for text in (student.id, student.name, student.email, student.email.partition("@")[0])
        if text
    }
    found: dict[str, str] = {}
    taken: dict[str, int] = {}
    for line, row in rows:
        where = f"{path}: line {line}"
        id, name = map(row.get, columns)
        one_of(known, id, f"{where}: id")
        pseudonym = clean(name, 2 * _MAX_NAME)
        bare = _bare(pseudonym)
        if id in found:
            raise CourseError(f"{where}: id: got {id!r} a second time, expected each once")
        if not bare or len(pseudonym) > _MAX_NAME:
            raise CourseError(
                f"{where}: pseudonym: got {pseudonym!r}, expected 1 to {_MAX_NAME} characters"
            )
        if bare in taken:
            raise CourseError(
                f"{where}: pseudonym: got {pseudonym!r}, which is that of line {taken[bare]};"
                " expected another"
            )
        if bare in called:
            raise CourseError(
                f"{where}: pseudonym: got {pseudonym!r}, what a student of the class is called;"
                " expected a name that tells nobody"
            )
        found[id], taken[bare] = pseudonym, line
    return found


def _bare(text: str) -> str:
    """Return what is left of a name when looks are put aside: case, width, marks and blanks."""
    plain = unicodedata.normalize("NFKD", clean(text)).casefold()
    return "".join(char for char in plain if char.isalnum())


def boards(standing: Standing, pseudonyms: dict[str, str]) -> list[SimpleNamespace]:
    """Return a board for each problem, kind of device and shape, the fastest first.

    Listed are answers with full points for correctness that were timed on a GPU. Equal speed-ups
    share a rank.
    """
    found: dict[tuple[str, str, str], list[tuple[float, str, float | None]]] = {}
    for problem in standing.problems:
        for student, pseudonym in pseudonyms.items():
            result = standing.result(student, problem)
            if result is None or result.environment.device != "cuda":
                continue
            if (speed := speed_of(result)) is not None:
                place = problem, result.environment.device_name, speed.shape
                entry = round(speed.speedup, 1), pseudonym, speed.median_ms
                found.setdefault(place, []).append(entry)
    return [
        SimpleNamespace(
            problem=problem,
            title=load_problem(problem).title,
            device=device,
            shape=shape,
            entries=_ranked(answers),
        )
        for (problem, device, shape), answers in found.items()
    ]


def _ranked(answers: list[tuple[float, str, float | None]]) -> list[dict[str, object]]:
    return [
        {
            "rank": 1 + sum(other[0] > speedup for other in answers),
            "pseudonym": name,
            "speedup": speedup,
            "median_ms": median_ms,
        }
        for speedup, name, median_ms in sorted(answers, key=lambda a: (-a[0], a[1]))
    ]
