"""The leaderboard of a class: who is ranked and compared, and what opt-ins may say."""

import pytest

from classroom.records import CourseError
from tests import classes
from tests.class_commands import give, run, students
from tests.classes import hand_in
from tests.pages import checked
from tests.whole_class import full, record, sped, stored, wrong

course, store = classes.course, classes.store


def board(store, course, text):
    path = course / "optins.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    code, _ = run(course, "report", "--leaderboard", str(path))
    assert code == 0
    return checked((course / "leaderboard.html").read_text(encoding="utf-8"))


def test_the_leaderboard_ranks_right_answers_of_those_who_asked(store, course):
    students(store, "ada", "bob", "cyd", "dan", "eve")
    p04 = full("p04")
    give(store, "ada", sped(p04, 1.0))
    give(store, "bob", sped(p04, 2.0))
    give(store, "cyd", sped(p04, 3.0))
    slipped = wrong(p04, ["plain"])  # timed all the same
    parts = slipped.components | {"speed": p04.components["speed"]}
    give(store, "dan", slipped.model_copy(update={"components": parts}))
    give(store, "eve", sped(p04, 2.0))
    page = board(
        store, course, "\ufeffID,Pseudonym\nada,Turbo\nbob,<i>Zed</i>\ndan,Dud\neve,Wall-E\n"
    )
    ranked = [row[:2] for row in page.rows if row and row[0].isdigit()]
    assert ranked == [["1", "<i>Zed</i>"], ["1", "Wall-E"], ["3", "Turbo"]]
    assert not any(name in page.words.lower() for name in ("ada", "bob", "cyd", "dan ", "eve "))


def test_other_devices_and_the_cpu_are_not_compared(store, course):
    students(store, "ada", "bob", "cyd")
    store.set_versions({"p04": "v1"})
    environment = record().environment
    for student, update in (
        ("ada", {}),
        ("bob", {"device_name": "NVIDIA H100"}),
        ("cyd", {"device": "cpu", "device_name": "x86_64"}),
    ):
        hand_in(store, student, {"p04": student.encode()})
        machine = environment.model_copy(update=update)
        store.save_results([stored(full("p04"), student.encode(), environment=machine)])
    page = board(store, course, "id,pseudonym\nada,One\nbob,Two\ncyd,Three\n")
    ranked = [row[:2] for row in page.rows if row and row[0].isdigit()]
    assert ranked == [["1", "One"], ["1", "Two"]]
    assert "Three" not in page.words
    assert "No answer of those" in board(store, course, "id,pseudonym\n").words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,pseudonym\nzoe,X1\n", "line 2: id: got 'zoe', expected one of ada, bob"),
        ("id,pseudonym\nada,X1\nada,X2\n", "line 3: id: got 'ada' a second time"),
        ("id,pseudonym\nada,Turbo\nbob,ＴＵＲＢＯ \n", "which is that of line 2"),
        ("id,pseudonym\nada,\n", "pseudonym: got '', expected 1 to 40"),
        ("id,pseudonym\nada\n", "pseudonym: got '', expected 1 to 40"),
        ("id,pseudonym\nada,\u202e\u200b\n", "pseudonym: got '', expected 1 to 40"),
        (f"id,pseudonym\nada,{'x' * 41}\n", "expected 1 to 40 characters"),
        ("id,pseudonym\nada,Bob\n", "what a student of the class is called"),
        ("id,pseudonym\nada,A.d.a\n", "what a student of the class is called"),
        ("id,pseudonym\nada,bob@UNI.example\n", "what a student of the class is called"),
        ("id,name\nada,Turbo\n", "got the columns id, name, expected id,pseudonym"),
        ("", "got an empty file"),
        (b"id,pseudonym\nada,\xff\n", "not UTF-8"),
        ('id,pseudonym\nada,"open\n', "not valid CSV"),
        (b"\x00" * 2**25, "got more than 16 MiB"),
    ],
)
def test_optins_that_cannot_be_used(store, course, text, words):
    students(store, "ada", "bob")
    with pytest.raises(CourseError) as caught:
        board(store, course, text)
    assert words in str(caught.value) and "optins.csv" in str(caught.value)
    assert not (course / "class.html").exists()


def test_optins_that_are_not_there(store, course):
    students(store, "ada")
    with pytest.raises(CourseError, match="cannot be read: No such file"):
        run(course, "report", "--leaderboard", str(course / "none.csv"))
