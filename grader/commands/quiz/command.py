"""`python -m grader quiz`: picks the questions and joins the loop to the standard streams."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable
from typing import TextIO

from rich.console import Console

from grader.base import stdout
from grader.base.text import clean
from grader.base.user_state import state_path
from grader.commands.options import UsageError
from grader.commands.quiz.asking import STATE, Quiz, QuizProgress, Terminal
from grader.commands.quiz.questions import LEVELS, TOPICS, Question, load_level
from grader.judge import scoring

HELP = "ask you the questions of the course; never scored"
OPTIONS = {
    "--topic TOPIC": "ask about this topic only, such as softmax",
    f"--level {{{','.join(LEVELS)}}}": "ask this level only (default: both)",
    "--restart": "forget what was answered before",
}


def run(options: argparse.Namespace) -> int:
    """Ask on standard input and output; Ctrl-C ends with 130, q and the end of input with 0."""
    questions = chosen(options.topic, options.level)
    words = ["make quiz"]
    words += [f"TOPIC={options.topic}"] if options.topic else []
    words += [f"LEVEL={options.level}"] if options.level else []

    def ask(terminal: Terminal) -> bool:
        progress = QuizProgress(state_path(os.environ, STATE))
        if options.restart:
            progress.forget({question.id for question in questions})
        return Quiz(questions, progress, terminal, resume=" ".join(words)).run()

    return on_terminal("quiz", ask)


def on_terminal(command: str, ask: Callable[[Terminal], bool]) -> int:
    """Have `ask` ask on the standard streams; return 0, or 130 where Ctrl-C ended it (False).

    Raises:
        UsageError: there is no standard output.
    """
    if sys.stdout is None:
        raise UsageError(
            f"{command}: got no standard output, expected a terminal, a pipe or a file"
        )
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    width = max(min(Console().width, 80), 40) if sys.stdout.isatty() else 80
    lines, whole = _Lines(sys.stdin, sys.stdout), True
    try:
        whole = ask(Terminal(lines.read, lines.write, width, stdout.wants_color()))
    except BrokenPipeError:
        stdout.silence()
    return scoring.EXIT_FULL_MARKS if whole else scoring.EXIT_INTERRUPTED


def chosen(topic: str | None, level: str | None) -> tuple[Question, ...]:
    """Return the questions of a level (both for None) on a topic (all for None)."""
    if topic not in (None, *TOPICS):
        known = ", ".join(TOPICS)
        raise UsageError(f"--topic: got {topic!r}, expected one of {known}")
    levels = (level,) if level else LEVELS
    questions = [question for name in levels for question in load_level(name).questions]
    found = tuple(question for question in questions if topic in (None, question.topic))
    if not found:
        there = ", ".join(name for name in TOPICS if name in {q.topic for q in questions})
        raise UsageError(f"--topic: got {topic!r}, expected a topic of {level}: {there}")
    return found


class _Lines:
    """Reads lines after a prompt, and repeats them where no terminal has shown them."""

    def __init__(self, stdin: TextIO | None, stdout: TextIO) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self._shown_by_terminal = stdin is not None and stdin.isatty()

    def write(self, text: str) -> None:
        try:
            self._stdout.write(text)
            self._stdout.flush()
        except OSError as error:  # a full disk, a terminal that is gone
            raise BrokenPipeError(*error.args) from None

    def read(self, prompt: str) -> str:
        self.write(prompt)
        try:
            line = self._stdin.readline() if self._stdin else ""
        except OSError:  # a terminal that is gone
            line = ""
        if not line:
            raise EOFError
        if not self._shown_by_terminal:
            self.write(clean(line, 60) + "\n")
        return line
