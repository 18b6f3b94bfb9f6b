"""`python -m grader quiz`: picks the questions and joins the loop to the streams it is given."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TextIO

from grader.base.text import clean
from grader.commands.quiz.asking import Quiz, Terminal
from grader.commands.quiz.progress import Progress, state_path
from grader.commands.quiz.questions import LEVELS, TOPICS, Question, QuizError, load_level


def run(
    topic: str | None,
    level: str | None,
    *,
    restart: bool,
    stdin: TextIO | None,
    stdout: TextIO,
    environment: Mapping[str, str],
    width: int,
    color: bool,
) -> bool:
    """Ask on the given streams; return False when Ctrl-C ended it.

    Raises:
        QuizError: there is no such topic (in that level), or the questions cannot be read.
    """
    questions = chosen(topic, level)
    progress = Progress(state_path(environment))
    if restart:
        progress.forget({question.id for question in questions})
    for stream in (stdin, stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    words = ["make quiz"]
    words += [f"TOPIC={topic}"] if topic else []
    words += [f"LEVEL={level}"] if level else []
    terminal = Terminal(_Lines(stdin, stdout).read, stdout.write, width, color)
    whole = Quiz(questions, progress, terminal, resume=" ".join(words)).run()
    stdout.flush()
    return whole


def chosen(topic: str | None, level: str | None) -> tuple[Question, ...]:
    """Return the questions of a level (both for None) on a topic (all for None)."""
    if topic not in (None, *TOPICS):
        known = ", ".join(TOPICS)
        raise QuizError(f"--topic: got {topic!r}, expected one of {known}")
    levels = (level,) if level else LEVELS
    questions = [question for name in levels for question in load_level(name).questions]
    found = tuple(question for question in questions if topic in (None, question.topic))
    if not found:
        there = ", ".join(name for name in TOPICS if name in {q.topic for q in questions})
        raise QuizError(f"--topic: got {topic!r}, expected a topic of {level}: {there}")
    return found


class _Lines:
    """Reads lines after a prompt, and repeats them where no terminal has shown them."""

    def __init__(self, stdin: TextIO | None, stdout: TextIO) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self._shown_by_terminal = stdin is not None and stdin.isatty()

    def read(self, prompt: str) -> str:
        self._stdout.write(prompt)
        self._stdout.flush()
        line = self._stdin.readline() if self._stdin else ""
        if not line:
            raise EOFError
        if not self._shown_by_terminal:
            self._stdout.write(clean(line, 60) + "\n")
        return line
