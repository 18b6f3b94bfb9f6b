"""`grader class grade`, `collect`, `status` on a fake engine: what they say, write and refuse."""

import argparse
import re
import sys
from types import SimpleNamespace

import pytest

import classroom
from classroom import command as class_command
from classroom import grade_class, gradescope, running
from classroom.folder import DATABASE
from classroom.store import Store
from grader.spec.environment import EnvironmentFault
from grader.spec.problem import load_problem
from tests import class_commands
from tests.fake_engine import FakeEngine

command = class_commands.command


@pytest.fixture
def class_of(tmp_path):
    """Lay out submissions of p02 and a roster; return the folder and the roster."""

    def write(submissions, roster=("ada", "bob", "zoe")):
        for student, text in submissions.items():
            path = tmp_path / "class" / student / "p02" / load_problem("p02").file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        csv = tmp_path / "roster.csv"
        csv.write_text("id,name\n" + "".join(f"{id},={id}\n" for id in roster))
        return tmp_path / "class", csv

    return write


def test_one_command_collects_grades_and_writes_the_gradebooks(command, class_of, tmp_path):
    source, roster = class_of({"ada": "7", "bob": "3.5", "stranger": "1"})
    code, out, err = command("grade", source, "--roster", roster, "--only", "p02")
    assert code == 0 and command.engine.closed == 1
    assert "students      3, 2 have handed in\nnot handed in 1: zoe\n" in out
    assert "not on roster 1: stranger: not graded\n" in out
    assert "graded now    2 files, 0 from before\n" in out
    assert len(err.splitlines()) == 2
    canvas = (tmp_path / "course" / "gradebook-canvas.csv").read_text()
    assert canvas == (
        "Student,ID,SIS Login ID,Section,p02 Weighted row sum\n    Points Possible,,,,7.0\n"
        "'=ada,ada,,,7.0\n'=bob,bob,,,3.5\n'=zoe,zoe,,,0.0\n"
    )
    code, out, _ = command("grade", "--only", "2")
    assert code == 0 and not command.engine.submitted and command.engine.closed == 0
    assert "graded now    0 files, 2 from before\n" in out
    code, out, _ = command("status")
    assert code == 0 and "files         2 of 2, 100 %: 2 graded\n" in out


def test_faults_are_listed_apart_and_exit_with_3(command, class_of, tmp_path):
    source, roster = class_of({"ada": "7", "bob": "killed"})
    code, out, _ = command("grade", source, "--roster", roster, "--only", "p02")
    assert code == 3
    assert "fault         bob p02: the grading was killed (signal 9)" in out
    assert "--retry-faults grades these files again" in out
    moodle = (tmp_path / "course" / "gradebook-moodle.csv").read_text()
    assert "\nbob,'=bob,,\n" in moodle and "\nada,'=ada,,7.0\n" in moodle
    assert command("grade", "--only", "p02")[0] == 3 and not command.engine.submitted
    assert command("grade", "--only", "p02", "--retry-faults")[0] == 3
    assert len(command.engine.submitted) == 3


def test_ctrl_c_keeps_what_was_finished_and_the_same_command_goes_on(
    command, class_of, monkeypatch
):
    monkeypatch.setattr(running, "_UNDER_WAY", 1)
    names = [f"s{n}" for n in range(6)]
    source, roster = class_of({name: f"{n}" for n, name in enumerate(names)}, names)
    engine = FakeEngine()
    engine.stop_after = 4
    arguments = ("grade", source, "--roster", roster, "--only", "p02")
    code, out, _ = command(*arguments, engine=engine)
    assert code == 130 and engine.closed == 1
    assert "interrupted   everything that was finished is kept; the same command goes on" in out
    assert "files         4 of 6, 66 %: 4 graded, 2 not graded yet" in out
    code, out, _ = command(*arguments)
    assert code == 0 and "files         6 of 6, 100 %: 6 graded" in out
    assert set((engine.times_graded + command.engine.times_graded).values()) == {1}


def test_an_extra_only_adds_a_column_and_takes_none_away(command, class_of, tmp_path):
    source, roster = class_of({"ada": "7"})
    command("grade", source, "--roster", roster, "--only", "p02")
    command("grade", "--only", "p04")
    header = (tmp_path / "course" / "gradebook-canvas.csv").read_text().splitlines()[0]
    assert header.endswith("Section,p02 Weighted row sum,p04 Causal attention")


def test_the_late_policy_counts_in_the_gradebook(command, class_of, tmp_path):
    source, roster = class_of({"ada": "7", "bob": "7"})
    times = tmp_path / "times.csv"
    times.write_text("id,submitted_at\nada,2026-11-22T10:00:00Z\nbob,2026-11-19T10:00:00Z\n")
    (tmp_path / "course").mkdir()
    policy = "deadline = 2026-11-20T12:00:00Z\npercent_per_day = 10\n"
    (tmp_path / "course" / "course.toml").write_text(policy)
    command("grade", source, "--roster", roster, "--times", times, "--only", "p02")
    canvas = (tmp_path / "course" / "gradebook-canvas.csv").read_text()
    assert "ada,,,5.6\n" in canvas and "bob,,,7.0\n" in canvas


def test_collect_grades_nothing(command, class_of):
    source, roster = class_of({"ada": "7"})
    (source / "bob.zip").write_bytes(b"PK")
    (source / "stranger.zip").write_bytes(b"PK")
    code, out, err = command("collect", source, "--roster", roster)
    assert code == 0 and err == ""
    assert "collected     1 new, 2 cannot be read\n" in out
    assert "refused       bob: bob.zip: got something else" in out
    assert "refused       stranger" not in out
    assert "files         0 of 1, 0 %: 1 not graded yet\n" in out and not command.engine.submitted


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("grade", "--jobs", "0"), 2, "--jobs: got 0, expected 1 or more"),
        (("grade", "--limit", "nan"), 2, "--limit: got nan, expected 1 to 1000000"),
        (("grade", "--official", "--quick"), 2, "--quick: got it with --official"),
        (("grade", "--only", "p99"), 2, "--only: got p99"),
        (("grade", "--jobs", "2", "--engine", "x.toml"), 2, "--jobs: got it with --engine"),
        (("grade",), 2, "SOURCE: got nothing, expected submissions"),
        (("grade", "--times", "t.csv"), 2, "--times: got it without SOURCE"),
        (("grade", "/no/such"), 2, "/no/such: no such folder or archive"),
        (("collect", "/no/such", "--roster", "/no.csv"), 2, "/no.csv: cannot be read"),
        (("status",), 2, "which has no class.db; expected the folder that grader class collect"),
    ],
)
def test_wrong_options_are_named_before_anything_is_graded(command, arguments, code, words):
    got, out, err = command(*arguments)
    assert (got, out) == (code, "") and words in err and len(err.splitlines()) == 1
    assert not command.engine.submitted


def test_a_wrong_roster_changes_nothing(command, class_of, tmp_path):
    source, roster = class_of({"ada": "7"})
    command("collect", source, "--roster", roster)
    roster.write_text("id\nada\nada\n")
    code, _, err = command("grade", source, "--roster", roster)
    assert code == 2 and "rows 2 and 3: got the id 'ada' in both" in err
    with Store(tmp_path / "course" / DATABASE) as store:
        assert [s.id for s in store.students()] == ["ada", "bob", "zoe"]


def test_a_database_that_cannot_be_used_is_the_environments_fault(command, class_of, tmp_path):
    source, roster = class_of({"ada": "7"})
    (tmp_path / "course").mkdir()
    (tmp_path / "course" / DATABASE).write_bytes(b"garbage" * 1000)
    code, _, err = command("grade", source, "--roster", roster)
    assert code == 4 and "file is not a database" in err


def test_a_machine_that_cannot_grade_says_why_and_starts_nothing(command, class_of, monkeypatch):
    source, roster = class_of({"ada": "7"})
    monkeypatch.setattr(grade_class.grading, "look", lambda settings: "torch is not installed")
    code, _, err = command("grade", source, "--roster", roster)
    assert code == 4 and "torch is not installed" in err and command.engine.closed == 0


def test_an_engine_that_broke_leaves_its_logs_and_what_was_graded(command, class_of):
    source, roster = class_of({"ada": "7", "bob": "broken"})
    code, out, err = command("grade", source, "--roster", roster, "--only", "p02")
    assert (code, out) == (4, "") and command.engine.kept_logs
    assert re.search(r"runs nothing any more: .* its logs are in \S+/course/\.parsl$", err)
    assert "files         1 of 2, 50 %: 1 graded, 1 not graded yet" in command("status")[1]


def test_without_parsl_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "parsl", None)
    monkeypatch.delitem(sys.modules, "classroom.engine", raising=False)
    monkeypatch.delattr(classroom, "engine", raising=False)
    options = argparse.Namespace(engine=None, jobs=1, device="cpu")
    with pytest.raises(EnvironmentFault, match="parsl is not installed; run `pip install"):
        run_through(monkeypatch, lambda: grade_class.make_engine(options))


def test_without_pyyaml_only_gradescopes_export_cannot_be_read(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / gradescope.FILE).write_text("submission_1: {}\n", "utf-8")
    with pytest.raises(EnvironmentFault, match="yaml is not installed; run `pip install"):
        run_through(monkeypatch, lambda: gradescope.read_metadata(tmp_path / gradescope.FILE))


def test_a_module_of_ours_that_is_missing_is_our_fault(monkeypatch):
    def import_it():
        raise ModuleNotFoundError("no", name="classroom.nothing")

    with pytest.raises(ModuleNotFoundError):
        run_through(monkeypatch, import_it)


def run_through(monkeypatch, work):
    """Run a command of a class that does this."""
    module = SimpleNamespace(run=lambda options: work())
    monkeypatch.setattr(class_command, "COMMANDS", {"x": module})
    class_command.run(argparse.Namespace(inner="x", course="c"))
