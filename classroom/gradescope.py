"""Reads submission_metadata.yml of Gradescope's export: whose submission each folder is.

The file is written by a program, in one style: YAML with two blanks per level and Ruby's symbols
as keys. Only that style is read, and of it three keys of a submission; texts of students are
deeper inside and are never looked at. The layout is that of exports as the tools at
https://github.com/search?q=submission_metadata.yml read them.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from classroom.records import utc
from classroom.unpacking import SourceError
from grader.base.text import clean

FILE = "submission_metadata.yml"
_MAX_BYTES = 512 * 2**20  # the file has the output of every autograder run
_SUBMISSION = re.compile(r"(['\"]?)(submission_\w{1,40})\1:\s*")
_KEY = re.compile(r"  :(\w+): ?(.*)")
_FIELD = re.compile(r"  (?:- |  ):(\w+):(?: (.*))?")
_FURTHER = re.compile(r"      .*|\s*")
_BLOCK = re.compile(r"^[|>][-+]?\d? ")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.\d+)? ?(Z|UTC|[+-]\d\d:?\d\d)")


@dataclasses.dataclass(frozen=True)
class Submitter:
    """One of those whose submission it is."""

    sid: str = ""
    email: str = ""
    name: str = ""


@dataclasses.dataclass
class Submission:
    """One folder of the export."""

    folder: str
    submitters: list[Submitter] = dataclasses.field(default_factory=list)
    submitted_at: str | None = None


def read_metadata(path: Path) -> list[Submission]:
    """Return the submissions that the file lists.

    Raises:
        SourceError: it cannot be read, or a line is not understood; names the line.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read(_MAX_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path.name}: cannot be read: {clean(str(error), 120)}") from None
    found: list[Submission] = []
    key, fields = "", {}
    for number, line in _joined(text.split("\n")):
        if top := _SUBMISSION.fullmatch(line):
            found.append(Submission(top[2]))
            key = ""
        elif not found:
            if line.strip() not in ("", "---", "--- {}"):
                raise _not_understood(path, number, line, "submission_<number>:")
        elif opened := _KEY.fullmatch(line):
            key = opened[1]
            if key == "created_at" and (time := _TIME.search(opened[2])):
                found[-1].submitted_at = _utc(time)
        elif key == "created_at" and line.strip().startswith("utc:"):
            if time := _TIME.search(line):
                found[-1].submitted_at = _utc(time)
        elif key == "submitters" and line.strip():
            field = _FIELD.fullmatch(line)
            if field is None:
                raise _not_understood(path, number, line, "the :name:, :sid: or :email: of one")
            if line.startswith("  - "):
                fields = {}
                found[-1].submitters.append(Submitter())
            if not found[-1].submitters:
                raise _not_understood(path, number, line, "a submitter, after a dash")
            try:
                fields[field[1]] = _scalar(path, number, field[2] or "")
            except SourceError:
                if field[1] != "name":  # which students choose; others are not to pay for it
                    raise
            known = {name: fields.get(name, "") for name in ("sid", "email", "name")}
            found[-1].submitters[-1] = Submitter(**known)
    if not found:
        raise SourceError(f"{path.name}: got no submission, expected Gradescope's export")
    return found


def _joined(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Give lines with their numbers; a value that goes on below is one, as YAML folds them."""
    pending: list[str] = []
    first = 0
    for number, line in enumerate(lines, start=1):
        line = line.rstrip("\r")
        if pending and _FIELD.fullmatch(pending[0]) and _FURTHER.fullmatch(line):
            pending.append(line.strip())
            continue
        if pending:
            yield first, " ".join(filter(None, pending))
        first, pending = number, [line]
    yield first, " ".join(filter(None, pending))


def _utc(time: re.Match[str]) -> str:
    zone = "+00:00" if time[3] in ("Z", "UTC") else time[3]
    return utc(f"{time[1]}T{time[2]}{zone}")


def _scalar(path: Path, number: int, text: str) -> str:
    """Return a value: plain, 'single quoted' or "double quoted" as JSON is."""
    text = _BLOCK.sub("", text.strip())
    if text.startswith("'"):
        if len(text) < 2 or not text.endswith("'"):
            raise _not_understood(path, number, text, "a text on one line")
        return text[1:-1].replace("''", "'")
    if text.startswith('"'):
        try:
            return str(json.loads(re.sub(r"\\x(..)", r"\\u00\1", text.replace(r"\e", r"\u001b"))))
        except ValueError:
            raise _not_understood(path, number, text, "a text on one line") from None
    return "" if text in ("null", "~") else text


def _not_understood(path: Path, number: int, line: str, expected: str) -> SourceError:
    return SourceError(
        f"{path.name}: line {number}: got {clean(line, 60)!r}, expected {expected}; unpack the"
        " export, remove this file and name each folder after its student"
    )
