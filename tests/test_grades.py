"""Who has how many points: results, overrides, late days, refusals, faults."""

import pytest

from classroom.collect import render
from classroom.grades import Status, people, read_standing
from classroom.lateness import Policy, lateness, read_policy
from classroom.records import CourseError, Decision, Fault, Student
from classroom.store import Store
from grader.spec.grade_record import Message, Verdict
from tests.classes import AT, hand_in, key_of, result_of


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "class.db") as store:
        store.set_students(Student(id=name) for name in ("ada", "bob"))
        yield store


def grade(store, student="ada", problem="p02", version="v1", policy=None):
    store.set_versions({"p02": version, "p04": version})
    return read_standing(store, policy, ("p02", "p04")).grades[student, problem]


def override(points, problem="p02", student="ada", reason="regraded by hand"):
    given = {"author": "tutor", "reason": reason, "at": AT}
    return Decision(kind="override", student=student, problem=problem, points=points, **given)


def extension(days, student="ada", problem=""):
    given = {"author": "tutor", "reason": "ill", "at": AT}
    return Decision(kind="extend", student=student, days=days, problem=problem, **given)


def test_every_student_has_a_grade_for_every_problem_in_the_order_of_the_roster(store):
    store.set_students(Student(id=name) for name in ("zoe", "ada", "bob"))
    found = read_standing(store, problems=("p02", "p04")).grades.values()
    expected = [(s, p) for s in ("zoe", "ada", "bob") for p in ("p02", "p04")]
    assert [(g.student, g.problem) for g in found] == expected
    assert {(g.points, g.status) for g in found} == {(0.0, Status.NOT_HANDED_IN)}


def test_points_are_those_of_the_result_of_the_file_at_the_present_version(store):
    hand_in(store, "ada", {"p02": b"x"})
    store.save_results([result_of("p02", b"x", 3.0, version="old"), result_of("p02", b"x", 6.5)])
    found = grade(store)
    assert (found.points, found.possible, found.status) == (6.5, 7.0, Status.GRADED)
    assert found.key == key_of("p02", b"x") and found.earned == 6.5
    assert grade(store, problem="p04").status is Status.NOT_HANDED_IN
    assert grade(store, problem="p04").reason == "no file of p04"
    assert grade(store, version="old").points == 3.0
    new = grade(store, version="v3")
    assert (new.points, new.status) == (None, Status.PENDING)


def test_possible_is_what_could_be_measured_and_else_the_face_value(store):
    assert grade(store).possible == 10
    hand_in(store, "bob", {"p02": b"y"})
    store.save_results([result_of("p02", b"y", 0.0, available=7.0)])
    assert grade(store, "ada").possible == 7.0  # who handed in nothing, as everyone


def test_what_was_refused_has_no_points_and_says_why(store):
    hand_in(store, "ada", {}, error="damaged archive")
    assert (grade(store).points, grade(store).status) == (0.0, Status.REFUSED)
    assert grade(store).reason == "damaged archive"
    hand_in(store, "bob", {"p02": b"import os"})
    rejected = {"verdict": Verdict.REJECTED, "message": Message(headline="source policy: os")}
    store.save_results([result_of("p02", b"import os", 0.0, **rejected)])
    found = grade(store, "bob")
    assert (found.points, found.status) == (0.0, Status.REFUSED)
    assert found.reason == "source policy: os"


def test_a_fault_decides_nothing_until_there_is_a_result(store):
    hand_in(store, "ada", {"p02": b"x"})
    store.add(Fault(key=key_of("p02", b"x"), text="worker lost", at=AT))
    store.add(Fault(key=key_of("p02", b"x"), text="killed", at=AT))
    found = grade(store)
    assert (found.points, found.status, found.reason) == (None, Status.FAULT, "killed")
    store.save_results([result_of("p02", b"x")])
    assert grade(store).points == 7.0


def test_a_fault_of_a_new_version_leaves_the_grade_that_was_decided(store):
    hand_in(store, "ada", {"p02": b"x"})
    old = [result_of("p02", b"x", points, version=f"v{-n}") for n, points in enumerate((3.0, 6.5))]
    for result in reversed(old):
        store.save_results([result])
    fault = Fault(key=key_of("p02", b"x", "v2"), text="the judge failed", at=AT)
    found = grade(store, version="v2")
    assert (found.points, found.status) == (None, Status.PENDING)
    store.add(fault)
    found, standing = grade(store, version="v2"), read_standing(store)
    assert (found.points, found.status, found.key) == (3.0, Status.GRADED, old[0].key)
    assert found.fault == "the judge failed" and standing.result("ada", "p02") == old[0]
    assert "fault         ada p02: the judge failed" in render(standing, width=80, color=False)
    store.save_results([result_of("p02", b"x", 5.0, version="v2")])
    found = grade(store, version="v2")
    assert (found.points, found.fault) == (5.0, "")


def test_the_status_counts_files_as_the_live_view_does(store):
    for student in ("ada", "bob"):
        hand_in(store, student, {"p02": b"same", "p04": student.encode()})
    store.save_results([result_of("p02", b"same"), result_of("p04", b"ada", version="v0")])
    store.add(Fault(key=key_of("p04", b"ada"), text="node lost", at=AT))
    store.add(override(1.0))
    store.set_versions({"p02": "v1", "p04": "v1"})
    shown = render(read_standing(store), width=80, color=False)
    assert "files         2 of 3, 66 %: 1 graded, 1 fault, 1 not graded yet\n" in shown


def test_the_last_override_counts_over_everything(store):
    hand_in(store, "ada", {"p02": b"x"})
    store.save_results([result_of("p02", b"x", 6.5)])
    store.add(override(1.0))
    store.add(override(9.96, reason="second look"))
    found = grade(store)
    assert (found.points, found.status, found.earned) == (10.0, Status.OVERRIDDEN, 6.5)
    assert found.reason == "tutor: second look"
    assert grade(store, problem="p04").status is Status.NOT_HANDED_IN
    store.add(override(2.0, student="bob"))
    late = Policy(deadline="2026-11-01T00:00:00Z", percent_per_day=100)
    assert grade(store, "bob", policy=late).points == 2.0
    assert grade(store, policy=late).points == 10.0


def test_without_a_roster_everyone_who_handed_in_is_a_student(store):
    store.set_students([])
    hand_in(store, "eve", {"p02": b"x"})
    assert [student.id for student in people(store)] == ["eve"]
    assert grade(store, "eve").status is Status.PENDING


@pytest.mark.parametrize(
    ("submitted", "days", "points"),
    [
        ("2026-11-20T12:00:00Z", 0, 7.0),
        ("2026-11-20T12:00:01Z", 1, 7.0),  # the free day
        ("2026-11-21T12:00:00Z", 1, 7.0),
        ("2026-11-21T14:00:01+02:00", 2, 6.3),
        ("2026-11-23T12:00:00Z", 3, 5.6),
        ("2026-11-23T12:00:01Z", 4, 0.0),
    ],
)
def test_late_days_are_rounded_up_and_cost_a_share_of_the_points(store, submitted, days, points):
    policy = Policy(
        deadline="2026-11-20T13:00:00+01:00", free_late_days=1, percent_per_day=10, last_day=3
    )
    hand_in(store, "ada", {"p02": b"x"}, submitted_at=submitted)
    store.save_results([result_of("p02", b"x", 7.0)])
    found = grade(store, policy=policy)
    assert (found.points, found.days_late, found.earned) == (points, days, 7.0)
    assert (f"{days} day" in found.reason) == (days > 0)


def test_an_extension_moves_the_deadline_of_one_student_and_the_last_one_counts(store):
    policy = Policy(deadline=AT, percent_per_day=30, last_day=2)
    late = "2026-11-22T12:00:00Z"
    assert lateness(policy, late).factor == pytest.approx(0.4)
    assert lateness(policy, late, 0.5).days == 2
    assert lateness(policy, "2026-11-25T12:00:00Z", 3).factor > 0
    assert lateness(policy, "2026-11-25T12:00:01Z", 3).factor == 0
    hand_in(store, "ada", {"p02": b"x"}, submitted_at=late)
    store.save_results([result_of("p02", b"x", 7.0)])
    for days in (9, 1):
        store.add(extension(days))
        store.add(extension(30, "bob"))
    assert grade(store, policy=policy).days_late == 1


def test_a_penalty_takes_no_more_than_there_is_and_an_unknown_time_costs_nothing():
    policy = Policy(deadline=AT, percent_per_day=40)
    assert lateness(policy, "2027-01-01T00:00:00Z").factor == 0
    unknown = lateness(policy, None)
    assert unknown.factor == 1 and "not known" in unknown.reason
    assert lateness(Policy(), "2027-01-01T00:00:00Z").days == 0


def test_the_policy_is_read_from_course_toml(tmp_path):
    assert read_policy(tmp_path) == Policy()
    path = tmp_path / "course.toml"
    path.write_text("deadline = 2026-11-20T23:59:00+01:00\npercent_per_day = 10\nlast_day = 5\n")
    read = read_policy(tmp_path)
    assert (read.deadline, read.percent_per_day, read.last_day) == ("2026-11-20T22:59:00Z", 10, 5)
    for text, words in (
        ("deadline = 2026-11-20T23:59:00", "deadline: got '2026-11-20T23:59:00', expected a time"),
        ("deadline = 2026-11-20", "deadline: got '2026-11-20', expected a time with its zone"),
        ("deadline = 'soon'", "deadline: "),
        ("percent_per_day = 10", "deadline: got none, expected one"),
        ("deadline = 2026-11-20T23:59:00Z\npercent_per_day = 101", "percent_per_day: got 101"),
        ("deadline = 2026-11-20T23:59:00Z\nlast_day = -1", "last_day: got -1"),
        ("deadline = 2026-11-20T23:59:00Z\npercent = 5", "percent: got 5"),
        ("deadline =", "not valid TOML"),
    ):
        path.write_text(text)
        with pytest.raises(CourseError) as caught:
            read_policy(tmp_path)
        assert str(caught.value).startswith(str(path)) and words in str(caught.value)
    path.write_bytes(b"\xff")
    with pytest.raises(CourseError, match="not valid TOML"):
        read_policy(tmp_path)
