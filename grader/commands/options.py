"""What the command line takes: the commands and their options."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from classroom import command as course
from grader import __version__
from grader.commands.calibrate import command as calibrate
from grader.commands.doctor import command as doctor_command
from grader.commands.explain import command as explain_command
from grader.commands.hint import command as hint_command
from grader.commands.package import command as package
from grader.commands.quiz.questions import LEVELS
from grader.commands.race import command as race_command
from grader.commands.release import command as release
from grader.commands.stability import command as stability
from grader.commands.submit import command as submit
from grader.commands.trace import command as trace_command
from grader.commands.watch import command as watch_command
from grader.report import exports, report_page
from grader.spec.problem import PROBLEMS

# What a target of the Makefile calls an option.
_OF_MAKE = {
    "submission": "SUBMISSION",
    "only": "P",
    "problems": "P",
    "device": "DEVICE",
    "seed": "SEED",
    "json": "JSON",
    "quick": "QUICK",
    "exitfirst": "X",
    "map": "MAP",
    "official": "OFFICIAL",
    "topic": "TOPIC",
    "level": "LEVEL",
    "restart": "RESTART",
    "case": "CASE",
    "program": "PROGRAM",
}
# Commands that a target of the Makefile runs.
_TARGETS = (
    "grade", "watch", "race", "hint", "trace", "explain", "lint", "quiz", "doctor", "submit",
    "release",
)  # fmt: skip
_ABOUT = re.compile(rf"^((?:argument )?(?:-x/)?--({'|'.join(_OF_MAKE)})( \S+)?)(?=: )")


def in_words_of_make(message: str, command: str) -> str:
    """Return a message about an option of a command with what `make` calls it, if it has it."""
    if command not in _TARGETS:
        return message

    def named(match: re.Match[str]) -> str:
        return f"{match[1]} ({_OF_MAKE[match[2]]}={(match[3] or '').strip()} of make)"

    return _ABOUT.sub(named, re.sub(r"^DIR: ", "DIR (SUBMISSION= of make): ", message))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        command = " ".join(self.prog.split()[1:2])  # "grader class grade": class
        super().error(in_words_of_make(message, command))


def parser_of(runs: Mapping[str, Callable[[argparse.Namespace], int]]) -> argparse.ArgumentParser:
    """Return the parser of the command line; a command's options have its function as `run`."""
    parser = _Parser(
        prog="grader",
        description="Judge of the flash-attention assignment.",
        epilog="exit codes: 0 full marks of what could be measured, 1 points lost, 2 usage,"
        " 3 fault of the judge, 4 environment, 130 interrupted",
    )
    parser.add_argument("--version", action="version", version=f"grader {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    grade = commands.add_parser("grade", help="grade one submission and print the score report")
    _add_what_to_grade(grade)
    grade.add_argument(
        "--seed", metavar="HEX", help="repeat a run's inputs (default: fresh and secret)"
    )
    for name, what in exports.HELP.items():
        grade.add_argument(f"--{name}", type=Path, metavar="FILE", help=what)
    grade.add_argument(
        "--report",
        action="store_true",
        help=f"write {report_page.FILE} here, with the points of earlier runs; what keeps it from"
        " being written is said and costs nothing",
    )
    grade.add_argument(
        "--annotations", action="store_true", help="print GitHub's annotations after the report"
    )
    grade.add_argument(
        "--jail", action="store_true", help="run the submission where it can reach nothing else"
    )
    grade.add_argument(
        "--fail-under", type=float, metavar="N", help="exit 0 from N required points on, else 1"
    )
    grade.add_argument("--exit-zero", action="store_true", help="exit 0 even when points were lost")
    grade.add_argument("--quick", action="store_true", help="leave speed and memory out")
    grade.add_argument("--map", action="store_true", help="show the tiles that the kernels visit")
    grade.add_argument(
        "-x", "--exitfirst", action="store_true", help="end a problem at its first failure"
    )
    grade.add_argument(
        "--jobs", type=int, metavar="N", help="problems tested side by side (default: by cores)"
    )
    grade.add_argument(
        "--no-policy", action="store_true", help="leave the source policy out: not for credit"
    )
    grade.set_defaults(run=runs["grade"])
    repeated = commands.add_parser(
        "stability", help="grade a submission N times and show how the points vary"
    )
    stability.add_options(repeated)
    _add_what_to_grade(repeated)
    repeated.set_defaults(run=runs["stability"])
    calibrated = commands.add_parser(
        "calibrate", help="measure the model answers here and write this GPU's speed targets"
    )
    calibrate.add_options(calibrated)
    calibrated.set_defaults(run=runs["calibrate"])
    packaged = commands.add_parser("package", help="write what a course platform needs to grade")
    package.add_options(packaged)
    packaged.set_defaults(run=runs["package"])
    looked = commands.add_parser("lint", help="list what the source policy refuses; runs nothing")
    looked.add_argument("submission", type=Path, metavar="DIR", help="folder with pNN/<file>.py")
    looked.add_argument("--only", metavar="p04,p05", help="look at these problems only")
    looked.set_defaults(run=runs["lint"])
    quiz = commands.add_parser("quiz", help="ask you the questions of the course; never scored")
    quiz.add_argument("--topic", metavar="TOPIC", help="ask about this topic only, such as softmax")
    quiz.add_argument("--level", choices=LEVELS, help="ask this level only (default: both)")
    quiz.add_argument("--restart", action="store_true", help="forget what was answered before")
    quiz.set_defaults(run=runs["quiz"])
    submitted = commands.add_parser("submit", help="pack your answers into the archive to upload")
    submit.add_options(submitted)
    submitted.set_defaults(run=runs["submit"])
    released = commands.add_parser("release", help="make the students' repository, or update it")
    release.add_options(released)
    released.set_defaults(run=runs["release"])
    of_class = commands.add_parser("class", help="collect and grade the submissions of a class")
    course.add_options(of_class)
    of_class.set_defaults(run=runs["class"])
    hint = commands.add_parser("hint", help="give the next hint of the first unsolved step")
    hint_command.add_options(hint)
    _add_submission(hint)
    hint.set_defaults(run=runs["hint"])
    traced = commands.add_parser("trace", help="show one program of a kernel, tile by tile")
    trace_command.add_options(traced)
    _add_submission(traced)
    traced.set_defaults(run=runs["trace"])
    race = commands.add_parser("race", help="time your answer beside naive PyTorch and SDPA")
    race_command.add_options(race)
    _add_submission(race)
    race.set_defaults(run=runs["race"])
    watched = commands.add_parser("watch", help="grade one problem again at each save")
    watch_command.add_options(watched)
    _add_submission(watched)
    watched.set_defaults(run=runs["watch"])
    explained = commands.add_parser("explain", help="explain a cause that the report names")
    explain_command.add_options(explained)
    explained.set_defaults(run=runs["explain"])
    examined = commands.add_parser("doctor", help=doctor_command.HELP)
    examined.set_defaults(run=runs["doctor"])
    return parser


def _add_submission(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--submission",
        type=Path,
        default=Path(os.path.relpath(PROBLEMS)),
        metavar="DIR",
        help="folder with pNN/<file>.py (default: problems, your own stubs)",
    )


def _add_what_to_grade(parser: argparse.ArgumentParser) -> None:
    _add_submission(parser)
    parser.add_argument(
        "--only", metavar="p04,p05", help="grade these problems only (default: all)"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--official", action="store_true", help="for credit: grade everything, in a jail"
    )
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="speed targets that `calibrate` wrote (default: those of this GPU, if there are any)",
    )
