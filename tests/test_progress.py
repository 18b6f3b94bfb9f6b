"""Live progress: bars on a terminal, a line a problem elsewhere, and the cursor comes back."""

import io

import pytest
from rich.console import Console

from grader.commands.progress import Progress
from grader.spec.grade_record import Points, Verdict


def pts(earned, available, possible):
    return Points(earned=earned, available=available, possible=possible)


def plain_console(stream):
    return Console(file=stream, force_terminal=False)


def terminal(stream, **environ):
    return Console(
        file=stream, force_terminal=True, width=80, legacy_windows=False, _environ=environ
    )


def grade(console, *, fail=False):
    """A run of two announced problems and of one that was not."""
    ticks = iter(range(1000))
    with Progress(console, clock=lambda: next(ticks) / 10) as progress:
        progress.start({"p04": 2, "p05": 1})
        progress.phase("p04", "starting")
        progress.case_done("p04", "plain", Verdict.PASS)
        if fail:
            raise RuntimeError("the orchestrator broke")
        progress.case_done("p04", "\x1b[31mragged", Verdict.FAIL)
        progress.problem_done("p04", Verdict.FAIL, pts(3.5, 6, 10))
        progress.case_done("p05", "plain", Verdict.PASS)
        progress.problem_done("p05", Verdict.PASS, pts(6, 6, 10), more="speed and memory to come")
        progress.phase("p05", "speed of \x1b[2J naive")
        progress.problem_done("p05", Verdict.PASS, pts(9.9, 10, 10))
        if console.is_terminal:
            return
        progress.case_done("p09", "unannounced", Verdict.PASS)
        progress.problem_done("p09", Verdict.PASS, pts(1, 1, 1))
    progress.stop()


def test_without_a_terminal_every_problem_is_one_line_when_it_is_done():
    stream = io.StringIO()
    grade(plain_console(stream))
    assert stream.getvalue().splitlines() == [
        "p04  fail  1/2 cases  3.5/6 points  0.1 s",
        "p05  pass  1/1 cases  9.9/10 points  0.1 s",
        "p09  pass  1/0 cases  1/1 points  0.1 s",
    ]


def test_a_line_is_there_at_once():
    class Stream(io.StringIO):
        flushed = 0

        def flush(self):
            self.flushed = len(self.getvalue())

    stream = Stream()
    progress = Progress(plain_console(stream))
    progress.start({"p04": 1})
    progress.problem_done("p04", Verdict.PASS, pts(6, 6, 6))
    assert 0 < stream.flushed == len(stream.getvalue())


@pytest.mark.parametrize("how", ["closed", "broken"])
def test_a_stream_that_is_gone_ends_nothing(how):
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    stream = io.StringIO() if how == "closed" else Broken()
    console = plain_console(stream)
    if how == "closed":
        stream.close()
    grade(console)


@pytest.mark.parametrize("fail", [False, True])
def test_the_cursor_comes_back_whatever_happens(fail):
    stream = io.StringIO()
    try:
        grade(terminal(stream), fail=fail)
    except RuntimeError:
        assert fail
    written = stream.getvalue()
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l") >= 0


def test_bars_show_the_problems_and_what_is_done_for_them():
    stream = io.StringIO()
    grade(terminal(stream))
    written = stream.getvalue()
    assert "p04" in written and "p05" in written
    assert "waiting" in written or "plain" in written or "points" in written
    assert "\x1b[31mragged" not in written and "\x1b[2J" not in written


def test_a_dumb_terminal_gets_lines():
    stream = io.StringIO()
    grade(terminal(stream, TERM="dumb"))
    assert "p04  fail  1/2 cases" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_stopping_twice_is_harmless():
    progress = Progress(terminal(io.StringIO()))
    progress.start({"p04": 0})
    progress.stop()
    progress.stop()
    progress.phase("p04", "later")
