"""`make watch`: what is said of a run, the keys, and what is left behind.

The watch runs as a process on a pseudo-terminal; p02 is the problem, whose runs are the shortest.
"""

import dataclasses
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time

import pytest

from grader.commands import cli
from grader.commands.watch import loop
from grader.commands.watch import terminal as page
from grader.commands.watch.command import first_open
from grader.commands.watch.terminal import Keys, Screen, changes, first_checks
from grader.isolate import usage
from grader.spec.grade_record import CheckResult, Message, Points, ProblemResult, Verdict
from grader.spec.problem import PROBLEMS, ROOT, load_problem, problem_ids
from tests import watch_times
from tests.forked import forked_workers
from tests.harness import PROMPT_S, alive, model_answer, until, whole_answer
from tests.records import write_answers
from tests.shares import drawn

ANSWER = model_answer("p02")
FILE = load_problem("p02").file
BROKEN = "def weighted_row_sum(x, w:\n"
LOOPS = "while True:\n    pass\n"


class Watched:
    """A watch on a pseudo-terminal."""

    def __init__(self, folder, *options, keys=True, cwd=None, **environment):
        self.folder = folder
        self.ours, theirs = pty.openpty()
        self.before = termios.tcgetattr(theirs)
        self.text = ""
        state = {"XDG_STATE_HOME": str(folder.parent / "state"), "TERM": "xterm"}
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "grader", "watch", "--submission", str(folder)),
                *("--only", "p02", "--device", "cpu", *options),
            ],
            stdin=theirs if keys else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd or folder.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT), **state, **environment},
            start_new_session=True,
            preexec_fn=_take_terminal if keys else None,
        )
        self.theirs = theirs

    @property
    def path(self):
        return self.folder / "p02" / FILE

    def expect(self, pattern, within_s=PROMPT_S):
        """Read until `pattern` is seen; return its match and forget what was before its end."""
        deadline = time.monotonic() + within_s
        while True:
            match = re.search(pattern, self.text, re.DOTALL)
            if match:
                self.text = self.text[match.end() :]
                return match
            left = deadline - time.monotonic()
            assert left > 0, (pattern, self.text)
            if select.select([self.ours], [], [], left)[0]:
                try:
                    self.text += os.read(self.ours, 65536).decode("utf-8", "replace")
                except OSError:
                    raise AssertionError((pattern, self.text)) from None

    def press(self, key):
        os.write(self.ours, key.encode())

    def save(self, text):
        """Replace the file, as most editors do."""
        partial = self.path.with_name("4913~")
        partial.write_text(text)
        os.replace(partial, self.path)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


def _take_terminal():
    import fcntl

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def gone(pids):
    return until(lambda: not any(map(alive, pids)))


@pytest.fixture
def folder(tmp_path):
    write_answers(tmp_path / "answers", {"p02": ANSWER})
    return tmp_path / "answers"


@pytest.fixture
def watch(folder):
    opened = []

    def start(*options, **how):
        opened.append(Watched(folder, *options, **how))
        return opened[-1]

    yield start
    for watched in opened:
        watched.close()


RESULT = r"p02 ([a-z ]+): points ([^;]*); ([\d.]+) s"


def test_a_day_at_the_keyboard(watch, folder):
    """Saves of every kind, a stop, keys, and the quiet end: in one watch, whose start is dear."""
    write_answers(folder, {"p02": BROKEN})
    watched = watch("--report", BROWSER="/no/such/browser", PATH="/nowhere", DISPLAY="")
    watched.expect("a, Enter: run all again")
    assert watched.expect(RESULT)[1] == "error"
    watched.expect("syntax error: .*line 1")
    raw = termios.tcgetattr(watched.theirs)
    assert not raw[3] & termios.ICANON
    os.kill(watched.process.pid, signal.SIGTSTP)  # gives the terminal back
    assert until(lambda: termios.tcgetattr(watched.theirs) == watched.before)
    os.kill(watched.process.pid, signal.SIGCONT)
    assert until(lambda: termios.tcgetattr(watched.theirs) == raw)
    watched.save(ANSWER.replace("import torch", "import torch\nraise ValueError('\\x1b]0;x\\x07')"))
    assert "\x1b]0" not in watched.expect("ValueError.*next: ")[0]
    watched.path.unlink()
    watched.expect("file not found.*waiting for p02/")
    watched.path.parent.rename(folder / "elsewhere")
    time.sleep(0.3)
    watched.path.parent.mkdir()
    watched.save(ANSWER)
    assert watched.expect(RESULT)[2].endswith("7/7")
    assert (folder.parent / "report.html").exists()
    watched.press("o")
    watched.expect(r"browser was found; the\s+report\s+is")
    watched.press("?")
    watched.expect("h: the next hint")
    watched.press("h")
    watched.expect("every test passes")
    watched.press("\n")
    # q does not wait for the end of a run, which a fast machine comes to before a look at its line.
    mine = until(lambda: len(found := usage.descendants(watched.process.pid)) > 1 and found)
    watched.press("q")
    assert watched.process.wait(PROMPT_S) == 0
    assert gone(mine)
    assert termios.tcgetattr(watched.theirs) == watched.before


@pytest.mark.parametrize("number", drawn([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], 3))
def test_a_loop_is_ended_by_a_save_and_a_signal_leaves_nothing(watch, folder, number):
    write_answers(folder, {"p02": LOOPS + ANSWER})
    watched = watch()
    if number == signal.SIGINT:
        begin_to_loop(watched)
        watched.save(BROKEN)
        began = time.monotonic()
        watched.expect("syntax error")
        assert time.monotonic() - began < PROMPT_S
        watched.save(LOOPS + ANSWER)
    mine = begin_to_loop(watched)
    os.kill(watched.process.pid, number)
    assert watched.process.wait(PROMPT_S) == 130
    assert gone(mine)
    assert termios.tcgetattr(watched.theirs) == watched.before


def begin_to_loop(watched):
    """Wait until a submission runs; return all processes of the watch."""
    assert until(lambda: len(usage.descendants(watched.process.pid)) >= 4)
    return usage.descendants(watched.process.pid)


def test_two_watches_and_none_can_write_the_report(watch, folder):
    blocked = folder.parent / "cwd"
    (blocked / "report.html").mkdir(parents=True)
    write_answers(folder, {"p02": BROKEN})
    first = watch("--report", keys=False, cwd=blocked)
    second = watch()
    first.expect("no keys: standard input is no terminal")
    for watched in (first, second):
        watched.expect("syntax error")
    first.expect("report.html was not written")
    wrong = ANSWER.replace("    rows, cols = x.shape\n", "    raise KeyError(x.shape)\n")
    assert wrong != ANSWER
    first.save(wrong)
    past = time.time() - 86400.0  # the clock has gone back a day
    os.utime(first.path, (past, past))
    for watched in (first, second):
        watched.expect(RESULT)
        watched.expect("now fails .*one_program.*error")
    second.save(f"{ANSWER}# again\n")
    second.expect("p02: [1-4] cases, 0 not passed")


def check(id, verdict, headline="out is wrong"):
    message = None if verdict is Verdict.PASS else Message(headline=headline, test=f"test_{id}")
    return CheckResult(id=id, title=id, verdict=verdict, message=message)


def result(earned, *checks, message=None):
    verdict = Verdict.PASS if all(c.verdict is Verdict.PASS for c in checks) else Verdict.FAIL
    points = Points(earned=earned, available=13, possible=20)
    told = {"id": "p02", "title": "t", "bonus": False, "points": points, "components": {}}
    verdict = Verdict.ERROR if message else verdict
    return ProblemResult(verdict=verdict, checks=checks, message=message, **told)


P, F = Verdict.PASS, Verdict.FAIL


def test_what_changed_is_told_first_and_all_fits_the_terminal():
    before = result(5, check("a", F), check("b", P), check("c", F))
    now = result(9, check("a", P), check("b", F), check("c", F, "\x1b[2J" + "x" * 9000))
    told = changes(before, now)
    assert (told.passes, told.fails, told.still) == (("a",), ("b",), ("c",))
    text = page.result(now, told, first_s=0.44, end_s=2.06, width=72, height=14)
    lines = text.splitlines()
    assert lines[0] == "p02 fail: points 5 -> 9/13; 2.1 s, first verdict after 0.4 s"
    assert lines[1:4] == ["now passes   a", "now fails    b", "still fails  c"]
    assert "error[" in text and "\x1b" not in text
    assert len(lines) <= 14 and all(len(line) <= 72 for line in lines)
    assert "\x1b[32mnow passes" in page.result(now, told, first_s=None, end_s=1, color=True)


def test_a_file_that_cannot_run_is_compared_with_nothing():
    broken = result(0, check("a", Verdict.SKIPPED), message=Message(headline="syntax error"))
    assert changes(None, broken).fails == ()
    assert first_checks(broken, frozenset()) == () == first_checks(None, frozenset())


def test_what_failed_goes_first_but_not_what_depends_on_others_or_does_not_end():
    last = result(
        1, check("a", P), check("b", F), check("compiles", F), check("loops", Verdict.TIMEOUT)
    )
    assert first_checks(last, frozenset({"compiles"})) == ("b",)


def test_the_judge_runs_first_what_it_is_told_to(folder):
    from grader.api import Grader
    from grader.judge.request import Request
    from grader.spec.environment import probe

    order = []

    class Listener:
        def phase(self, *_):
            pass

        def problem_done(self, *_, **__):
            pass

        def case_done(self, problem_id, check_id, verdict):
            order.append(check_id)

    request = Request(
        folder, "s", ("p02",), probe("cpu"), "5eed", quick=True, first=("half", "w_stride")
    )
    raises = ANSWER.replace("    rows, cols = x.shape\n", "    raise KeyError(x.shape)\n")
    write_answers(folder, {"p02": raises})
    with forked_workers():
        Grader(request, Listener()).run()
    ids = list(dict.fromkeys(order))
    assert ids[:2] == ["half", "w_stride"] and len(ids) == len(load_problem("p02").checks)
    assert dataclasses.replace(request).first == ("half", "w_stride")


def test_the_first_problem_with_something_to_write_is_watched(tmp_path):
    stub = (PROBLEMS / "p03" / load_problem("p03").file).read_text("utf-8")
    write_answers(tmp_path, {"p02": ANSWER, "p03": stub})
    assert first_open(("p02", "p03"), tmp_path).id == "p03"
    assert first_open(("p02",), tmp_path).id == "p02"
    write_answers(tmp_path, {"p02": BROKEN})
    assert first_open(("p02", "p03"), tmp_path).id == "p02"


def test_a_stream_that_is_gone_or_no_terminal_ends_nothing(tmp_path):
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    screen = Screen(Broken(), status=True, width=40)
    screen.status("x")
    screen.say("y\n")
    with open(os.devnull) as stream, Keys(stream) as keys:
        assert keys.fd is None and keys.read() == ""
    with Keys(None) as keys:
        assert keys.fd is None


def test_what_is_done_to_the_file_is_seen_and_reading_it_is_not(tmp_path):
    path = tmp_path / "folder" / "a.py"
    path.parent.mkdir()
    path.write_text("one")
    states = [loop.state_of(path)]

    def older():
        path.write_text("two")  # as long as before
        os.utime(path, (1, 1))

    def replaced():
        (tmp_path / "b").write_text("two")
        os.utime(tmp_path / "b", (1, 1))
        os.replace(tmp_path / "b", path)

    def moved():
        path.parent.rename(tmp_path / "gone")

    for step in (older, replaced, path.unlink, lambda: path.write_text("three"), moved):
        step()
        states.append(loop.state_of(path))
        path.exists() and path.read_text()
        assert states[-1] == loop.state_of(path) != states[-2], step
    assert states[-1] is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--only", "p01,p02"], "expected one problem"),
        (["--only", "p77"], "got p77"),
        (["--submission", "/no/such/folder"], "not a folder"),
    ],
)
def test_bad_options_are_told(options, said, capsys):
    assert cli.main(["watch", *options]) == 2
    assert said in capsys.readouterr().err


def test_the_page_names_the_keys_and_options_that_there_are():
    text = (ROOT / "docs" / "grading.md").read_text("utf-8")
    section = text.split("## While you work\n")[1].split("\n## ")[0]
    named = re.findall(r"^\| (.+?) \| ", section, re.M)[1:]
    pressed = [key for row in named for key in row.replace("`", "").split(", ")]
    assert set(pressed) - {"Ctrl-C"} == {key for row in page.KEYS for key in row.split(", ")}
    assert loop.LOOK_S == 0.1 and "ten times a second" in section


def test_the_page_says_how_long_it_takes():
    path = ROOT / "docs" / "records" / "watch-2026-11-25.json"
    record = json.loads(path.read_text())
    first = [row["first_verdict_s"] for row in record["problems"].values()]
    page = " ".join((ROOT / "docs" / "grading.md").read_text(encoding="utf-8").split())
    assert f"comes after {min(first)} to {max(first)} s, and" in page
    assert set(record["wrong"]) == set(record["problems"]) == set(problem_ids())
    for rows, subject in ((record["problems"], "and a whole"), (record["wrong"], "and the whole")):
        ends = {id: row["end_s"] for id, row in rows.items()}
        first, last = min(ends, key=ends.get), max(ends, key=ends.get)
        told = f"{subject} problem takes {ends[first]} s ({first}) to {ends[last]} s ({last})."
        assert told in page


def test_the_wrong_answers_that_are_timed_are_wrong_kernels_of_each_problem():
    assert list(watch_times.WRONG) == list(problem_ids())
    assert all(watch_times.wrong_answer(id) != whole_answer(id) for id in problem_ids())
    wrong = json.loads((ROOT / "docs" / "records" / "watch-2026-11-25.json").read_text())["wrong"]
    assert {id: row["kernel"] for id, row in wrong.items()} == watch_times.WRONG
