"""`python -m grader quiz`: picks the questions and asks them."""

from __future__ import annotations

import argparse
import os

from grader.base.user_state import state_path
from grader.commands.asking import Terminal, on_terminal
from grader.commands.options import UsageError
from grader.commands.quiz.asking import STATE, Quiz, QuizProgress
from grader.commands.quiz.questions import LEVELS, TOPICS, Question, load_level

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
