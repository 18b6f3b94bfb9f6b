"""Whose submission is whose, in every layout that is known, and what hostile ones come to."""

import hashlib
import json
import os
import tarfile
import zipfile

import pytest

from classroom.collect import collect
from classroom.records import Student
from grader.spec.problem import load_problem
from tests.classes import P02, by_student, notes_of, packed, write

ROSTER = (
    Student(id="s1", name="Ada Lovelace", email="ada@x.edu", login="a-love", number="55"),
    Student(id="s2", name="Hopper, Grace", email="grace@x.edu", login="ghopper", number="56"),
    Student(id="Participant 77", name="Alan Turing"),
)
P04 = f"p04/{load_problem('p04').file}"


def zipped(folder, path):
    """The zip of a folder, as a course's system delivers it."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, f"export/{file.relative_to(folder)}")
    return path


LAYOUTS = {
    "a folder per student": {
        f"s1/{P02}": "one",
        f"grace/deep/{P02}": "two",
        f"stranger/{P02}": "three",
    },
    "clones of GitHub Classroom": {
        f"flash-2026-a-love/{P02}": "one",
        f"flash-2026-GHopper/{P02}": "two",
        f"flash-2026-stranger/{P02}": "three",
    },
    "archives named by id or email": {
        "s1.zip": packed({P02: "one"}),
        "grace@x.edu.zip": packed({f"x/{P02}": "two"}),
        "stranger.zip": packed({P02: "three"}),
    },
    "Gradescope": {
        "submission_metadata.yml": (
            "---\nsubmission_11:\n  :submitters:\n  - :name: Ada\n    :sid: 's1'\n"
            "    :email: ada@x.edu\n  :created_at: 2026-11-20 10:00:00.293850000 Z\n"
            "  :score: 0.0\n  :results:\n    output: |-\n      submission_99:\n"
            'submission_12:\n  :submitters:\n  - :name: "Gr\\u00e4ce"\n    :sid:\n'
            "    :email: GRACE@x.edu\n"
            "  :created_at: !ruby/object:ActiveSupport::TimeWithZone\n"
            "    utc: &1 2026-11-20 11:00:00.000000000 Z\n"
            "    time: 2026-11-20 03:00:00.0 Z\n"
            "submission_13:\n  :submitters:\n  - :name: 'O''Neill'\n    :sid: stranger\n"
        ),
        f"submission_11/{P02}": "one",
        "submission_12/answers.zip": packed({P02: "two"}),
        f"submission_13/{P02}": "three",
    },
    "Canvas": {
        "lovelaceada_LATE_s1_9_weighted_row_sum.py": "",
        "adalovelace_101_501_weighted_row_sum-1.py": "one",
        "hoppergrace_LATE_102_502_answers.zip": packed({P02: "two"}),
        "stranger_103_503_weighted_row_sum.py": "three",
    },
    "Moodle": {
        f"Ada Lovelace_55_assignsubmission_file/{P02}": "one",
        "Grace Hopper_56_assignsubmission_file_/answers.zip": packed({P02: "two"}),
        f"Un Known_57_assignsubmission_file/{P02}": "three",
        "Ada Lovelace_55_assignsubmission_onlinetext/onlinetext.html": "<p>",
    },
    "Moodle, not in folders": {
        "Ada Lovelace_55_assignsubmission_file_weighted_row_sum.py": "one",
        "Grace Hopper_56_assignsubmission_file_77_1_answers.zip": packed({P02: "two"}),
        "s1_57_assignsubmission_file_55_assignsubmission_file_a.zip": packed({P02: "three"}),
        "Ada Lovelace_55_assignsubmission_onlinetext_onlinetext.html": "<p>",
    },
}
CANVAS_ROSTER = (Student(id="101", name="Lovelace, Ada"), Student(id="102", name="Hopper, Grace"))


@pytest.mark.parametrize("form", ["folder", "archive"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_says_whose_a_submission_is(tmp_path, layout, form):
    source = write(tmp_path / "class", LAYOUTS[layout])
    if form == "archive":
        source = zipped(source, tmp_path / "class.zip")
    canvas = layout == "Canvas"
    found = collect(source, CANVAS_ROSTER if canvas else ROSTER)
    ada, grace = ("101", "102") if canvas else ("s1", "s2")
    stranger = {"Canvas": "103", "Moodle": "57", "Moodle, not in folders": "57", "clones of GitHub "
                "Classroom": "flash-2026-stranger"}.get(layout, "stranger")  # fmt: skip
    read = by_student(found)
    assert read == {ada: {"p02": b"one"}, grace: {"p02": b"two"}, stranger: {"p02": b"three"}}


def test_gradescope_says_when_and_whose_in_a_group(tmp_path):
    text = (
        "submission_11:\n  :submitters:\n  - :name: Ada\n    :sid: s1\n  - :name: G\n"
        "    :sid: s2\n  :created_at: 2026-11-20 10:00:00.5 -0800\n"
    )
    source = write(tmp_path, {"submission_metadata.yml": text, f"submission_11/{P02}": "x"})
    found = collect(source, ROSTER)
    assert {h.student: h.submitted_at for h, _ in found.hand_ins} == dict.fromkeys(
        ("s1", "s2"), "2026-11-20T18:00:00Z"
    )
    of_ruby = collect(write(tmp_path / "ruby", LAYOUTS["Gradescope"]), ROSTER)
    assert [h.submitted_at for h, _ in of_ruby.hand_ins] == [
        "2026-11-20T10:00:00Z",
        "2026-11-20T11:00:00Z",
        None,
    ]


@pytest.mark.parametrize(
    "name",
    [
        "'Jane " + "van " * 18 + "\n      :sid: s2 Doe'",
        "|-\n      Jane\n      Doe",
        '"Jane\\\\q\n      \\ Doe"',
        "'Jane\n\n      Doe'",
        '"\'no end"',
    ],
)
def test_a_name_that_a_student_chose_keeps_no_class_from_being_read(tmp_path, name):
    text = "".join(
        f"submission_{n}:\n  :submitters:\n  - :name: {name}\n    :sid: s{n}\n"
        "  :created_at: 2026-11-20 10:00:00 Z\n"
        for n in (1, 2)
    )
    files = {f"submission_{n}/{P02}": f"{n}" for n in (1, 2)}
    source = write(tmp_path, {"submission_metadata.yml": text, **files})
    assert by_student(collect(source, ROSTER)) == {"s1": {"p02": b"1"}, "s2": {"p02": b"2"}}


@pytest.mark.parametrize(
    "name",
    ["7_assignsubmission_file", "7_assignsubmission_file_", "submission_metadata.yml", "p02"],
)
def test_a_file_that_is_named_as_elsewhere_leaves_the_layout_of_canvas(tmp_path, name):
    files = {"doejane_101_9_a.zip": packed({P02: "1"}), f"roerick_102_10_{name}": "x"}
    found = by_student(collect(write(tmp_path, files), CANVAS_ROSTER))
    assert found["101"] == {"p02": b"1"}
    assert found["102"].startswith("the files handed in: got no answer")


def test_what_lies_beside_an_archive_keeps_it_from_nothing(tmp_path):
    folder = "Alan Turing_77_assignsubmission_file"
    moodle = {f"{folder}/a.zip": packed({P02: "1"}), f"{folder}/notes.pdf": "x"}
    found = collect(write(tmp_path / "moodle", moodle), ROSTER)
    assert by_student(found) == {"Participant 77": {"p02": b"1"}}
    assert notes_of(found, "Participant 77") == ("notes.pdf is no archive: left out",)
    answers = {f"s1/{P02}": "1", "s1/old.zip": packed({P02: "0"})}
    assert by_student(collect(write(tmp_path / "both", answers), ROSTER)) == {"s1": {"p02": b"1"}}


def test_on_canvas_loose_answers_count_where_the_archive_beside_them_has_none(tmp_path):
    loose = {"a_101_8_weighted_row_sum.py": "1", "a_101_9_pictures.zip": packed({"a.png": "x"})}
    found = collect(write(tmp_path / "loose", loose), CANVAS_ROSTER)
    assert by_student(found) == {"101": {"p02": b"1"}}
    assert notes_of(found, "101")[0].startswith("a_101_9_pictures.zip: got no answer")
    both = loose | {"a_101_10_all.zip": packed({P02: "2"})}
    found = collect(write(tmp_path / "both", both), CANVAS_ROSTER)
    assert by_student(found) == {"101": {"p02": b"2"}}
    assert "a_101_8_weighted_row_sum.py is not read: a_101_10_all.zip counts" in notes_of(
        found, "101"
    )


def test_a_path_too_long_for_the_system_is_left_out_and_the_others_are_read(tmp_path):
    path = tmp_path / "class.tar"
    with tarfile.open(path, "w") as archive:
        for name in (f"s1/{P02}", f"s2/{'a' * 250}/" * 17 + "x", f"s2/{P02}"):
            archive.addfile(tarfile.TarInfo(name))
    found = collect(path, ROSTER)
    assert by_student(found) == {"s1": {"p02": b""}, "s2": {"p02": b""}}
    assert len(found.notes) == 1 and found.notes[0].endswith(
        "has a path that is not used: left out"
    )


def test_the_last_submission_of_a_student_counts_and_the_other_is_noted(tmp_path):
    text = "".join(
        f"submission_{n}:\n  :submitters:\n  - :sid: s1\n  :created_at: 2026-11-{day} 10:00:00 Z\n"
        for n, day in ((11, 21), (12, 20))
    )
    source = write(
        tmp_path,
        {
            "submission_metadata.yml": text,
            f"submission_11/{P02}": "late",
            f"submission_12/{P02}": "x",
        },
    )
    found = collect(source, ROSTER)
    assert by_student(found) == {"s1": {"p02": b"late"}}
    assert notes_of(found, "s1") == ("submission_12 is an earlier submission",)


def test_the_last_attempt_of_canvas_counts_and_the_newest_file_elsewhere(tmp_path):
    canvas = {f"a_101_{n}_a.zip": packed({P02: str(n)}) for n in (9, 10)}
    found = collect(write(tmp_path / "canvas", canvas), CANVAS_ROSTER)
    assert by_student(found) == {"101": {"p02": b"10"}}
    late = write(tmp_path / "late", {"a_LATE_101_9_weighted_row_sum.py": "x"})
    assert "Canvas says that it is late" in notes_of(collect(late, CANVAS_ROSTER), "101")
    plain = {f"s1/{P02}": "old", "s1.zip": packed({P02: "new"})}
    source = write(tmp_path / "plain", plain)
    os.utime(source / "s1", (1, 1))
    assert by_student(collect(source, ROSTER)) == {"s1": {"p02": b"new"}}
    os.utime(source / "s1.zip", (0, 0))
    assert by_student(collect(source, ROSTER)) == {"s1": {"p02": b"old"}}


def test_a_last_submission_that_cannot_be_read_leaves_the_one_before(tmp_path):
    source = write(tmp_path, {f"s1/{P02}": "old", "s1.zip": b"PK\3\4 damaged"})
    os.utime(source / "s1", (1, 1))
    found = collect(source, ROSTER)
    assert by_student(found) == {"s1": {"p02": b"old"}}
    assert "a later submission cannot be read: s1.zip is damaged" in notes_of(found, "s1")[0]


def test_times_come_from_a_file_where_the_source_does_not_know(tmp_path):
    source = write(tmp_path, {f"x-a-love/{P02}": "x", f"x-s2/{P02}": "x"})
    early, late = "2026-11-20T10:00:00Z", "2026-11-21T10:00:00Z"
    times = {("", "a-love"): early, ("", "s1"): late, ("s2", "a-love"): late}
    times_of = {h.student: h.submitted_at for h, _ in collect(source, ROSTER, times).hand_ins}
    assert times_of == {"s1": early, "x-s2": None}  # a login is no id, and the id goes first
    assert collect(source, ROSTER).hand_ins[0][0].submitted_at is None


def test_without_a_roster_students_are_called_as_their_submissions(tmp_path):
    source = write(tmp_path, {f"fa-ada/{P02}": "1", f"fa-bob/{P02}": "2"})
    assert set(by_student(collect(source))) == {"fa-ada", "fa-bob"}
    for name in ("fa-ada", "fa-bob"):
        (source / name / ".git").mkdir()
    assert set(by_student(collect(source))) == {"ada", "bob"}


def test_a_name_of_two_students_means_neither(tmp_path):
    twins = (Student(id="1", email="a@x.edu"), Student(id="2", email="a@y.edu"))
    source = write(tmp_path, {f"a/{P02}": "x", f"1/{P02}": "x"})
    assert set(by_student(collect(source, twins))) == {"1", "a"}
    named = (Student(id="x1", name="77"), Student(id="77"))
    assert set(by_student(collect(write(tmp_path / "id", {f"77/{P02}": "x"}), named))) == {"77"}
    other = (Student(id="ada", email="x@x.edu"), Student(id="b", email="ada@x.edu"))
    source = write(tmp_path / "more", {f"ada/{P02}": "x"})
    assert set(by_student(collect(source, other))) == {"ada"}


def test_canvas_test_student_is_no_student_without_a_roster_either(tmp_path):
    names = ("adalovelace_77_1_submission.zip", "studenttest_9001_2_submission.zip")
    source = write(tmp_path, dict.fromkeys(names, packed({P02: "1"})))
    found = collect(source)
    assert list(by_student(found)) == ["77"]
    assert f"{names[1]} is of Canvas's test student: left out" in found.notes
    roster = [Student(id="9001", name="Test Student"), Student(id="77")]
    assert set(by_student(collect(source, roster))) == {"77", "9001"}  # somebody of this name


def test_no_note_names_what_the_course_handed_out(tmp_path):
    released = {
        "Makefile": "x",
        "README.md": "x",
        "docs/grading.md": "x",
        "problems/given/x.py": "",
    }
    same = {"problems/given/same.py": "y"}
    hashes = {"problems/given/same.py": hashlib.sha256(b"y").hexdigest()}
    ledger = json.dumps({"files": dict.fromkeys(released, "") | hashes})
    own = {"problems/p02/README.md": "x", "problems/p02/test_p02.py": "x", "notes.txt": "x"}
    files = {f"problems/{P02}": "1", **released, **same, **own, ".release.json": ledger}
    source = write(tmp_path, {f"ada/{name}": data for name, data in files.items()})
    assert notes_of(collect(source, [Student(id="ada")]), "ada") == (
        "notes.txt: not graded",
        "problems/given/x.py: not used, the judge has its own copy",
    )
    write(tmp_path, {"ada/.release.json": '{"files": [1, {"a": 2}]}'})
    assert len(notes_of(collect(source, [Student(id="ada")]), "ada")) == 2
