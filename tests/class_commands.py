"""Runs commands of a class in this process."""

import argparse
from pathlib import Path
from unittest import mock

import pytest

from classroom import command as class_command
from classroom import grade_class
from classroom.records import Student
from classroom.store import Store
from grader.base import stdout
from grader.commands.cli import declare_options
from grader.spec.grade_record import ProblemResult
from tests.classes import hand_in
from tests.environments import CPU
from tests.fake_engine import FakeEngine, fake_grade
from tests.whole_class import record, stored


def run(course: Path, *arguments: str) -> tuple[int, str]:
    """Run a command of a class; return its exit code and what it shows at 80 columns."""
    parser = argparse.ArgumentParser()
    declare_options(parser, class_command)
    name, *rest = arguments
    options = parser.parse_args([name, "--course", str(course), *rest])
    shown: list[str] = []

    def show(render, *what, **more):
        shown.append(render(*what, **more, width=80, color=False))

    with mock.patch.object(stdout, "show", show):
        code = class_command.run(options)
    return code, "".join(shown)


def students(store: Store, *ids: str) -> None:
    """Put students on the roster, each with a name and an address that tell the id."""
    store.set_students(Student(id=id, name=id.title(), email=f"{id}@uni.example") for id in ids)


def give(store: Store, student: str, *results: ProblemResult, version: str = "v1") -> None:
    """Hand in a file per result, another one for each student, and keep the results."""
    files = {r.id: f"# {student} {r.id} {r.points.earned}\n".encode() for r in results}
    hand_in(store, student, files)
    store.set_versions(dict.fromkeys([p.id for p in record().problems], version))
    store.save_results([stored(r, files[r.id], version) for r in results])


@pytest.fixture
def command(grader, monkeypatch, tmp_path):
    """Run `grader class ...` on a fake engine; return exit code, stdout and stderr."""
    monkeypatch.setattr(grade_class.grading, "look", lambda settings: CPU)
    monkeypatch.setattr(grade_class.grading, "grade", fake_grade)
    monkeypatch.setattr(grade_class, "check_set", lambda problems: None)

    def start(name, *arguments, engine=None):
        start.engine = engine or FakeEngine()
        monkeypatch.setattr(grade_class, "make_engine", lambda options: start.engine)
        return grader("class", name, *arguments, "--course", tmp_path / "course")

    return start
