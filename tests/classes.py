"""A class without grading: results as the judge writes them, students, what they handed in."""

import hashlib
import io
import zipfile
from collections.abc import Mapping

import pytest

from classroom.records import FileResult, HandIn, Key
from classroom.store import Store
from grader.spec.grade_record import Points, ProblemResult, Verdict
from grader.spec.problem import load_problem
from tests.environments import CPU

AT = "2026-11-20T12:00:00Z"
P02 = f"p02/{load_problem('p02').file}"


def key_of(problem: str, data: bytes, version: str = "v1") -> Key:
    """Return the key of a file."""
    return Key(problem=problem, sha256=hashlib.sha256(data).hexdigest(), version=version)


def result_of(
    problem: str,
    data: bytes,
    earned: float = 7.0,
    *,
    version: str = "v1",
    verdict: Verdict = Verdict.PASS,
    available: float = 7.0,
    **fields: object,
) -> FileResult:
    """Return a result of so many points."""
    result = ProblemResult(
        id=problem,
        title=problem,
        bonus=False,
        verdict=verdict,
        points=Points(earned=earned, available=available, possible=10),
        components={},
        **fields,
    )
    return FileResult(
        key=key_of(problem, data, version),
        result=result,
        mode="local",
        seed="5eed",
        environment=CPU,
        graded_at=AT,
    )


def hand_in(store: Store, student: str, files: Mapping[str, bytes], **fields: object) -> HandIn:
    """Keep what a student handed in, `files` by problem."""
    hashes = {problem: hashlib.sha256(data).hexdigest() for problem, data in files.items()}
    given = {"source": f"{student}.zip", "submitted_at": AT} | fields
    record = HandIn(student=student, files=hashes, **given)
    store.save_hand_in(record, files)
    return record


def write(folder, files):
    """Lay out files, by path."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return folder


def packed(files):
    """A zip with these files."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return made.getvalue()


def by_student(collected):
    """Hand-ins by student, as files by problem, or the error."""
    return {h.student: h.error or dict(files) for h, files in collected.hand_ins}


def notes_of(collected, student):
    return next(h.notes for h, _ in collected.hand_ins if h.student == student)


@pytest.fixture
def course(tmp_path):
    """An empty folder of a course."""
    folder = tmp_path / "course"
    folder.mkdir()
    return folder


@pytest.fixture
def store(course):
    """The database of the course."""
    with Store(course / "class.db") as store:
        store._connection.execute("PRAGMA synchronous = OFF")  # nothing is to last
        yield store
