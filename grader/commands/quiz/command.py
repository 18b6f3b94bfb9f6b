"""`python -m grader quiz`: picks the questions and joins the loop to the standard streams."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console

from grader.base import stdout
from grader.base.text import clean
from grader.base.user_state import state_path
from grader.commands.options import UsageError
from grader.commands.quiz.asking import STATE, Quiz, QuizProgress, Terminal
from grader.commands.quiz.questions import LEVELS, TOPICS, Question, QuizError, load_level
from grader.judge import scoring

HELP = "ask you the questions of the course; never scored"


OPTIONS = {
    "--topic TOPIC": "ask about this topic only, such as softmax",
    f"--level {{{','.join(LEVELS)}}}": "ask this level only (default: both)",
    "--restart": "forget what was answered before",
}


def run(options: argparse.Namespace) -> int:
    """Ask on standard input and output; Ctrl-C ends with 130, q and the end of input with 0.

    Raises:
        UsageError: there is no standard output.
        QuizError: there is no such topic (in that level), or the questions cannot be read.
    """
    if sys.stdout is None:
        raise UsageError("quiz: got no standard output, expected a terminal, a pipe or a file")
    questions = chosen(options.topic, options.level)
    words = ["make quiz"]
    words += [f"TOPIC={options.topic}"] if options.topic else []
    words += [f"LEVEL={options.level}"] if options.level else []
    try:
        whole = _ask(questions, " ".join(words), restart=options.restart)
    except OSError:
        stdout.silence()
        return scoring.EXIT_FULL_MARKS
    return scoring.EXIT_FULL_MARKS if whole else scoring.EXIT_INTERRUPTED


def _ask(questions: Sequence[Question], resume: str, *, restart: bool) -> bool:
    """Ask on the standard streams; return False when Ctrl-C ended it."""
    progress = QuizProgress(state_path(os.environ, STATE))
    if restart:
        progress.forget({question.id for question in questions})
    whole = Quiz(questions, progress, terminal_of(), resume=resume).run()
    sys.stdout.flush()
    return whole


def terminal_of() -> Terminal:
    """Return the terminal that the standard streams are."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    width = max(min(Console().width, 80), 40) if sys.stdout.isatty() else 80
    read = _Lines(sys.stdin, sys.stdout).read
    return Terminal(read, sys.stdout.write, width, stdout.wants_color())


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
