"""The command line: `python -m grader` with its commands.

A command is a module with HELP, OPTIONS and run(options), which returns the exit code. A command
with subcommands has in place of OPTIONS a table COMMANDS, and in ALL the options they share. `run`
converts the options: no module below it knows argparse. A command raises UsageError or
ManifestError (bad input), EnvironmentFault (this machine) or JudgeFault (our bug), whose sentence
`main` shows and whose type decides the exit code.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import NoReturn

from grader import __version__
from grader.base.options import declare
from grader.commands.options import UsageError
from grader.judge import scoring
from grader.spec.environment import EnvironmentFault, JudgeFault
from grader.spec.problem import ManifestError, examples

EXIT_USAGE = 2
COMMANDS = (
    "grade", "calibrate", "package", "lint", "quiz", "submit", "release", "class", "hint", "trace",
    "race", "predict", "watch", "explain", "case", "doctor",
)  # fmt: skip
_NOT_OF_MAKE = ("calibrate", "package", "class", "")
# By option, the Makefile's variable for it.
_OF_MAKE = {"only": "P", "problems": "P", "exitfirst": "X"} | {
    name: name.upper()
    for name in (
        "submission", "device", "seed", "json", "quick", "map", "chips", "official", "topic",
        "level", "restart", "case", "program", "output",
    )
}  # fmt: skip
_OF_RELEASE = {"problems": "P", "answers-after": "ANSWERS_AFTER"}
_IDS = re.compile(r"\bp\d\d(?:,p\d\d)*\b")
_ABOUT = re.compile(
    rf"^((?:argument )?(?:-x/)?--({'|'.join(_OF_MAKE | _OF_RELEASE)})( \S+)?)(?=: )"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code (0 full marks, 1 points lost, 2, 3, 4: see --help)."""
    words = sys.argv[1:] if arguments is None else [*arguments]
    first = next((word for word in words if not word.startswith("-")), "")
    command = first if first in COMMANDS else ""
    try:
        options = parser_of(command).parse_args(words)
        # A background job of a shell may start with Ctrl-C ignored, and hand that on to children.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        return options.run(options)
    except (UsageError, ManifestError) as error:
        said, code = in_words_of_make(str(error), command), EXIT_USAGE
    except EnvironmentFault as error:
        said, code = in_words_of_make(str(error), command), scoring.EXIT_ENVIRONMENT
    except JudgeFault as error:
        said, code = f"fault of the judge: {error}", scoring.EXIT_JUDGE_FAULT
    except KeyboardInterrupt:
        said, code = "interrupted before anything was graded", scoring.EXIT_INTERRUPTED
    print(f"grader: {said}", file=sys.stderr)
    return code


def parser_of(command: str = "") -> argparse.ArgumentParser:
    """Return the parser of one command, which alone is imported, or of all commands for ""."""
    parser = _Parser(
        prog="grader",
        description="Judge of the flash-attention assignment.",
        epilog="exit codes: 0 full marks of what could be measured, 1 points lost, 2 usage,"
        " 3 fault of the judge, 4 environment, 130 interrupted",
    )
    parser.add_argument("--version", action="version", version=f"grader {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name in [command] if command else filter(_is_here, COMMANDS):
        module = _module(name)
        its_own = commands.add_parser(name, help=module.HELP)
        declare_options(its_own, module)
        its_own.set_defaults(run=module.run)
    return parser


def declare_options(parser: argparse.ArgumentParser, module: ModuleType) -> None:
    """Declare the options of a command, or its subcommands with their options."""
    declare(parser, _with_examples(getattr(module, "OPTIONS", {})))
    if hasattr(module, "COMMANDS"):
        inner = parser.add_subparsers(required=True, metavar="COMMAND", dest="inner")
        for name, command in module.COMMANDS.items():
            its_own = inner.add_parser(name, help=command.help, description=command.help)
            declare(its_own, _with_examples(module.ALL | command.options))


def _with_examples(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with examples that name only problems of this checkout."""

    def of_here(text: str) -> str:
        return _IDS.sub(lambda found: examples(*found[0].split(",")), text)

    return {of_here(option): of_here(about) for option, about in options.items()}


def _is_here(name: str) -> bool:
    """Whether this checkout has a command: the students' release has no classroom/."""
    return name != "class" or importlib.util.find_spec("classroom") is not None


def _module(name: str) -> ModuleType:
    if not _is_here(name):
        raise UsageError(f"{name}: got the students' release, expected the course's checkout")
    room = "classroom" if name == "class" else f"grader.commands.{name}"
    return importlib.import_module(f"{room}.command")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        command = " ".join(self.prog.split()[1:2])  # "grader class grade": class
        super().error(in_words_of_make(message, command))


def in_words_of_make(message: str, command: str) -> str:
    """Return a message in which an option is followed by its variable of `make`, if it has one."""
    if command in _NOT_OF_MAKE:
        return message
    known, folder = (_OF_RELEASE, "DIR") if command == "release" else (_OF_MAKE, "SUBMISSION")
    if message.startswith("DIR: "):
        return message.replace("DIR: ", f"DIR ({folder}= of make): ", 1)

    def named(match: re.Match[str]) -> str:
        about, option, value = match.groups(default="")
        return f"{about} ({known[option]}={value.strip()} of make)" if option in known else about

    return _ABOUT.sub(named, message)
