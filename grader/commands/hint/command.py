"""`python -m grader hint`: the next hint of the first step that is not solved."""

from __future__ import annotations

import argparse
import functools
import os

from grader.base import stdout
from grader.base.user_state import state_path
from grader.commands.hint.next_hint import next_hint
from grader.commands.hint.shown import FILE, Shown
from grader.commands.hint.tested import tested
from grader.commands.hint.view import render
from grader.commands.options import add_submission, expect_folder, one_or_all

HELP = "give the next hint of the first unsolved step"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `hint`."""
    parser.add_argument("--only", metavar="p04", help="the problem (default: where you are)")
    parser.add_argument("--restart", action="store_true", help="begin with its first hint again")
    add_submission(parser)


def run(options: argparse.Namespace) -> int:
    """Show the next hint; return 0."""
    ids, folder = one_or_all(options.only), expect_folder(options.submission)
    shown = Shown(state_path(os.environ, FILE))
    test = functools.partial(tested, folder)
    hint = next_hint(ids, folder, shown, test, restart=options.restart)
    stdout.show(functools.partial(render, hint, shown.notices))
    return 0
