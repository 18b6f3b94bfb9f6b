"""Grading a class: what is graded, once; what is tried again; what is kept however a run ends."""

import io
import re
import time

import pytest
from rich.console import Console

from classroom.collect import render
from classroom.folder import DATABASE, Busy, holder, locked
from classroom.grades import Grade, Standing, Status
from classroom.grading import Settings
from classroom.plan import MAX_ATTEMPTS, Job, plan
from classroom.records import HandIn, Student
from classroom.running import Running
from classroom.store import Store, StoreError
from classroom.view import View, duration
from grader.spec.environment import EnvironmentFault
from tests.classes import hand_in, key_of
from tests.environments import CPU
from tests.fake_engine import FakeEngine, fake_grade

VERSIONS = {"p02": "v1", "p04": "v1"}


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / DATABASE) as store:
        yield store


def run(store, engine, *, again=False, versions=VERSIONS, interrupted=lambda: False):
    """Grade what there is to grade; return the view that watched."""
    todo = plan(store, tuple(versions), versions, again=again)
    view = View(Console(file=io.StringIO()), todo)
    with view:
        Running(store, engine, todo, Settings(), CPU, view, fake_grade, interrupted).run()
    view.text = view._console.file.getvalue()
    return view


def test_a_task_is_a_student_and_identical_files_are_graded_once(store):
    hand_in(store, "ada", {"p02": b"7", "p04": b"5"})
    hand_in(store, "bob", {"p02": b"7", "p04": b"3"})
    hand_in(store, "eve", {"p02": b"7", "p04": b"5"})
    engine = FakeEngine()
    view = run(store, engine)
    assert [dict(t.files) for t in engine.submitted] == [{"p02": b"7", "p04": b"5"}, {"p04": b"3"}]
    assert (view.graded, view.cached, view.faults) == (3, 0, 0)
    again = FakeEngine()
    view = run(store, again)
    assert not again.submitted and (view.graded, view.cached) == (0, 3)


def test_a_new_version_of_a_problem_grades_that_problem_again(store):
    hand_in(store, "ada", {"p02": b"7", "p04": b"5"})
    run(store, FakeEngine())
    engine = FakeEngine()
    run(store, engine, versions={"p02": "v1", "p04": "v2"})
    assert [dict(t.files) for t in engine.submitted] == [{"p04": b"5"}]
    changed = FakeEngine()
    hand_in(store, "ada", {"p02": b"6", "p04": b"5"})
    run(store, changed)
    assert [dict(t.files) for t in changed.submitted] == [{"p02": b"6"}]


def test_only_who_is_on_the_roster_is_graded(store):
    store.set_students([Student(id="ada"), Student(id="zoe")])
    hand_in(store, "ada", {"p02": b"7"})
    hand_in(store, "stranger", {"p02": b"6"})
    engine = FakeEngine()
    run(store, engine)
    assert [dict(t.files) for t in engine.submitted] == [{"p02": b"7"}]


@pytest.mark.parametrize("word", ["lost", "killed", "limit", "internal", "unfinished"])
def test_a_fault_is_tried_three_times_and_decides_nothing(store, word):
    hand_in(store, "ada", {"p02": word.encode()})
    engine = FakeEngine()
    view = run(store, engine)
    assert len(engine.submitted) == MAX_ATTEMPTS == 3
    assert (view.graded, view.faults) == (0, 1)
    assert len(store.faults()) == 3
    later = FakeEngine()
    assert run(store, later).faults == 0 and not later.submitted  # not endlessly, run by run
    (key,) = plan(store, ("p02",), VERSIONS).given_up
    assert key.problem == "p02"
    run(store, later, again=True)
    assert len(later.submitted) == 3


def test_only_the_problems_concerned_are_tried_again_and_each_alone(store):
    hand_in(store, "ada", {"p02": b"7", "p04": b"internal"})
    engine = FakeEngine()
    view = run(store, engine)
    files = [dict(task.files) for task in engine.submitted]
    assert files == [{"p02": b"7", "p04": b"internal"}, *[{"p04": b"internal"}] * 2]
    assert (view.graded, view.faults) == (1, 1)
    hand_in(store, "bob", {"p02": b"6", "p04": b"killed"})
    engine = FakeEngine()
    run(store, engine)
    files = [tuple(task.files) for task in engine.submitted]
    assert files == [("p02", "p04"), ("p02",), ("p04",), ("p04",)]  # p02 has no record of its own


def test_a_grading_that_reached_its_limit_keeps_the_problems_that_were_finished(store):
    hand_in(store, "ada", {"p02": b"7", "p04": b"limit"})
    engine = FakeEngine()
    assert run(store, engine).graded == 1
    assert engine.times_graded[("p02", b"7")] == 1
    (fault, *_) = store.faults()
    assert fault.key.problem == "p04" and "longer than its limit (9 s)" in fault.text


def test_a_fault_that_passes_leaves_a_result(store, monkeypatch):
    hand_in(store, "ada", {"p02": b"7"})
    calls = []

    def grade_once_lost(task):
        calls.append(task)
        if len(calls) == 1:
            raise RuntimeError("worker lost")
        return fake_grade(task)

    todo = plan(store, ("p02",), VERSIONS)
    view = View(Console(file=io.StringIO()), todo)
    Running(store, FakeEngine(), todo, Settings(), CPU, view, grade_once_lost).run()
    assert len(calls) == 2 and (view.graded, view.faults) == (1, 0)


def test_an_engine_that_broke_ends_the_run_and_blames_no_file(store):
    hand_in(store, "ada", {"p02": b"7"})
    hand_in(store, "bob", {"p02": b"broken"})
    with pytest.raises(EnvironmentFault, match="the engine runs nothing any more"):
        run(store, FakeEngine())
    assert not store.faults() and plan(store, ("p02",), VERSIONS).cached == 1


def test_what_is_there_when_ctrl_c_comes_is_kept(store):
    for name in "abcd":
        hand_in(store, name, {"p02": b"%d" % ord(name)})
    engine = FakeEngine()
    engine.stop_after = 3
    with pytest.raises(KeyboardInterrupt):
        run(store, engine)
    assert plan(store, ("p02",), VERSIONS).cached == 3


def test_a_full_disk_ends_the_run_and_what_was_stored_stays(store):
    for n in range(40):
        hand_in(store, f"s{n:02}", {"p02": f"{n}".encode()})
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages + 6}")
    engine = FakeEngine()
    with pytest.raises(StoreError, match="full"):
        run(store, engine)
    store._connection.execute("PRAGMA max_page_count = 100000")
    done = plan(store, ("p02",), VERSIONS).cached
    assert 0 < done < 40
    rest = FakeEngine()
    run(store, rest)
    assert len(rest.submitted) == 40 - done


def test_elsewhere_than_on_a_terminal_every_student_is_a_line(store):
    store.set_students([Student(id="a\x1b[31m\nb"), Student(id="bob")])
    hand_in(store, "a\x1b[31m\nb", {"p02": b"7"})
    hand_in(store, "bob", {"p02": b"lost"})
    text = run(store, FakeEngine()).text
    first = text.splitlines()[0]
    assert first.startswith("a b  p02 pass 7/7  1 of 2 files, 0 from before, about ")
    assert re.search(r"about \d+ s left$", first)
    assert "bob  p02 fault: RuntimeError: worker lost  (1 file again)" in text
    assert text.splitlines()[-1].endswith("2 of 2 files, 0 from before, 1 fault")
    assert "\x1b" not in text


def test_on_a_terminal_there_is_one_bar_that_goes_away(store):
    for name in "abcdef":
        hand_in(store, name, {"p02": name.encode()})
    todo = plan(store, ("p02",), VERSIONS)
    console = Console(file=io.StringIO(), force_terminal=True, width=150)
    with View(console, todo) as view:
        for job in todo.jobs:
            view.started(job)
        for view.workers in (None, 5):
            view.tick()
            view._bars.refresh()
    text = console.file.getvalue()
    assert "0/6" in text and "6 handed out" in text and "now: a, b, c, d and 1 more" in text
    assert "\x1b[?25h" in text  # the cursor is back


def test_the_time_left_is_the_rate_so_far():
    clock = iter([0.0, 60.0])
    job = Job("ada", {})
    todo = type("Plan", (), {"files": 4, "cached": 2, "given_up": ("x",)})
    view = View(Console(file=io.StringIO()), todo, clock=lambda: next(clock))
    view._done += 1
    assert view.summary() == "4 of 7 files, 2 from before, 1 fault, about 3 min left"
    assert [duration(s) for s in (40, 800, 9000)] == ["40 s", "13 min", "2.5 h"]
    view.started(job)


def test_a_second_run_says_who_is_at_work(tmp_path):
    course = tmp_path / "new" / "course"
    with locked(course):
        with pytest.raises(Busy, match=r"another run is at work there \(process \d+ on \S+ since"):
            with locked(course):
                pass
        assert holder(course).startswith("process ")
    assert holder(course) is None and course.stat().st_mode & 0o077 == 0
    with locked(course):
        pass


def test_a_course_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="cannot write in"):
        with locked(tmp_path / "file"):
            pass
    (tmp_path / ".lock").symlink_to(tmp_path / "file")
    with pytest.raises(EnvironmentFault, match="cannot write in"):
        with locked(tmp_path):
            pass


def test_the_summary_is_safe_and_short():
    names = tuple(f"s{n}\x1b[2J" for n in range(500))
    why, key = "x" * 500 + "\n\x1b[31m", key_of("p02", b"")
    grades = (Grade(name, "p02", 0, 7, Status.REFUSED, why, key=key, fault=why) for name in names)
    noted = {"a\n": HandIn(student="a\n", source="a", notes=("b\n",))}
    students = tuple(Student(id=name) for name in names)
    standing = Standing(students, ("p02",), noted, {(g.student, "p02"): g for g in grades})
    text = render(standing, width=80, color=False)
    assert "\x1b" not in text and max(map(len, text.splitlines())) <= 80
    assert "and 480 more" in text and len(text.splitlines()) < 400
    assert re.search(r"^not handed in 500: s0, s1, ", text, re.M)


def test_five_hundred_students_take_seconds(store):
    began = time.process_time()
    store._connection.execute("PRAGMA synchronous = OFF")
    for n in range(500):
        hand_in(store, f"s{n}", {"p02": f"{n % 7}".encode(), "p04": f"{n}".encode()})
    view = run(store, FakeEngine())
    assert view.graded == 507 and time.process_time() - began < 20
