"""`python -m grader class`: the commands for a class.

This is a command of `grader/commands/cli.py`; the students' release does not have it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from classroom import collect, decisions, grade_class, publish, report
from grader.base.options import Command
from grader.spec.environment import EnvironmentFault

HELP = "collect and grade the submissions of a class"
ALL = {"--course DIR!": "folder of the class: its database, and what is written"}
COMMANDS: Mapping[str, Command] = {
    "collect": collect.COLLECT,
    "grade": grade_class.GRADE,
    "status": collect.STATUS,
    "report": report.REPORT,
    "diff": publish.DIFF,
    "publish": publish.PUBLISH,
    "override": decisions.OVERRIDE,
    "extend": decisions.EXTEND,
    "comment": decisions.COMMENT,
    "requests": decisions.REQUESTS,
    "answer": decisions.ANSWER,
    "forget": decisions.FORGET,
}


def run(options: argparse.Namespace) -> int:
    """Run the command that was asked for; return its exit code."""
    try:
        return COMMANDS[options.inner].run(options)
    except ImportError as error:
        if (error.name or "grader").partition(".")[0] in ("classroom", "grader"):
            raise
        raise EnvironmentFault(
            f"{error.name} is not installed; run `pip install -r requirements-course.txt`"
        ) from None
    except OSError as error:
        raise EnvironmentFault(
            f"{error.filename or options.course}: {error.strerror or error}: what is stored already"
            " is kept; run the command again when that is mended"
        ) from error
