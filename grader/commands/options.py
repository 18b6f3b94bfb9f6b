"""Options that several commands share, and functions that turn their text into values."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grader.base.chip_name import JUDGED, chip_name
from grader.isolate import capacity
from grader.judge.request import Request
from grader.kernel.compile.chips import EVERY_CHIP
from grader.spec.environment import EnvironmentFault
from grader.spec.grade_record import Environment
from grader.spec.problem import problems_named

_FOLDER = "folder with pNN/<file>.py (default: %(default)s)"
SUBMISSION = {"--submission DIR=problems": _FOLDER}
SOLUTIONS = {"--submission DIR=solutions": _FOLDER}
DEVICE = {"--device {auto,cpu,cuda}=auto": ""}
SEED = {"--seed HEX": "repeat a run's inputs (default: fresh and secret)"}


class UsageError(Exception):
    """An option has an unusable value; the message names it, got and expected."""


def chips_of(text: str | None, device: str) -> tuple[int, ...]:
    """Return the chips that --chips names, without those that are always compiled for."""
    if text is None:
        return ()
    known = {chip_name(chip): chip for chip in EVERY_CHIP}
    names = list(known) if text == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise UsageError(
                f"--chips: got {name!r}, expected all, or some of {', '.join(known)}, with commas"
            )
    always = JUDGED if device == "cpu" else ()
    return tuple(sorted({known[name] for name in names} - {*always}))


def expect_folder(path: Path, name: str = "--submission") -> Path:
    """Return the folder of a submission; `name` is the option that gave it.

    Raises:
        UsageError: `path` is not a folder.
    """
    if not path.is_dir():
        raise UsageError(
            f"{name}: got {path}, which is not a folder; expected one with pNN/<file>.py in it"
        )
    return path


def expect_place(path: Path | None, name: str) -> None:
    """Refuse a file name that is a folder's, or lies in a folder that does not exist."""
    if path is not None and not path.absolute().parent.is_dir():
        raise UsageError(f"{name}: no such folder: {path.absolute().parent}")
    if path is not None and path.is_dir():
        raise UsageError(f"{name}: got the folder {path}, expected a file's name")


@contextlib.contextmanager
def writing(path: Path, name: str) -> Iterator[None]:
    """Turn an OSError of the block into a fault that names the option.

    Raises:
        EnvironmentFault: the block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        raise EnvironmentFault(f"{name}: cannot write {path}: {error.strerror}") from None


def one_or_all(only: str | None) -> tuple[str, ...]:
    """Return the one problem that --only names, or all problems without it."""
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


def request_for(
    submission: Path, problems: tuple[str, ...], environment: Environment, **how: Any
) -> Request:
    """Return the request to grade these problems of a folder on this machine's cores."""
    return Request(
        submission=submission.absolute(),
        shown_as=str(submission),
        problems=problems,
        environment=environment,
        cores=max(1, int(capacity.cores())),
        **how,
    )
