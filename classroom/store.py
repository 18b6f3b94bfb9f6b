"""The database of a class, one SQLite file; one process writes it.

Every method commits before it returns: a run that is killed loses only unfinished gradings.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from classroom.records import (
    Decision,
    Fault,
    FileResult,
    HandIn,
    Key,
    Publication,
    PublishedGrade,
    Student,
)
from grader.spec.environment import EnvironmentFault
from grader.spec.grade_record import Record

_Record = TypeVar("_Record", bound=Record)
SCHEMA_VERSION = 2
_APPLICATION_ID = 0x464C4153  # the mark in SQLite's header that identifies our files
_TABLES = """
CREATE TABLE students (id TEXT PRIMARY KEY, position INTEGER NOT NULL, record TEXT NOT NULL);
CREATE TABLE files (sha256 TEXT PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE hand_ins (student TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE results (
  problem TEXT, sha256 TEXT, version TEXT, record TEXT NOT NULL,
  PRIMARY KEY (problem, sha256, version)
);
CREATE TABLE versions (problem TEXT PRIMARY KEY, version TEXT NOT NULL, possible REAL);
CREATE TABLE faults (number INTEGER PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE decisions (number INTEGER PRIMARY KEY, student TEXT NOT NULL, record TEXT NOT NULL);
CREATE TABLE publications (number INTEGER PRIMARY KEY, author TEXT NOT NULL, at TEXT NOT NULL);
CREATE TABLE grades (
  publication INTEGER REFERENCES publications(number), student TEXT, problem TEXT,
  record TEXT NOT NULL, PRIMARY KEY (publication, student, problem)
);
"""
# Migrations, by the version they start from. Version 1 had separate tables of overrides and
# extensions, and did not store the points that a machine can measure.
_STEPS = {
    1: """
ALTER TABLE versions ADD COLUMN possible REAL;
CREATE TABLE decisions (number INTEGER PRIMARY KEY, student TEXT NOT NULL, record TEXT NOT NULL);
INSERT INTO decisions (student, record)
  SELECT student, record FROM (
    SELECT student, json_set(record, '$.kind', 'override') AS record, number FROM overrides
    UNION ALL
    SELECT student, json_set(record, '$.kind', 'extend'), number FROM extensions
  ) ORDER BY json_extract(record, '$.at'), number;
DROP TABLE overrides;
DROP TABLE extensions;
"""
}
_OF_KEY = "results WHERE problem = ? AND sha256 = ? AND version = ?"


class StoreError(EnvironmentFault):
    """The database cannot be read or written; says where, got, expected and remedy."""


class Store:
    """The database at `path`, created if it is missing."""

    def __init__(self, path: Path) -> None:
        """Open the database.

        Raises:
            StoreError: the file is not ours, of a newer version, in use, or not writable.
        """
        self.path = path
        with self._explained():
            self._connection = sqlite3.connect(path, timeout=5.0, isolation_level=None)
            try:
                self._connection.execute("PRAGMA foreign_keys = ON")
                self._connection.execute("PRAGMA secure_delete = ON")  # overwrite deleted students
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self) -> None:
        known = self._pragma("application_id"), self._pragma("user_version")
        if known == (0, 0) and not self._all("SELECT name FROM sqlite_master"):
            with self._transaction():
                self._run(_TABLES)
                self._connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        elif known[0] != _APPLICATION_ID:
            raise StoreError(f"{self.path}: got another program's database, expected a class's")
        elif known[1] > SCHEMA_VERSION:
            raise StoreError(
                f"{self.path}: got version {known[1]}, expected {SCHEMA_VERSION} or older: a newer"
                " grader made it; use that one"
            )
        elif known[1] < SCHEMA_VERSION:
            with self._transaction():  # read again: another process may have migrated
                for version in range(self._pragma("user_version"), SCHEMA_VERSION):
                    self._run(_STEPS[version])

    def _run(self, statements: str) -> None:
        for statement in statements.split(";"):
            self._connection.execute(statement)
        self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _pragma(self, name: str) -> int:
        return self._connection.execute(f"PRAGMA {name}").fetchone()[0]

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- students and hand-ins -------------------------------------------------------------------

    def set_students(self, students: Iterable[Student]) -> None:
        """Replace the roster."""
        rows = [(s.id, at, s.model_dump_json()) for at, s in enumerate(students)]
        with self._explained(), self._transaction():
            self._connection.execute("DELETE FROM students")
            self._connection.executemany("INSERT INTO students VALUES (?, ?, ?)", rows)

    def students(self) -> tuple[Student, ...]:
        """Return the roster in its order."""
        return self._records(Student, "students ORDER BY position")

    def save_hand_in(
        self, hand_in: HandIn, files: Mapping[str, bytes], earlier: Iterable[bytes] = ()
    ) -> None:
        """Store a student's hand-in in place of the former one; `files` are by problem.

        `earlier` has the bytes of the hand-in's other files, as far as they are not stored yet.
        """
        hashes = {problem: hashlib.sha256(data).hexdigest() for problem, data in files.items()}
        if hashes != hand_in.files:
            raise ValueError("the hashes of a hand-in are those of its files")
        with self._explained(), self._transaction():
            rows = [
                (hashlib.sha256(data).hexdigest(), data) for data in (*files.values(), *earlier)
            ]
            self._connection.executemany("INSERT OR IGNORE INTO files VALUES (?, ?)", rows)
            row = (hand_in.student, hand_in.model_dump_json())
            self._connection.execute("INSERT OR REPLACE INTO hand_ins VALUES (?, ?)", row)

    def hand_ins(self) -> dict[str, HandIn]:
        """Return the hand-ins, by student."""
        return {h.student: h for h in self._records(HandIn, "hand_ins ORDER BY student")}

    def data(self, sha256: str) -> bytes:
        """Return the bytes of a file that was handed in."""
        rows = self._all("SELECT data FROM files WHERE sha256 = ?", sha256)
        if not rows:
            raise StoreError(f"{self.path}: no file has the SHA-256 {sha256}")
        return rows[0][0]

    def forget(self, student: str) -> int:
        """Delete all data of a student; return the number of deleted rows.

        A file and its results stay if another student handed in the same file.
        """
        with self._explained(), self._transaction():
            before = self._connection.total_changes
            self._connection.execute("DELETE FROM students WHERE id = ?", (student,))
            for table in ("hand_ins", "decisions", "grades"):
                self._connection.execute(f"DELETE FROM {table} WHERE student = ?", (student,))
            used = {sha for hand_in in self.hand_ins().values() for sha in hand_in.all_files}
            unused = [row for row in self._all("SELECT sha256 FROM files") if row[0] not in used]
            for table, sha in (
                ("files", "sha256"),
                ("results", "sha256"),
                ("faults", "json_extract(record, '$.key.sha256')"),
            ):
                self._connection.executemany(f"DELETE FROM {table} WHERE {sha} = ?", unused)
            changed = self._connection.total_changes - before
        return changed

    # -- results ---------------------------------------------------------------------------------

    def save_results(self, results: Iterable[FileResult]) -> None:
        """Save results; one that exists already stays, since it may have been published."""
        rows = [(r.key.problem, r.key.sha256, r.key.version, r.model_dump_json()) for r in results]
        with self._explained(), self._transaction():
            self._connection.executemany("INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?)", rows)

    def has_result(self, key: Key) -> bool:
        """Whether a key has been graded."""
        return bool(self._all(f"SELECT 1 FROM {_OF_KEY}", key.problem, key.sha256, key.version))

    def result(self, key: Key) -> FileResult | None:
        """Return the result of a key, None where it has not been graded."""
        found = self._records(FileResult, _OF_KEY, key.problem, key.sha256, key.version)
        return found[0] if found else None

    def last_result(self, problem: str, sha256: str) -> FileResult | None:
        """Return the newest result of a file, of whatever version; None without one."""
        newest = "results WHERE problem = ? AND sha256 = ? ORDER BY rowid DESC LIMIT 1"
        found = self._records(FileResult, newest, problem, sha256)
        return found[0] if found else None

    def set_versions(
        self, versions: Mapping[str, str], possible: Mapping[str, float] | None = None
    ) -> None:
        """Set, by problem, the version whose results count; other problems keep theirs.

        These are the versions of the last grading, and the points that its machine can measure: a
        reader on another machine cannot know its device and packages.
        """
        rows = [(id, version, (possible or {}).get(id)) for id, version in versions.items()]
        with self._explained(), self._transaction():
            self._connection.executemany("INSERT OR REPLACE INTO versions VALUES (?, ?, ?)", rows)

    def versions(self) -> dict[str, str]:
        """Return, by problem, the version whose results count."""
        return dict(self._all("SELECT problem, version FROM versions ORDER BY problem"))

    def possible(self) -> dict[str, float]:
        """Return, by problem, the points that the machine of the last grading can measure."""
        return dict(self._all("SELECT problem, possible FROM versions WHERE possible NOT NULL"))

    # -- faults, decisions and publications: none is ever replaced -------------------------------

    def add(self, *records: Fault | Decision) -> None:
        """Store faults of the infrastructure, or decisions and requests."""
        with self._explained(), self._transaction():
            for record in records:
                row = {"record": record.model_dump_json()}
                if isinstance(record, Decision):
                    row["student"] = record.student
                into = f"{type(record).__name__.lower()}s ({', '.join(row)})"
                marks = ", ".join("?" * len(row))
                values = tuple(row.values())
                self._connection.execute(f"INSERT INTO {into} VALUES ({marks})", values)

    def faults(self) -> tuple[Fault, ...]:
        """Return the faults of the infrastructure, the oldest first."""
        return self._records(Fault, "faults ORDER BY number")

    def decisions(self, *kinds: str) -> tuple[Decision, ...]:
        """Return the decisions and requests of these kinds, or of all, the oldest first."""
        found = self._records(Decision, "decisions ORDER BY number")
        return tuple(one for one in found if not kinds or one.kind in kinds)

    def publish(self, author: str, at: str, grades: Iterable[PublishedGrade]) -> int:
        """Store a complete publication; return its number."""
        with self._explained(), self._transaction():
            cursor = self._connection.execute(
                "INSERT INTO publications (author, at) VALUES (?, ?)", (author, at)
            )
            number = cursor.lastrowid
            rows = [(number, g.student, g.problem, g.model_dump_json()) for g in grades]
            self._connection.executemany("INSERT INTO grades VALUES (?, ?, ?, ?)", rows)
        return number

    def last_publication(self) -> Publication | None:
        """Return the last publication, None if there is none."""
        rows = self._all("SELECT * FROM publications ORDER BY number DESC LIMIT 1")
        if not rows:
            return None
        number, author, at = rows[0]
        grades = self._records(PublishedGrade, "grades WHERE publication = ?", number)
        return Publication(number=number, author=author, at=at, grades=grades)

    def published(self) -> dict[tuple[str, str], list[tuple[str, float]]]:
        """Return, by student and problem, times and points of publications, the oldest first."""
        query = (
            "SELECT student, problem, at, json_extract(record, '$.points')"
            " FROM grades JOIN publications ON publication = number ORDER BY number"
        )
        found: dict[tuple[str, str], list[tuple[str, float]]] = {}
        for student, problem, at, points in self._all(query):
            found.setdefault((student, problem), []).append((at, points))
        return found

    # -- SQLite ----------------------------------------------------------------------------------

    def _all(self, query: str, *values: object) -> list[tuple]:
        with self._explained():
            return self._connection.execute(query, values).fetchall()

    def _records(self, kind: type[_Record], selection: str, *values: object) -> tuple[_Record, ...]:
        rows = self._all(f"SELECT record FROM {selection}", *values)
        return tuple(kind.model_validate_json(text) for (text,) in rows)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.rollback()
            raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(
                f"{self.path}: {error}: what is stored already is kept; run the command again when"
                " the database can be written"
            ) from error
