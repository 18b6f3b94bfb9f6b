"""A class whose run is killed in the middle: it goes on and grades nothing twice."""

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
    return {line.split()[0] for line in lines if re.match(r"[a-c]-\w+  p02 ", line)}


@pytest.fixture
def a_class(tmp_path):
    stub = (ROOT / "problems" / "p02" / load_problem("p02").file).read_text("utf-8")
    files = {"a-stub": stub, "b-broken": "def (", "c-answer": model_answer("p02")}
    made = Class(tmp_path, files)
    yield made
    for pid in made.left():
        os.kill(int(pid), signal.SIGKILL)


def test_a_run_that_is_killed_goes_on_and_grades_nothing_twice(a_class):
    run = a_class.start()
    first = [run.stderr.readline()]
    run.kill()
    run.wait()
    first += run.stderr.readlines()
    run.stdout.close()
    run.stderr.close()
    killed = graded(first)
    assert first[0].startswith("a-stub  p02 not-implemented 0/7")
    assert killed and "c-answer" not in killed
    assert a_class.are_gone()  # workers notice that nobody listens
    assert (a_class.course / ".parsl").exists()

    run = a_class.start()
    out, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    again = graded(err.splitlines())
    assert again == {"a-stub", "b-broken", "c-answer"} - killed
    assert a_class.are_gone()
    assert sorted(path.name for path in a_class.course.iterdir()) == [
        ".lock",
        "class.db",
        *sorted(GRADEBOOKS),
    ]
    gradebook = (a_class.course / "gradebook-moodle.csv").read_text()
    points = {row.split(",")[0]: row.split(",")[-1] for row in gradebook.splitlines()[1:]}
    nothing = dict.fromkeys(("a-stub", "b-broken", "nobody"), "0.0")
    assert points == nothing | {"c-answer": "7.0"}
    assert f"graded now    {len(again)} file" in out and f", {len(killed)} from before" in out
