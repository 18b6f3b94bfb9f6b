"""The quiz in the terminal: every path of the loop that asks, and the command."""

import functools
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grader.base.user_state import state_path
from grader.commands.asking import Terminal
from grader.commands.quiz.asking import STATE, AnswerState, Quiz, QuizProgress
from grader.commands.quiz.command import chosen
from grader.commands.quiz.questions import LEVELS, TOPICS, load_level
from grader.spec.problem import ROOT
from tests.harness import PROMPT_S, until

QUESTIONS = {question.id: question for name in LEVELS for question in load_level(name).questions}
WIDTH = 80
XDG_FILE = Path("flash-attention-problems", STATE)


THREE = tuple(QUESTIONS[id] for id in ("Q1", "Q6", "H10.7"))


class Asked:
    """One round with typed lines; an exception among them is raised in its place."""

    def __init__(self, path, *lines, questions=THREE, color=False):
        self.written = []
        self.progress = QuizProgress(path)
        self._lines = iter(lines)
        terminal = Terminal(None, io.StringIO(), WIDTH, color=color)
        terminal.read, terminal.write = self._read, self.written.append
        self.whole = Quiz(questions, self.progress, terminal).run()

    def _read(self, prompt):
        self.written.append(prompt)
        line = next(self._lines, EOFError())
        if isinstance(line, BaseException):
            raise line
        self.written.append("\n")
        return line + "\n"

    @property
    def text(self):
        return "".join(self.written)

    @property
    def outcomes(self):
        return [self.progress.outcomes.get(q.id) for q in THREE]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "quiz.json"


def test_right_answers(path):
    asked = Asked(path, "5", "a", "", "y")
    assert asked.outcomes == [AnswerState.RIGHT] * 3 and asked.whole
    assert "right: 5\n" in asked.text and f"right: {THREE[1].shown}\n" in asked.text
    assert "sqrt(9 + 16) = sqrt(25) = 5" in asked.text
    assert "see problems/p01/README.md" in asked.text
    assert "This time: 3 right.\nIn all: 3 of 3 questions done, 3 right.\n" in asked.text
    assert "You have them all. To start over: make quiz RESTART=1\n" in asked.text


def test_wrong_answers_are_told_with_the_right_one(path):
    asked = Asked(path, "7", "b", "my answer", "n")
    assert asked.outcomes == [AnswerState.WRONG] * 3 and asked.whole
    assert "wrong: got 7\nanswer: 5\n" in asked.text
    assert f"wrong: got b\nanswer: {THREE[1].shown}\n" in asked.text
    assert "sqrt(9 + 16) = sqrt(25) = 5" in asked.text
    assert "This time: 3 wrong.\nIn all: 3 of 3 questions done, 0 right.\n" in asked.text
    assert asked.text.endswith("Go on: make quiz\n")


def test_what_cannot_be_read_is_asked_again(path):
    asked = Asked(path, "five", "5 cats", "5", "z", "", "a", "", "perhaps", "partly")
    assert asked.outcomes == [AnswerState.RIGHT, AnswerState.RIGHT, AnswerState.PARTLY]
    assert "got 'five', expected a number such as" in asked.text
    assert "got 'cats' after the number, expected nothing" in asked.text
    assert "got 'z', expected one of a, b, c, d" in asked.text
    assert "got 'perhaps', expected y, n or partly" in asked.text
    assert "2 right, 1 partly right" in asked.text


def test_a_question_mark_skips_with_the_answer(path):
    asked = Asked(path, "?", "?", "?")
    assert asked.outcomes == [AnswerState.SKIPPED] * 3 and asked.whole
    assert "answer: 5\n" in asked.text and "answer: One defensible list." in asked.text
    assert "This time: 3 skipped.\n" in asked.text


def test_an_open_answer_may_be_skipped_after_it_was_seen(path):
    asked = Asked(path, "", "?", questions=THREE[2:])
    assert asked.outcomes[2] is AnswerState.SKIPPED


@pytest.mark.parametrize("end", ["q", "Q", "quit", EOFError(), KeyboardInterrupt()])
def test_what_was_done_is_kept_however_it_ends(path, end):
    asked = Asked(path, "5", end)
    assert asked.whole is not isinstance(end, KeyboardInterrupt)
    assert asked.outcomes == [AnswerState.RIGHT, None, None] == Asked(path).outcomes
    assert asked.text.endswith("In all: 1 of 3 questions done, 1 right.\nGo on: make quiz\n")


def test_quitting_while_assessing_oneself_leaves_the_question_open(path):
    asked = Asked(path, "", "q", questions=THREE[2:])
    assert asked.outcomes[2] is None


def test_a_later_round_asks_what_is_left_then_what_was_not_right(path):
    Asked(path, "6", "q")
    second = Asked(path, "a", "", "y")
    assert "3 questions, 1 of them done before" in second.text
    assert "Length of a vector" not in second.text
    assert second.outcomes == [AnswerState.WRONG, AnswerState.RIGHT, AnswerState.RIGHT]
    third = Asked(path, "5")
    assert "Now the ones that you did not have right." in third.text
    assert "Length of a vector  (vectors, 1 of 1)" in third.text
    fourth = Asked(path)
    assert "your number" not in fourth.text and "You have them all" in fourth.text


def test_a_state_with_unknown_ids_is_used(path):
    path.parent.mkdir()
    path.write_text('{"schema_version": 1, "outcomes": {"Q99": "right", "Q1": "right"}}')
    asked = Asked(path, "a")
    assert "3 questions, 1 of them done before" in asked.text and not asked.progress.notices
    kept = dict.fromkeys(("Q99", "Q1", "Q6"), "right")
    assert json.loads(path.read_text())["outcomes"] == kept


DAMAGED = [
    *(b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"schema_version": 2}'),
    *(b'{"schema_version": 1}', b'{"schema_version": 1, "outcomes": {"Q1": "great"}}'),
    b'{"schema_version": 1, "outcomes": {"Q1": [1]}}',
]


@pytest.mark.parametrize("state", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_state_is_told_and_set_aside(path, state):
    path.parent.mkdir()
    path.write_bytes(state)
    asked = Asked(path, "5")
    text = " ".join(asked.text.split())
    assert "is damaged and set aside as quiz.json.damaged; you start over" in text
    assert path.with_name("quiz.json.damaged").read_bytes() == state
    assert json.loads(path.read_text())["outcomes"] == {"Q1": "right"}


def test_a_state_that_cannot_be_written_is_told_once(path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    asked = Asked(path, "5", "a", "", "y")
    assert asked.outcomes == [AnswerState.RIGHT] * 3 and asked.whole
    text = " ".join(asked.text.split())
    assert text.count("Permission denied; what you answer is not kept") == 1
    assert not list(path.parent.iterdir())


IN_THE_WAY = {
    "a folder that is a file": lambda path: path.parent.write_text("in the way"),
    "a file that is a folder": lambda path: path.mkdir(parents=True),
    "a read-only folder": lambda path: path.parent.mkdir(0o500),
}


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_a_state_that_cannot_be_kept_does_not_end_the_quiz(path, what):
    if what == "a read-only folder" and os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    IN_THE_WAY[what](path)
    asked = Asked(path, "5", "a")
    assert asked.outcomes[:2] == [AnswerState.RIGHT] * 2
    assert " ".join(asked.text.split()).count("; what you answer is not kept") == 1
    assert "Go on" not in asked.text


def test_the_state_is_never_half_written(path, monkeypatch):
    Asked(path, "5")
    before = path.read_text()

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stop)
    asked = Asked(path, "a")
    assert not asked.whole and path.read_text() == before
    assert [p.name for p in path.parent.iterdir()] == ["quiz.json"]


@pytest.mark.parametrize(
    ("state_home", "expected"),
    [("/s", "/s"), ("s", "/h/.local/state"), ("", "/h/.local/state"), (None, "/h/.local/state")],
)
def test_the_state_is_where_the_specification_puts_it(state_home, expected):
    variables = {"HOME": "/h"} | ({} if state_home is None else {"XDG_STATE_HOME": state_home})
    assert state_path(variables, STATE) == Path(expected, "flash-attention-problems", STATE)


def test_without_a_home_nothing_is_kept():
    asked = Asked(state_path({}, STATE), "5")
    assert asked.outcomes[0] is AnswerState.RIGHT and "Go on" not in asked.text
    assert "there is no home folder: what you answer is not kept" in asked.text


def test_hostile_input_is_shown_as_plain_text(path):
    hostile = "\x1b]0;title\x07\x1b[2J\u202e\x00" + "w" * 5000
    asked = Asked(path, hostile, "7\x9b31m", "5\u200b", "5")
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202e]", asked.text)
    assert all(len(line) <= WIDTH for line in asked.text.splitlines())
    assert "w" * 300 not in "".join(asked.text.split()) and "w" * 100 in asked.text.replace(
        "\n", ""
    )


def test_colour_repeats_what_words_say(path, tmp_path):
    lines = ("5", "b", "", "y")
    plain, colored = Asked(path, *lines), Asked(tmp_path / "other.json", *lines, color=True)
    assert "\x1b" not in plain.text and "\x1b[32mright: 5\x1b[0m" in colored.text
    assert re.sub(r"\x1b\[\d+m", "", colored.text) == plain.text


@pytest.mark.parametrize("width", [40, 80])
def test_every_question_fits_the_terminal(path, width):
    written = []
    terminal = Terminal(None, io.StringIO(), width)
    terminal.read, terminal.write = lambda prompt: "?", written.append
    Quiz(tuple(QUESTIONS.values()), QuizProgress(path), terminal).run()
    lines = "".join(written).splitlines()
    assert max(map(len, lines)) <= width or width < WIDTH
    assert sum(line.startswith("answer: ") for line in lines) == 64


@pytest.fixture
def run(grader, monkeypatch, tmp_path):
    """Run `grader quiz` here with lines on standard input; return exit code, stdout, stderr."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def start(*options, lines=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        return grader("quiz", *options)

    return start


def test_the_command_asks_and_goes_on_later(run, tmp_path):
    code, out, err = run("--level", "level0", lines="5\n32\n")
    assert (code, err) == (0, "")
    assert "Quiz: 12 questions. " in out and "your number: 5\nright: 5\n" in out
    assert out.endswith("Go on: make quiz LEVEL=level0\n")
    code, out, _ = run(lines="c\n")
    assert code == 0 and "64 questions, 2 of them done before" in out and "right: c)" in out
    assert len(json.loads((tmp_path / XDG_FILE).read_text())["outcomes"]) == 3


def test_restart_forgets_the_questions_that_are_asked_and_no_other(run):
    run("--topic", "vectors", lines="5\n32\nc\n")
    run("--topic", "heads", lines="a\n")
    code, out, _ = run("--topic", "heads", "--restart")
    assert code == 0 and "done before" not in out
    _, out, _ = run()
    assert "3 of them done before" in out


def test_a_topic_is_asked_and_no_other(run):
    code, out, _ = run("--topic", "softmax", lines="?\n" * 7)
    assert code == 0 and out.count("(softmax, ") == 7 == len(chosen("softmax", None))
    assert "This time: 7 skipped." in out and "make quiz TOPIC=softmax\n" in out


@pytest.mark.parametrize("topic", ["cats", "", "SOFTMAX\x1b[31m"])
def test_an_unknown_topic_is_a_usage_error_with_the_topics(run, topic):
    code, out, err = run("--topic", topic)
    assert (code, out) == (2, "")
    assert f"--topic (TOPIC= of make): got {topic!r}, expected one of {', '.join(TOPICS)}" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--topic", "heads", "--level", "level0"],
            "got 'heads', expected a topic of level0: vectors, softmax, masks, systems\n",
        ),
        (["--level", "medium"], "invalid choice: 'medium'"),
    ],
)
def test_what_a_level_has_not_is_a_usage_error(run, options, said):
    code, out, err = run(*options)
    assert (code, out) == (2, "") and said in err


def test_questions_that_cannot_be_read_are_a_usage_error(run, monkeypatch, tmp_path):
    monkeypatch.setattr("grader.commands.quiz.questions.FOLDER", tmp_path)
    code, out, err = run()
    assert (code, out) == (2, "") and "level0.toml: No such file or directory" in err


def command(tmp_path, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "grader", "quiz"],
        cwd=ROOT,
        env=os.environ | {"XDG_STATE_HOME": str(tmp_path)},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


@pytest.mark.parametrize("start", [signal.SIG_DFL, signal.SIG_IGN])  # nohup and some CIs ignore it
def test_ctrl_c_ends_the_command_with_130_and_the_state_is_kept(tmp_path, start):
    ignore = functools.partial(signal.signal, signal.SIGINT, start)
    quiz = command(tmp_path, stdout=subprocess.PIPE, preexec_fn=ignore)
    quiz.stdin.write(b"5\n")
    quiz.stdin.flush()
    state = tmp_path / XDG_FILE
    assert until(state.exists, 60)
    quiz.send_signal(signal.SIGINT)
    out, err = quiz.communicate(timeout=PROMPT_S)
    assert (quiz.returncode, err) == (130, b"")
    assert out.endswith(b"In all: 1 of 64 questions done, 1 right.\nGo on: make quiz\n")
    assert json.loads(state.read_text())["outcomes"] == {"Q1": "right"}


def test_a_reader_that_goes_away_leaves_no_traceback(tmp_path):
    read, write = os.pipe()
    os.close(read)
    quiz = command(tmp_path, stdout=write)
    os.close(write)
    _, err = quiz.communicate(b"5\n" * 10, timeout=PROMPT_S)
    assert (quiz.returncode, err) == (0, b"")


def test_bytes_that_are_no_text_are_asked_again(tmp_path):
    quiz = command(tmp_path, stdout=subprocess.PIPE)
    out, err = quiz.communicate(b"\xff\xfe\x00\n5\n", timeout=PROMPT_S)
    assert (quiz.returncode, err) == (0, b"")
    assert b"expected a number such as" in out and b"right: 5" in out


def test_the_quiz_does_not_import_torch():
    code = (
        "import sys, grader.commands.cli as _; sys.exit(bool({'torch', 'triton'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
