"""What stops a class: Ctrl-C in a terminal, a full disk, a judge that refuses to grade."""

import contextlib
import os
import pty
import select
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import Future

import pytest

from classroom import grade_class, running, unpacking
from classroom.engine import EngineFault
from classroom.folder import DATABASE
from classroom.grading import Settings
from classroom.outputs import GRADEBOOKS
from classroom.store import Store
from grader.commands import cli
from grader.judge.set_check import SetError
from grader.spec.problem import ROOT, load_problem
from tests import class_commands
from tests.classes import hand_in
from tests.fake_engine import FakeEngine
from tests.harness import PROMPT_S
from tests.shares import drawn
from tests.test_class import run

command = class_commands.command
FILE = load_problem("p02").file
GRADE = """
import sys
from grader.commands import cli
from classroom import grade_class
from tests.fake_engine import slow_grade
from tests.environments import CPU
grade_class.check_set = lambda problems: None
grade_class.grading.look = lambda settings: CPU
grade_class.grading.grade = slow_grade
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / DATABASE) as store:
        yield store


class Terminal:
    """`class grade` in the foreground of a terminal of its own.

    Gradings are fake: Parsl runs them, half a second each.
    """

    def __init__(self, source, course):
        self._database = course / DATABASE
        command = [sys.executable, "-c", GRADE, "class", "grade", str(source)]
        command += ["--course", str(course), "--only", "p02", "--device", "cpu", "--jobs", "2"]
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.chdir(ROOT)
            os.execv(command[0], command)
        self.started = course / ".parsl" / "000" / "submit_scripts"

    def results(self):
        with contextlib.suppress(sqlite3.Error), contextlib.closing(self._connect()) as database:
            return database.execute("SELECT count(*) FROM results").fetchone()[0]
        return 0

    def _connect(self):
        return sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)

    def interrupt(self, wanted, seconds=PROMPT_S):
        """Press Ctrl-C when there are so many results."""
        deadline = time.monotonic() + seconds
        while not (self.started.exists() and self.results() >= wanted):
            assert time.monotonic() < deadline, self._read()
            self._read()
        os.write(self._terminal, b"\x03")

    def end(self, seconds=PROMPT_S):
        """Wait for its end; return the exit code and the last that it said."""
        text, deadline = b"", time.monotonic() + seconds
        while time.monotonic() < deadline:
            text += self._read()
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                os.close(self._terminal)
                return os.waitstatus_to_exitcode(status), text.decode("utf-8", "replace")[-2000:]
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        raise AssertionError(f"still there after {seconds} s: {text[-2000:]}")

    def _read(self):
        ready, _, _ = select.select([self._terminal], [], [], 0.1)
        with contextlib.suppress(OSError):  # nobody holds the other end any more
            return os.read(self._terminal, 65536) if ready else b""
        return b""


def test_ctrl_c_in_a_terminal_changes_no_grade(tmp_path, command):
    source = tmp_path / "class"
    for number in range(10):
        path = source / f"s{number}" / "p02" / FILE
        path.parent.mkdir(parents=True)
        path.write_text(f"{number % 8}  # {number}")
    whole, course = tmp_path / "whole", tmp_path / "course"
    assert command("grade", source, "--only", "p02")[0] == 0
    course.rename(whole)
    before = 0
    # Before the first result, in the middle, or while the last come.
    for wanted in drawn((0, 4, 9), 3):
        terminal = Terminal(source, course)
        terminal.interrupt(wanted)
        code, text = terminal.end()
        assert code == 130 or terminal.results() == 10, text
        assert before <= terminal.results() and not (course / ".parsl").exists()
        assert "the same command goes on" in text or code == 0
        before = terminal.results()
    assert command("grade", source, "--only", "p02")[0] == 0
    for name in GRADEBOOKS:
        assert (course / name).read_bytes() == (whole / name).read_bytes()


def test_ctrl_c_is_noted_while_an_engine_runs_and_heard_before_and_after():
    before = signal.getsignal(signal.SIGINT)
    with grade_class._noted() as interrupted:
        assert not interrupted()
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert interrupted()
    assert signal.getsignal(signal.SIGINT) == before


class SilentEngine(FakeEngine):
    """Returns the results of some gradings, and nothing of the others."""

    def submit(self, function, argument):
        if b"silent" in argument.files.values():
            return Future()
        return super().submit(function, argument)


def test_what_is_noted_ends_the_run_and_keeps_what_is_there(store):
    hand_in(store, "ada", {"p02": b"7"})
    hand_in(store, "bob", {"p02": b"silent"})
    with pytest.raises(KeyboardInterrupt):
        run(store, SilentEngine(), interrupted=lambda: True)
    assert store._all("SELECT count(*) FROM results") == [(1,)]


def test_an_engine_is_not_waited_for_without_a_limit(store, monkeypatch):
    monkeypatch.setattr(running, "_MARGIN_S", 0.5)
    monkeypatch.setattr(Settings, "most_s", lambda settings, files: 0.5 * files)
    hand_in(store, "ada", {"p02": b"7"})
    hand_in(store, "bob", {"p02": b"silent"})
    with pytest.raises(EngineFault, match="no result for 1 s, though a grading is ended after 0 s"):
        run(store, SilentEngine())
    assert store._all("SELECT count(*) FROM results") == [(1,)]


FULL = """
import os, resource, sys
from pathlib import Path
from grader.commands import cli
from classroom import grade_class
from tests.fake_engine import FakeEngine, fake_grade
from tests.environments import CPU
grade_class.check_set = lambda problems: None
grade_class.grading.look = lambda settings: CPU
grade_class.grading.grade = fake_grade
grade_class.make_engine = lambda options: FakeEngine()
source, empty, course = map(Path, sys.argv[1:])
who = ["--author", "t", "--reason", "r", "--student", "ada"]
commands = [
    ["collect", str(source)], ["grade", str(source), "--only", "p02"], ["publish", "--author", "t"],
    ["override", *who, "--problem", "p02", "--points", "1"], ["extend", *who, "--days", "1"],
    ["comment", *who, "--problem", "p02"], ["report"], ["forget", "--student", "ada", "--yes"],
]
def run(commands, course):
    for name, *rest in commands:
        print(course.name, name, cli.main(["class", name, "--course", str(course), *rest]))

run(commands[:3], course)
(source / "ada" / "p02" / "FILE").write_text("6")
# Nothing can grow any more: what comes closest to a full disk without being root.
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
print("full", file=sys.stderr)
run(commands, empty)
print("full", file=sys.stderr)
run(commands, course)
""".replace("FILE", FILE)


def test_a_full_disk_is_one_sentence_in_every_command_that_writes(tmp_path):
    path = tmp_path / "class" / "ada" / "p02" / FILE
    path.parent.mkdir(parents=True)
    path.write_text("7")
    (tmp_path / "empty").mkdir()
    folders = [tmp_path / name for name in ("class", "empty", "course")]
    command = [sys.executable, "-c", FULL, *map(str, folders)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    for said in done.stderr.split("full\n")[1:]:
        lines = said.splitlines()
        assert len(lines) == 8 and all(line.startswith("grader: ") for line in lines), done.stderr
    told = [line.split() for line in done.stdout.splitlines() if len(line.split()) == 3]
    codes = [(name, command, code) for name, command, code in told if code.isdigit()]
    assert codes[:3] == [("course", name, "0") for name in ("collect", "grade", "publish")]
    assert codes[3:5] == [("empty", name, "4") for name in ("collect", "grade")]
    assert [code for name, _, code in codes[5:] if name == "course"] == ["4"] * 8, done.stdout
    with Store(tmp_path / "course" / DATABASE) as store:
        assert store.last_publication().grades[0].points == 7.0


def test_a_full_disk_where_gradings_run_ends_the_run_and_blames_no_file(store):
    hand_in(store, "ada", {"p02": b"7"})
    hand_in(store, "bob", {"p02": b"full"})
    with pytest.raises(EngineFault, match=r"written where gradings run: .*No space left"):
        run(store, FakeEngine())
    assert store._all("SELECT count(*) FROM results") == [(1,)] and not store.faults()


def test_a_full_disk_while_an_archive_is_unpacked(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(unpacking._Unpacking, "_unpack", full)
    (tmp_path / "class.zip").write_bytes(b"PK\5\6" + bytes(18))
    arguments = ["collect", str(tmp_path / "class.zip"), "--course", str(tmp_path / "c")]
    code = cli.main(["class", *arguments])
    assert code == 4 and "cannot be unpacked: No space left on device" in capsys.readouterr().err


def test_a_judge_that_refuses_to_grade_ends_the_run_at_once(store, monkeypatch):
    monkeypatch.setattr(running, "_UNDER_WAY", 2)
    for student, word in (("ada", "7"), ("bob", "refused"), ("eve", "refused "), ("zoe", "5")):
        hand_in(store, student, {"p02": word.encode()})
    engine = FakeEngine()
    with pytest.raises(SetError, match=r"refuses to grade: problems/p02/test_p02.py: not valid"):
        run(store, engine)
    assert len(engine.submitted) <= 3 and not store.faults()
    assert store._all("SELECT count(*) FROM results") == [(1,)]
