"""Regrade and publish: what has changed and why, what is refused, decisions, forgetting."""

import csv
import io
import re
from pathlib import Path

import pytest

from classroom import outputs
from classroom.folder import Busy, locked
from classroom.grades import read_standing
from classroom.lateness import read_policy
from classroom.publish import Kind, changes_since
from classroom.records import CourseError, Fault
from classroom.store import Store
from grader.commands import cli
from grader.spec.problem import ManifestError
from tests import classes
from tests.class_commands import give, run, students
from tests.classes import AT, hand_in, key_of
from tests.exports import EVIL as _EVIL
from tests.whole_class import full, stored, wrong

EVIL = _EVIL.encode("utf-8", "replace").decode()
course, store = classes.course, classes.store
PUBLISH = ("publish", "--author", "kim")


def since(store, course):
    found = changes_since(store.last_publication(), read_standing(store, read_policy(course)))
    return [(c.kind, c.student, c.problem, c.old, c.new, c.why) for c in found.changes]


def rows(path):
    return list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"))))


def published(store, course, *ids):
    """A class in which everyone has full marks in p04, published."""
    students(store, *ids)
    for id in ids:
        give(store, id, full("p04"))
    store._connection.execute("DELETE FROM versions WHERE problem != 'p04'")
    assert run(course, *PUBLISH)[0] == 0


WORSE = wrong(full("p04"), ["plain"])


def test_without_a_change_nothing_is_published_twice(store, course):
    published(store, course, "ada", "bob")
    assert since(store, course) == []
    code, shown = run(course, *PUBLISH)
    assert code == 0 and "since publication 1: 0 changes, 2 the same" in shown
    assert store.last_publication().number == 1 and "published as" not in shown
    assert run(course, "diff")[0] == 0


def test_another_version_says_so(store, course):
    published(store, course, "ada")
    data = store.data(store.hand_ins()["ada"].files["p04"])
    store.save_results([stored(WORSE, data, "v2")])
    store.set_versions({"p04": "v2"})
    new = WORSE.points.earned
    expected = (Kind.LOST, "ada", "p04", 15.0, new, "graded anew, by another version")
    assert since(store, course) == [expected]
    store.set_versions({"p04": "v3"})
    ((kind, *_, why),) = since(store, course)
    assert (kind, why) == (Kind.UNDECIDED, "not graded yet")


def test_another_file_an_override_and_a_late_day_say_so(store, course):
    published(store, course, "ada", "bob", "cyd", "dan", "eve")
    hand_in(store, "ada", {"p04": b"other"})
    store.save_results([stored(WORSE, b"other")])
    hand_in(store, "bob", {})
    decided = ("--problem", "p04", "--author", "kim", "--reason", "by hand")
    run(course, "override", "--student", "cyd", "--points", "3", *decided)
    deadline = "2026-11-19T12:00:00Z"
    (course / "course.toml").write_text(f"deadline = {deadline}\npercent_per_day = 10\n")
    run(course, "extend", "--student", "eve", "--days", "1", *decided[2:])
    found = {student: (kind, why) for kind, student, *_, why in since(store, course)}
    assert found["ada"] == (Kind.LOST, "another file; 1 day late, not 0")
    assert found["bob"][0] is Kind.LOST and "no file any more" in found["bob"][1]
    assert found["cyd"] == (Kind.LOST, "overridden by kim: by hand")
    assert found["dan"] == (Kind.LOST, "1 day late, not 0")
    assert "eve" not in found


def test_another_policy_says_so(store, course):
    (course / "course.toml").write_text("deadline = 2026-11-19T12:00:00Z\npercent_per_day = 10\n")
    published(store, course, "ada")
    (course / "course.toml").write_text("deadline = 2026-11-19T12:00:00Z\npercent_per_day = 20\n")
    ((kind, *_, why),) = since(store, course)
    assert kind is Kind.LOST and why == "another policy for late days: 1 day late: 20 % less"


def test_gains_new_grades_and_who_has_left_are_told(store, course):
    published(store, course, "ada", "bob", "cyd")
    decided = ("--problem", "p04", "--author", "kim", "--reason", "x")
    run(course, "override", "--student", "ada", "--points", "3", *decided)
    run(course, *PUBLISH, "--accept-losses")
    run(course, "override", "--student", "ada", "--points", "4", *decided)
    students(store, "ada", "bob", "new")
    assert [c[:5] for c in since(store, course)] == [
        (Kind.LOST, "cyd", "p04", 15.0, None),
        (Kind.GAINED, "ada", "p04", 3.0, 4.0),
        (Kind.NEW, "new", "p04", None, 0.0),
    ]
    shown = run(course, "diff")[1]
    assert "in the class no more" in shown and "15 -> - of 15" in shown


def test_losses_come_first_whatever_the_order_of_the_roster(store, course):
    published(store, course, "ada", "bob", "cyd")
    for student, points in (("ada", 14), ("bob", 1), ("cyd", 2)):
        decided = ("--problem", "p04", "--author", "kim", "--reason", "x")
        run(course, "override", "--student", student, "--points", str(points), *decided)
    run(course, *PUBLISH, "--accept-losses")
    for student, points in (("ada", 15), ("bob", 0.5), ("cyd", 3)):
        run(course, "override", "--student", student, "--points", str(points), *decided)
    code, shown = run(course, "diff")
    assert code == 1 and re.findall(r"^(ada|bob|cyd)", shown, re.M) == ["bob", "ada", "cyd"]


def test_losses_are_refused_with_their_names_until_they_are_accepted(store, course):
    published(store, course, "ada", "bob", "cyd")
    for student in ("ada", "cyd"):
        hand_in(store, student, {"p04": b"other"})
    store.save_results([stored(WORSE, b"other")])
    before = (course / "gradebook-canvas.csv").read_text()
    code, shown = run(course, *PUBLISH)
    assert code == 1 and "points are lost by ada, cyd; --accept-losses" in " ".join(shown.split())
    assert store.last_publication().number == 1
    assert (course / "gradebook-canvas.csv").read_text() == before
    code, shown = run(course, *PUBLISH, "--accept-losses")
    assert code == 0 and "published as number 2" in shown and "lost: 2 grades" in shown
    last = {g.student: g.points for g in store.last_publication().grades}
    assert last == {"ada": WORSE.points.earned, "bob": 15.0, "cyd": WORSE.points.earned}
    table = {row[1]: row[4] for row in rows(course / "gradebook-canvas.csv")[2:]}
    assert table == {id: f"{points:.1f}" for id, points in last.items()}


def test_what_is_not_decided_is_refused_and_stays_as_it_was_with_partial(store, course):
    published(store, course, "ada", "bob", "cyd")
    hand_in(store, "ada", {"p04": b"fault"})
    hand_in(store, "bob", {"p04": b"pending"})
    store.add(Fault(key=key_of("p04", b"fault"), text="node lost", at=AT))
    students(store, "ada", "bob", "cyd", "new")
    hand_in(store, "new", {"p04": b"pending"})
    code, shown = run(course, *PUBLISH)
    assert code == 1 and "nothing is decided for ada, bob, new; --partial" in " ".join(
        shown.split()
    )
    assert "fault: node lost" in shown and "not graded yet" in shown
    assert run(course, *PUBLISH, "--accept-losses")[0] == 1
    decided = ("--problem", "p04", "--author", "kim", "--reason", "x", "--points", "15")
    run(course, "override", "--student", "new", *decided)
    code, shown = run(course, *PUBLISH, "--partial")
    assert code == 0 and "published as number 2" in shown
    last = {g.student: g.points for g in store.last_publication().grades}
    assert last == {"ada": 15.0, "bob": 15.0, "cyd": 15.0, "new": 15.0}
    table = {row[1]: row[4] for row in rows(course / "gradebook-canvas.csv")[2:]}
    assert table == {"ada": "", "bob": "", "cyd": "15.0", "new": "15.0"}


def test_a_first_publication_counts_new_grades_and_names_what_is_not_decided(store, course):
    students(store, "ada", "bob")
    give(store, "ada", full("p04"))
    hand_in(store, "bob", {"p04": b"x"})
    shown = run(course, *PUBLISH)[1]
    assert "nothing was published yet: 18 changes" in shown
    assert "bob" in shown and "Ada" not in shown


def test_publishing_needs_an_author_a_class_and_a_grade(store, course, tmp_path):
    with pytest.raises(CourseError, match="--author: got nothing"):
        run(course, "publish")
    students(store, "ada")
    give(store, "ada", full("p04"))
    with pytest.raises(CourseError, match="--author: got ''"):
        run(course, "publish", "--author", "")
    students(store)
    store._connection.execute("DELETE FROM hand_ins")
    with pytest.raises(CourseError, match="without a decided grade"):
        run(course, *PUBLISH)
    more = {"publish": PUBLISH[1:], "forget": ("--student", "x")}
    for name in ("report", "diff", "publish", "override", "extend", "forget"):
        with pytest.raises(ManifestError, match=r"has no class\.db"):
            run(tmp_path / "none", name, *more.get(name, ()))
    assert not (tmp_path / "none").exists()


def test_publishing_and_forgetting_wait_for_no_run_at_work(store, course):
    published(store, course, "ada")
    with locked(course):
        for words in (PUBLISH, ("forget", "--student", "ada", "--yes")):
            with pytest.raises(Busy, match="another run is at work"):
                run(course, *words)
    assert store.students()


def test_decisions_are_kept_and_listed(store, course):
    published(store, course, "ada")
    for points in ("3", "4.5"):
        given = f"override --student ada --problem p04 --points {points} --author kim".split()
        code, shown = run(course, *given, "--reason", f"look {points}")
        assert code == 0 and f"{points} points" in shown and shown.count("look") == 1
    shown = run(course, "override", "--list")[1]
    assert shown.index("look 3") < shown.index("look 4.5")
    for days in ("2", "0"):
        run(course, *f"extend --student ada --days {days} --author kim --reason ill".split())
    shown = run(course, "extend", "--list")[1]
    assert "2 days" in shown and "0 days" in shown and shown.count("kim: ill") == 2
    assert [d.kind for d in store.decisions()] == ["override"] * 2 + ["extend"] * 2


OVERRIDE = {"student": "ada", "problem": "p04", "points": "3", "author": "kim", "reason": "x"}
EXTEND = {"student": "ada", "days": "3", "author": "kim", "reason": "x"}


@pytest.mark.parametrize(
    ("name", "given", "update", "words"),
    [
        *(("override", OVERRIDE, {key: None}, f"--{key}: got nothing") for key in OVERRIDE),
        *(("extend", EXTEND, {key: None}, f"--{key}: got nothing") for key in EXTEND),
        ("override", OVERRIDE, {"student": "adda"}, "--student: got 'adda', expected one of ada"),
        ("override", OVERRIDE, {"problem": "p44"}, "--problem: got 'p44', expected one of p04"),
        ("override", OVERRIDE, {"points": "16"}, "--points: got 16, expected 0 to 15"),
        ("override", OVERRIDE, {"points": "-1"}, "--points: got -1, expected 0 to 15"),
        ("override", OVERRIDE, {"points": "nan"}, "--points: got nan, expected 0 to 15"),
        ("override", OVERRIDE, {"reason": "  "}, "--reason: got ''"),
        ("override", OVERRIDE, {"reason": "x" * 2001}, "--reason: got "),
        ("override", OVERRIDE, {"author": " "}, "--author: got ''"),
        ("extend", EXTEND, {"student": "bob"}, "--student: got 'bob', expected one of ada"),
        ("extend", EXTEND, {"days": "-1"}, "--days: got -1"),
        ("extend", EXTEND, {"days": "inf"}, "--days: got inf"),
        ("extend", EXTEND, {"days": "nan"}, "--days: got nan"),
    ],
)
def test_decisions_that_do_not_fit(store, course, name, given, update, words):
    published(store, course, "ada")
    options = [f"--{k}={v}" for k, v in (given | update).items() if v is not None]
    with pytest.raises(CourseError) as caught:
        run(course, name, *options)
    assert words in str(caught.value)
    assert not store.decisions()


def test_hostile_text_is_one_line_on_a_terminal(store, course):
    students(store, "ada\x1b[2J\nbob  p04  0 -> 15")
    (student,) = store.students()
    store.set_students([student.model_copy(update={"name": EVIL})])
    give(store, student.id, full("p04"))
    assert run(course, *PUBLISH)[0] == 0
    run(
        course, "override", "--student", student.id, "--problem", "p04", "--points", "3",
        "--author", EVIL[:100], "--reason", EVIL[:100],
    )  # fmt: skip
    for words in (("diff",), PUBLISH, ("override", "--list"), ("forget", "--student", student.id)):
        shown = run(course, *words)[1]
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", shown)
        assert not re.search(r"^bob", shown, re.M)
        assert all(len(line) <= 80 for line in shown.split("\n"))


def test_a_student_is_forgotten_with_rows_and_files(store, course):
    published(store, course, "ada", "bob")
    run(course, "report")
    run(course, "extend", "--student", "ada", "--days", "1", "--author", "kim", "--reason", "ill")
    files = {path.name for path in course.rglob("*") if path.is_file()}
    code, shown = run(course, "forget", "--student", "ada")
    assert code == 1 and "nothing is deleted yet; --yes" in shown
    assert {path.name for path in course.rglob("*") if path.is_file()} == files
    assert "ada" in store.hand_ins()
    code, shown = run(course, "forget", "--student", "ada", "--yes")
    assert code == 0 and "ada: deleted" in shown and "rows of the database" in shown
    for kept in ("ada.zip", "gradebooks and reports that were sent"):
        assert kept in shown.split("not deleted:")[1]
    assert [s.id for s in store.students()] == ["bob"] and not store.decisions()
    assert {g.student for g in store.last_publication().grades} == {"bob"}
    left = [path for path in course.rglob("*") if path.is_file()]
    assert {p.name for p in left} == {"class.db", ".lock", "bob.html", "bob.txt"}
    for path in left:
        assert not re.search(rb"\bada\b|Ada\b|ada@uni", path.read_bytes()), path
    assert since(store, course) == []
    with pytest.raises(CourseError, match="--student: got 'ada', expected one of bob"):
        run(course, "forget", "--student", "ada", "--yes")
    run(course, "report")
    assert run(course, *PUBLISH)[0] == 0


def test_a_file_that_another_handed_in_too_stays(store, course):
    students(store, "ada", "bob")
    for student in ("ada", "bob"):
        hand_in(store, student, {"p04": b"same"})
    store.set_versions({"p04": "v1"})
    store.save_results([stored(full("p04"), b"same")])
    run(course, "forget", "--student", "ada", "--yes")
    assert read_standing(store, read_policy(course)).grades["bob", "p04"].points == 15


def test_who_handed_in_but_is_on_no_roster_is_forgotten_too(store, course):
    students(store, "ada")
    hand_in(store, "guest", {"p04": b"x"})
    assert run(course, "forget", "--student", "guest", "--yes")[0] == 0
    assert "guest" not in store.hand_ins()


def test_files_go_before_rows_so_that_a_failure_can_be_repeated(store, course, monkeypatch):
    published(store, course, "ada")
    run(course, "report")
    monkeypatch.setattr(
        Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(PermissionError(1, "no"))
    )
    with pytest.raises(Exception, match="no: what is stored already is kept"):
        run(course, "forget", "--student", "ada", "--yes")
    assert store.students() and outputs.report_files(course, "ada")[0].exists()


def test_late_days_from_collecting_to_the_gradebook(tmp_path, capsys):
    course, source = tmp_path / "course", tmp_path / "in"
    for student in ("ada", "bob", "cyd", "dan"):
        path = source / student / "p04" / "causal_attention.py"
        path.parent.mkdir(parents=True)
        path.write_text(f"# {student}\n")
    (tmp_path / "roster.csv").write_text("id,name\nada,Ada\nbob,Bob\ncyd,Cyd\ndan,Dan\n")
    (tmp_path / "times.csv").write_text(
        "id,submitted_at\nada,2027-02-01T17:59:00+01:00\nbob,2027-02-03T18:01:00+01:00\n"
        "cyd,2027-02-03T18:01:00+01:00\ndan,2027-02-20T00:00:00Z\n"
    )
    course.mkdir()
    (course / "course.toml").write_text(
        "deadline = 2027-02-01T18:00:00+01:00\n"
        "free_late_days = 1\npercent_per_day = 10\nlast_day = 7\n"
    )

    def grader(*words):
        code = cli.main(["class", words[0], "--course", str(course), *words[1:]])
        return code, capsys.readouterr().out

    lists = ("--roster", str(tmp_path / "roster.csv"), "--times", str(tmp_path / "times.csv"))
    assert grader("collect", str(source), *lists)[0] == 0
    with Store(course / "class.db") as store:
        store.set_versions({"p04": "v1"})
        data = [store.data(h.files["p04"]) for h in store.hand_ins().values()]
        store.save_results([stored(full("p04"), d) for d in data])
    given = ("--author", "kim", "--reason", "ill")
    assert grader("extend", "--student", "cyd", "--days", "2", *given)[0] == 0
    assert grader(*PUBLISH)[0] == 0
    # bob: two days and a minute are three days, one of them free; cyd: a minute after the extension
    table = {row[1]: row[4] for row in rows(course / "gradebook-canvas.csv")[2:]}
    assert table == {"ada": "15.0", "bob": "12.0", "cyd": "15.0", "dan": "0.0"}
    moodle = {row[0]: row[3] for row in rows(course / "gradebook-moodle.csv")[1:]}
    assert moodle == table
    assert grader("report")[0] == 0
    assert "3 days late: 20 % less" in (course / "reports" / "bob.txt").read_text()
    assert "nothing counts after 7 days" in (course / "reports" / "dan.txt").read_text()
