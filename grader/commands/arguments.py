"""What was typed: files, folders and values that a command takes, or a `UsageError`."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from grader.report import classroom50, exports, report_page
from grader.spec.problem import problems_named


class UsageError(Exception):
    """An option that cannot be used; the message names it, got and expected."""


def expect_folder(path: Path, name: str) -> None:
    """Refuse what is not a folder; `name` is the option's."""
    if not path.is_dir():
        raise UsageError(
            f"{name}: got {path}, which is not a folder; expected one with pNN/<file>.py in it"
        )


def wanted_files(options: argparse.Namespace) -> dict[str, Path]:
    """Return the files to write by format; refuse what cannot be, before anything was graded."""
    files = {name: path for name in exports.HELP if (path := getattr(options, name)) is not None}
    taken = {os.path.realpath(report_page.FILE): "report"} if options.report else {}
    for name, path in files.items():
        expect_place(path, f"--{name}")
        other = taken.setdefault(os.path.realpath(path), name)
        if other != name:
            raise UsageError(f"--{name}: got {path}, the file of --{other}; expected another")
    unset = classroom50.missing(os.environ) if "classroom50" in files else []
    if unset:
        raise UsageError(
            f"--classroom50: got no {', '.join(unset)} in the environment, expected what Classroom"
            " 50's runner sets"
        )
    return files


def expect_place(path: Path | None, name: str) -> None:
    """Refuse a file that cannot be written."""
    if path is not None and not path.absolute().parent.is_dir():
        raise UsageError(f"{name}: no such folder: {path.absolute().parent}")
    if path is not None and path.is_dir():
        raise UsageError(f"{name}: got the folder {path}, expected a file's name")


def one_or_all(only: str | None) -> tuple[str, ...]:
    """Return the one problem that is named, or all of them where none is."""
    ids = problems_named(only)
    if only is not None and len(ids) != 1:
        raise UsageError(f"--only: got {', '.join(ids)}, expected one problem")
    return ids


def seed_of(text: str | None) -> str:
    """Return the seed that was typed, in lower case, or one drawn at random."""
    if text is None:
        return os.urandom(8).hex()
    if not re.fullmatch(r"[0-9a-fA-F]{1,32}", text):
        raise UsageError(f"--seed: got {text!r}, expected up to 32 hexadecimal digits")
    return text.lower()
