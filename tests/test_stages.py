"""One folder for a whole term: stages, deadlines of each problem, late days, which file counts."""

import sqlite3

import pytest

from classroom.collect import collect
from classroom.grades import Status, read_standing
from classroom.keeping import keep
from classroom.lateness import Policy, read_policy
from classroom.outputs import canvas
from classroom.plan import plan
from classroom.records import CourseError, Decision, HandIn, Student
from classroom.store import Store
from grader.spec.problem import ROOT, load_problem
from tests import classes
from tests.classes import AT, packed, result_of, write

course, store = classes.course, classes.store
WEEK = ["2026-11-01T12:00:00Z", "2026-11-08T12:00:00Z", "2026-11-15T12:00:00Z"]
TERM = Policy(deadlines={"p01": WEEK[0], "p02": WEEK[0], "p03": WEEK[1]}, percent_per_day=10)
P01, P02, P03 = (f"{p}/{load_problem(p).file}" for p in ("p01", "p02", "p03"))
ROSTER = (Student(id="ada"), Student(id="bob"))
STUB = (ROOT / "problems" / P01).read_text()


def day(number, hour="11"):
    return f"2026-11-{number:02}T{hour}:00:00Z"


def gather(store, tmp_path, files, at=None, student="ada"):
    """Collect one submission of a student, as an archive of its own name."""
    folder = tmp_path / f"in{len(list(tmp_path.glob('in*')))}"
    write(folder, {f"{student}.zip": packed(files)})
    store.set_students(ROSTER)
    return keep(store, collect(folder, ROSTER, {(student, ""): at} if at else {}))


def graded(store, points, available=7.0):
    """Give files, by problem and text, these points."""
    store.set_versions(dict.fromkeys(["p01", "p02", "p03"], "v1"))
    store.save_results(
        [result_of(p, t.encode(), n, available=available) for (p, t), n in points.items()]
    )


def grades(store, policy=TERM, student="ada"):
    standing = read_standing(store, policy, ("p01", "p02", "p03"))
    return {p: standing.grades[student, p] for p in standing.problems}


def points(store, policy=TERM):
    return {p: grade.points for p, grade in grades(store, policy).items()}


def test_points_possible_are_those_of_the_machine_that_graded_for_every_problem(store):
    store.set_students(ROSTER)
    classes.hand_in(store, "ada", {"p02": b"x"})
    store.set_versions({"p02": "v1", "p03": "v1"})
    store.save_results([result_of("p02", b"x", available=7.0)])
    on_cpu = {p: load_problem(p).possible_on("cpu") for p in ("p02", "p03")}
    assert {g.possible for g in read_standing(store).grades.values()} == set(on_cpu.values())
    store.set_versions({"p02": "v1", "p03": "v1"}, {"p02": 7, "p03": 12})
    row = canvas(read_standing(store)).splitlines()[1]
    assert row == "    Points Possible,,,,7.0,12.0"


def test_what_a_machine_can_measure_follows_from_the_problem():
    on_cpu = {f"p0{n}": load_problem(f"p0{n}").possible_on("cpu") for n in range(1, 10)}
    assert sum(on_cpu.values()) == 112  # docs/instructors.md
    first = load_problem("p01")
    assert first.possible_on("cpu") == first.possible_on("cuda") == first.total_points
    assert first.possible_on("cuda", quick=True) == first.points.correctness + first.points.work


def test_a_later_stage_replaces_nothing_and_makes_nothing_late(store, tmp_path):
    gather(store, tmp_path, {P01: "one", P02: "two"}, day(1))
    gather(store, tmp_path, {P03: "three"}, day(8))
    graded(store, {("p01", "one"): 7, ("p02", "two"): 6, ("p03", "three"): 5})
    assert points(store) == {"p01": 7, "p02": 6, "p03": 5}
    whole = {P01: "one", P02: "two", P03: "three"}
    kept = gather(store, tmp_path, whole, day(20))
    assert kept["same"] == ["ada"] and points(store) == {"p01": 7, "p02": 6, "p03": 5}
    assert [g.part.submitted_at for g in grades(store).values()] == [day(1), day(1), day(8)]


def test_a_stub_takes_no_answers_place(store, tmp_path):
    gather(store, tmp_path, {P01: STUB, P02: "two"}, day(1))
    assert set(store.hand_ins()["ada"].files) == {"p01", "p02"}
    gather(store, tmp_path, {P01: "one"}, day(1, "10"))
    gather(store, tmp_path, {P01: STUB, P03: "three"}, day(8))
    graded(store, {("p01", "one"): 7, ("p02", "two"): 6, ("p03", "three"): 5})
    assert points(store) == {"p01": 7, "p02": 6, "p03": 5}


def test_a_changed_file_counts_where_it_earns_more_than_the_one_in_time(store, tmp_path):
    gather(store, tmp_path, {P01: "one"}, day(1))
    gather(store, tmp_path, {P01: "better"}, day(2))
    graded(store, {("p01", "one"): 3})
    assert grades(store)["p01"].status is Status.PENDING
    versions = dict.fromkeys(["p01"], "v1")
    assert [set(job.keys) for job in plan(store, ("p01",), versions, TERM).jobs] == [{"p01"}]
    graded(store, {("p01", "better"): 7})
    found = grades(store)["p01"]
    assert (found.points, found.days_late, found.reason) == (6.3, 1, "1 day late: 10 % less")
    gather(store, tmp_path, {P01: "worse"}, day(3))
    graded(store, {("p01", "worse"): 1})
    found = grades(store)["p01"]
    assert (found.points, found.part.submitted_at) == (3, day(1))
    assert found.reason == f"the file of {day(3)} is late and earns no more"
    last = TERM.model_copy(update={"last_day": 1})
    assert points(store, last)["p01"] == 6.3  # what earns nothing any more replaces nothing
    assert points(store, Policy())["p01"] == 1  # without a deadline the last one counts


def test_two_submissions_in_one_source_are_merged_as_two_sources_are(tmp_path):
    names = [f"one_77_{n}_submission.zip" for n in (1, 2)]
    write(tmp_path, {names[0]: packed({P01: "one", P02: "two"}), names[1]: packed({P01: "new"})})
    roster = [Student(id="ada", number="77")]
    ((hand_in, files),) = collect(tmp_path, roster, {("ada", ""): day(2)}).hand_ins
    assert files == {"p01": b"new", "p02": b"two"}
    times = {part.submitted_at for parts in hand_in.parts.values() for part in parts}
    assert times == {day(2)}  # an earlier attempt whose time nobody knows is no earlier than that
    assert f"{names[0]} is an earlier submission" in hand_in.notes


def test_a_time_that_comes_later_is_filled_in_and_an_order_of_collecting_changes_nothing(
    store, tmp_path
):
    gather(store, tmp_path, {P01: "one"})
    assert "not known" in grades(store, TERM)["p01"].reason or store.versions() == {}
    gather(store, tmp_path, {P01: "one"}, day(2))
    gather(store, tmp_path, {P01: "zero"}, day(1))
    parts = store.hand_ins()["ada"].parts_of("p01")
    assert [(p.submitted_at, store.data(p.sha256)) for p in parts] == [
        (day(1), b"zero"),
        (day(2), b"one"),
    ]
    gather(store, tmp_path, {P01: "zero", P02: "x"}, day(3))  # back to the first
    parts = store.hand_ins()["ada"].parts_of("p01")
    assert [p.submitted_at for p in parts] == [day(2), day(1)]


# Late days.

DAYS = TERM.model_copy(update={"late_days": 3, "percent_per_day": 20.0})


def test_late_days_are_spent_in_order_and_pay_for_a_whole_submission(store, tmp_path):
    gather(store, tmp_path, {P01: "one", P02: "two"}, day(3))  # 2 days late, both
    gather(store, tmp_path, {P03: "three"}, day(10))  # 2 days late
    graded(store, {("p01", "one"): 5, ("p02", "two"): 5, ("p03", "three"): 5})
    found = grades(store, DAYS)
    assert [g.points for g in found.values()] == [5, 5, 4]
    assert found["p01"].reason == "2 days late, 2 paid with late days"
    assert found["p03"].reason == "2 days late, 1 paid with late days: 20 % less"
    assert read_standing(store, DAYS).late_days == {"ada": 3, "bob": 0}


def test_no_late_day_is_spent_where_it_saves_nothing(store, tmp_path):
    gather(store, tmp_path, {P01: "wrong", P02: "two"}, day(3))
    gather(store, tmp_path, {P03: "three"}, day(10))
    graded(store, {("p01", "wrong"): 0, ("p02", "two"): 5, ("p03", "three"): 5})
    given = {"author": "kim", "reason": "by hand", "at": AT}
    store.add(Decision(kind="override", student="ada", problem="p02", points=5, **given))
    assert [g.points for g in grades(store, DAYS).values()] == [0, 5, 5]
    assert read_standing(store, DAYS).late_days["ada"] == 2
    strict = DAYS.model_copy(update={"last_day": 1})  # late days do not move the last day
    assert read_standing(store, strict).late_days["ada"] == 0
    assert grades(store, strict)["p03"].points == 0


def test_a_later_submission_changes_nothing_of_what_was_spent(store, tmp_path):
    gather(store, tmp_path, {P01: "one"}, day(3))
    graded(store, {("p01", "one"): 1, ("p03", "three"): 7})
    before = grades(store, DAYS)["p01"]
    gather(store, tmp_path, {P03: "three"}, day(11))
    assert grades(store, DAYS)["p01"] == before


def test_an_extension_is_for_one_problem_or_for_all(store, tmp_path):
    gather(store, tmp_path, {P01: "one", P02: "two"}, day(3))
    graded(store, {("p01", "one"): 5, ("p02", "two"): 5})
    given = {"kind": "extend", "student": "ada", "author": "kim", "reason": "ill", "at": AT}
    store.add(Decision(days=2, problem="p01", **given))
    assert [g.days_late for g in grades(store).values()] == [0, 2, 0]
    store.add(Decision(days=1, **given))
    assert [g.days_late for g in grades(store).values()] == [1, 1, 0]
    assert read_standing(store, TERM).extensions["ada", "p03"].days == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[deadlines]\np44 = 2026-11-01T12:00:00Z\n", "deadlines: got p44, expected one of p01"),
        ("[deadlines]\np01 = 2026-11-01\n", "deadlines.p01: got '2026-11-01', expected a time"),
        ("late_days = 5\n", "deadline: got none, expected one, for there is late_days"),
        ("deadline = 2026-11-01T12:00:00Z\nlate_days = 5\n", "late_days: got 5 without percent"),
    ],
)
def test_a_policy_that_cannot_be_used_says_why(tmp_path, text, words):
    (tmp_path / "course.toml").write_text(text)
    with pytest.raises(CourseError) as caught:
        read_policy(tmp_path)
    assert words in str(caught.value)


def test_deadlines_of_problems_with_a_default(tmp_path):
    text = "deadline = 2026-11-08T13:00:00+01:00\n[deadlines]\np01 = 2026-11-01T12:00:00Z\n"
    (tmp_path / "course.toml").write_text(text)
    policy = read_policy(tmp_path)
    assert [policy.deadline_of(p) for p in ("p01", "p02")] == WEEK[:2]
    assert policy.deadline_of("p01", 1.5) == "2026-11-03T00:00:00Z"


OLD = """
CREATE TABLE students (id TEXT PRIMARY KEY, position INTEGER NOT NULL, record TEXT NOT NULL);
CREATE TABLE files (sha256 TEXT PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE hand_ins (student TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE results (
  problem TEXT, sha256 TEXT, version TEXT, record TEXT NOT NULL,
  PRIMARY KEY (problem, sha256, version)
);
CREATE TABLE versions (problem TEXT PRIMARY KEY, version TEXT NOT NULL);
CREATE TABLE faults (number INTEGER PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE overrides (number INTEGER PRIMARY KEY, student TEXT NOT NULL, record TEXT NOT NULL);
CREATE TABLE extensions (number INTEGER PRIMARY KEY, student TEXT NOT NULL, record TEXT NOT NULL);
CREATE TABLE publications (number INTEGER PRIMARY KEY, author TEXT NOT NULL, at TEXT NOT NULL);
CREATE TABLE grades (
  publication INTEGER REFERENCES publications(number), student TEXT, problem TEXT,
  record TEXT NOT NULL, PRIMARY KEY (publication, student, problem)
);
PRAGMA application_id = 1179402579;
PRAGMA user_version = 1;
"""  # as 0.24.0 made it


def test_a_folder_of_version_0_24_is_read_and_goes_on(tmp_path):
    one = classes.key_of("p01", b"one")
    hand_in = HandIn(student="ada", source="ada.zip", files={"p01": one.sha256}, submitted_at=AT)
    said = '{"student":"ada","author":"kim","reason":"ill","at":"2026-11-20T12:00:00Z"'
    with sqlite3.connect(tmp_path / "class.db") as old:
        old.executescript(OLD)
        old.execute("INSERT INTO students VALUES ('ada', 0, '{\"id\":\"ada\"}')")
        old.execute("INSERT INTO files VALUES (?, ?)", (one.sha256, b"one"))
        record = hand_in.model_dump_json(exclude={"parts"})
        old.execute("INSERT INTO hand_ins VALUES ('ada', ?)", (record,))
        old.execute("INSERT INTO versions VALUES ('p01', 'v1')")
        for n in (1, 2):
            row = f'{said},"problem":"p02","points":{n}}}'
            old.execute("INSERT INTO overrides (student, record) VALUES ('ada', ?)", (row,))
        old.execute(
            "INSERT INTO extensions (student, record) VALUES ('ada', ?)", (f'{said},"days":3}}',)
        )
    old.close()
    for _ in range(2):
        with Store(tmp_path / "class.db") as store:
            kinds = [(d.kind, d.points, d.days) for d in store.decisions()]
            assert sorted(kinds, key=str) == [
                ("extend", None, 3),
                ("override", 1, None),
                ("override", 2, None),
            ]
            store.save_results([result_of("p01", b"one", 5)])
            found = grades(store)
            assert (found["p01"].points, found["p02"].points) == (0, 2)
            assert found["p01"].days_late == 16
    with Store(tmp_path / "class.db") as store:
        gather(store, tmp_path, {P01: "one", P03: "three"}, day(30))
        assert grades(store)["p01"].part.submitted_at == AT
