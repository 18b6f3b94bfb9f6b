"""A class whose run is ended, or killed, in the middle: it goes on and grades nothing twice."""

import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from classroom.outputs import GRADEBOOKS
from grader.spec.problem import ROOT, load_problem
from tests.harness import model_answer, until

# The set is checked in tests/test_checking.py.
GRADE = """
import sys
from classroom import grade_class
from grader.commands import cli
grade_class.check_set = lambda problems: None
sys.exit(cli.main(["class", "grade", *sys.argv[1:]]))
"""


class Class:
    """A class in a folder, and runs over it in processes that can be told by a mark."""

    def __init__(self, folder, submissions):
        self.course = folder / "course"
        self.source = folder / "class"
        for student, text in submissions.items():
            path = self.source / student / "p02" / load_problem("p02").file
            path.parent.mkdir(parents=True)
            path.write_text(text)
        (folder / "roster.csv").write_text("id\n" + "\n".join([*submissions, "nobody"]))
        self.roster = folder / "roster.csv"
        self.mark = uuid.uuid4().hex

    def start(self):
        command = [sys.executable, "-c", GRADE, self.source]
        command += ["--course", self.course, "--roster", self.roster, "--only", "p02"]
        command += ["--quick", "--device", "cpu", "--jobs", "1"]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"MARK": self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def left(self):
        """The processes of any run that are still there."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in path.read_bytes():
                    found.append(path.parent.name)
            except OSError:
                continue
        return found

    def are_gone(self):
        return until(lambda: not self.left())


def graded(lines):
    return {line.split()[0] for line in lines if re.match(r"[a-d]-\w+  p02 ", line)}


@pytest.fixture
def a_class(tmp_path):
    stub = (ROOT / "problems" / "p02" / load_problem("p02").file).read_text("utf-8")
    answer, broken = model_answer("p02"), "def ("
    files = {"a-stub": stub, "b-broken": broken, "c-broken": f"{broken}(", "d-answer": answer}
    made = Class(tmp_path, files)
    yield made
    for pid in made.left():
        os.kill(int(pid), signal.SIGKILL)


def test_a_run_that_is_ended_and_one_that_is_killed_go_on_and_grade_nothing_twice(a_class):
    run = a_class.start()
    line = run.stderr.readline()
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130 and line.startswith("a-stub  p02 not-implemented 0/7")
    assert "the same command goes on" in out and "not graded yet" in out
    assert a_class.are_gone()
    assert not (a_class.course / ".parsl").exists()
    ended = graded([line, *err.splitlines()])

    run = a_class.start()
    first = [run.stderr.readline()]
    run.kill()
    run.wait()
    first += run.stderr.readlines()
    run.stdout.close()
    run.stderr.close()
    killed = graded(first)
    assert killed and not killed & {"d-answer", *ended}
    assert a_class.are_gone()  # workers notice that nobody listens
    assert (a_class.course / ".parsl").exists()

    run = a_class.start()
    out, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    again, before = graded(err.splitlines()), ended | killed
    assert again == {"a-stub", "b-broken", "c-broken", "d-answer"} - before
    assert a_class.are_gone()
    assert sorted(path.name for path in a_class.course.iterdir()) == [
        ".lock",
        "class.db",
        *sorted(GRADEBOOKS),
    ]
    gradebook = (a_class.course / "gradebook-moodle.csv").read_text()
    points = {row.split(",")[0]: row.split(",")[-1] for row in gradebook.splitlines()[1:]}
    nothing = dict.fromkeys(("a-stub", "b-broken", "c-broken", "nobody"), "0.0")
    assert points == nothing | {"d-answer": "7.0"}
    assert f"graded now    {len(again)} file" in out and f", {len(before)} from before" in out
