"""Nobody loses a hand-in: whose it is depends on nothing that a student can choose."""

import pytest

from classroom.collect import collect
from classroom.records import CourseError, Student
from tests.classes import P02, by_student, notes_of, packed, write

BOB = Student(id="s1", name="Bob", email="bob@x.edu", login="bob", number="101")
EVE = Student(id="s2", name="Eve", email="eve@x.edu", login="evil-bob", number="102")


def gradescope(*submissions):
    """submission_metadata.yml of (number, SID, address, name), the later ones newer."""
    return "".join(
        f"submission_{n}:\n  :submitters:\n  - :name: {name}\n    :sid: {sid}\n"
        f"    :email: {email}\n  :created_at: 2026-11-20 10:00:{n} Z\n"
        for n, sid, email, name in submissions
    )


@pytest.mark.parametrize(
    "files",
    [
        {f"hw1-evil-bob/{P02}": "theirs", f"hw1-bob/{P02}": "own", f"hw1-s1/{P02}": "theirs"},
        {
            f"bob_102_assignsubmission_file/{P02}": "theirs",
            f"A Name_101_assignsubmission_file/{P02}": "own",
            f"s1_103_assignsubmission_file/{P02}": "theirs",
            f"bob@x.edu_104_assignsubmission_file/{P02}": "theirs",
        },
        {
            "s1_102_9_a.zip": packed({P02: "theirs"}),
            "a_name_LATE_101_8_2026_a.zip": packed({P02: "own"}),
            "a_name_103_9_a.zip": packed({P02: "theirs"}),
        },
        {
            "submission_metadata.yml": gradescope(
                (11, "s1", "bob@x.edu", "B"), (12, "s2", "e@e", "s1"), (13, "", "e@e", "bob@x.edu")
            ),
            f"submission_11/{P02}": "own",
            f"submission_12/{P02}": "theirs",
            f"submission_13/{P02}": "theirs",
        },
    ],
    ids=["clones", "Moodle", "Canvas", "Gradescope"],
)
@pytest.mark.parametrize("roster", [(BOB, EVE), (BOB,)], ids=["a neighbour", "a stranger"])
def test_what_a_student_can_choose_makes_no_file_anothers(tmp_path, files, roster):
    found = collect(write(tmp_path, files), roster)
    read = by_student(found)
    assert read["s1"] == {"p02": b"own"} and notes_of(found, "s1") in (
        (),
        ("Canvas says that it is late",),
    )
    late = [h.student for h, _ in found.hand_ins if "Canvas says that it is late" in h.notes]
    assert late in ([], ["s1"])
    assert all(theirs == {"p02": b"theirs"} for who, theirs in read.items() if who != "s1")


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ({f"s1/{P02}": "1", "bob@x.edu.zip": packed({P02: "2"})}, ("s1", "bob@x.edu.zip")),
        (
            {
                f"A_101_assignsubmission_file/{P02}": "1",
                "B_Participant_101_assignsubmission_file_a.zip": packed({P02: "2"}),
            },
            ("A_101_assignsubmission_file", "B_Participant_101_assignsubmission_file_a.zip"),
        ),
        ({"a_101_8_a.zip": b"", "b_101_9_weighted_row_sum.py": ""}, ("a_101_8_a.zip", "b_101_9_")),
        (
            {
                "submission_metadata.yml": gradescope(
                    (11, "s1", "bob@x.edu", "B"), (12, "s1", "e@e", "B")
                ),
                f"submission_11/{P02}": "1",
                f"submission_12/{P02}": "2",
            },
            ("submission_11", "submission_12"),
        ),
    ],
    ids=["names", "Moodle", "Canvas", "Gradescope"],
)
def test_two_accounts_for_one_student_are_left_to_the_instructor(tmp_path, files, names):
    source = write(tmp_path, files)
    with pytest.raises(CourseError, match="of different accounts for one student") as caught:
        collect(source, (BOB, EVE))
    assert all(name in str(caught.value) for name in ("s1 has", *names, "--choose NAME"))
    with pytest.raises(CourseError, match="different accounts"):
        collect(source, (BOB, EVE), choose=sorted(p.name for p in source.iterdir()))
    choice = next(p.name for p in source.iterdir() if p.name.startswith(names[1]))
    found = collect(source, (BOB, EVE), choose=[choice])
    assert [h.source.partition("/")[0] for h, _ in found.hand_ins] in (
        [choice],
        ["the files handed in"],
    )
    assert f"{names[0]} is not read: {choice} was chosen" in notes_of(found, "s1")


def test_an_address_goes_before_the_sid_that_a_student_enters(tmp_path):
    text = gradescope((11, "s1", "eve@x.edu", "Eve"))
    found = collect(
        write(tmp_path, {"submission_metadata.yml": text, f"submission_11/{P02}": "x"}), (BOB, EVE)
    )
    assert by_student(found) == {"s2": {"p02": b"x"}}
    assert notes_of(found, "s2") == ("the address is this student's, the SID that of s1",)


def test_two_numbers_in_a_name_of_canvas_are_left_to_the_instructor(tmp_path):
    files = {"x_101_9_102_8_a.zip": packed({P02: "x"})}
    with pytest.raises(CourseError, match="got the numbers of 101 and of s2 in one name"):
        collect(write(tmp_path, files), (BOB, EVE))


def test_clones_whose_assignment_is_not_certain_need_it(tmp_path):
    alone = write(tmp_path / "alone", {f"hw1-evil-bob/problems/{P02}": "x"})
    for roster in ((BOB,), (BOB, EVE)):
        with pytest.raises(CourseError, match=r"evil-bob, which can be a clone .*--assignment hw1"):
            collect(alone, roster)
    assert set(by_student(collect(alone, (BOB, EVE), assignment="hw1"))) == {"s2"}
    assert set(by_student(collect(alone, (BOB, EVE), assignment="HW1-evil"))) == {"s1"}
    beside = write(tmp_path / "beside", {f"hw1-bob/{P02}": "x", f"template/{P02}": "x"})
    with pytest.raises(CourseError, match="got hw1-bob, which can be a clone"):
        collect(beside, (BOB, EVE))
    found = collect(beside, (BOB, EVE), assignment="hw1")
    assert set(by_student(found)) == {"s1"}
    assert found.notes == ("template does not begin with hw1-: left out",)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Bob_9_assignsubmission_file_a.zip", "grading worksheet as --roster"),
        ("Bob_9_assignsubmission_onlinetext_a.html", "is no submission of files"),
        ("bob_9_8_a.zip", "the gradebook that Canvas exports"),
        ("Bob.zip", r"named by the roster's id, email or login.*--assignment NAME"),
        ("notes.txt", "notes.txt is no folder and no archive: left out"),
    ],
)
def test_a_source_without_a_submission_of_the_roster_says_what_to_pass(tmp_path, name, words):
    other = Student(id="s1", name="Bob", login="b")
    with pytest.raises(CourseError, match=f"got no submission of a student on the.*{words}"):
        collect(write(tmp_path, {name: packed({P02: "x"})}), (other,))
