"""Reads submission_metadata.yml of Gradescope's export, which says whose folder is whose.

The file is YAML with Ruby's symbols as keys. Ruby's tags are ignored, so that all scalars are text,
and only two keys of a submission are read. The layout is the one that the tools at
https://github.com/search?q=submission_metadata.yml read.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from classroom.records import CourseError, utc
from grader.base.text import clean

FILE = "submission_metadata.yml"
_MAX_BYTES = 512 * 2**20  # the file includes the output of every autograder run
_SUBMISSION = re.compile(r"submission_\w{1,40}")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.\d+)? ?(Z|UTC|[+-]\d\d:?\d\d)")
_LEVELS = 4  # file, submission, list of submitters, submitter; results lie deeper


@dataclasses.dataclass(frozen=True)
class Submitter:
    """One of the students who handed a submission in together."""

    sid: str = ""
    email: str = ""
    name: str = ""


_FIELDS = [field.name for field in dataclasses.fields(Submitter)]


@dataclasses.dataclass
class Submission:
    """One folder of the export."""

    folder: str
    submitters: list[Submitter] = dataclasses.field(default_factory=list)
    submitted_at: str | None = None


def read_metadata(path: Path) -> list[Submission]:
    """Return the submissions that the file lists.

    Raises:
        CourseError: the file cannot be read or is no export; the message names the line.
        ImportError: PyYAML is not installed.
    """
    import yaml  # in requirements-course.txt; no other layout needs it

    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read(_MAX_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise CourseError(f"{path.name}: cannot be read: {clean(str(error), 120)}") from None
    if len(text) > _MAX_BYTES:
        raise CourseError(f"{path.name}: got more than {_MAX_BYTES >> 20} MiB, expected less")
    try:
        events = yaml.parse(text, getattr(yaml, "CBaseLoader", yaml.BaseLoader))
        ends = yaml.NodeEvent | yaml.StreamEndEvent
        data = _value(next(e for e in events if isinstance(e, ends)), events, _LEVELS)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise _not_understood(f"{where}{getattr(error, 'problem', error)}", "YAML") from None
    if not isinstance(data, dict) or not data:
        raise CourseError(f"{path.name}: got no submission, expected Gradescope's export")
    return [_submission(key, value) for key, value in data.items()]


def _value(event: Any, events: Iterator[Any], levels: int) -> Any:
    """Return a text, a list or a mapping, with None in place of values below `levels`.

    Args: event: PyYAML's first event of the value; events: the following ones.
    Building the whole tree would take fifteen times the file's size.
    """
    import yaml

    if not isinstance(event, yaml.CollectionStartEvent):
        return getattr(event, "value", None)  # None for an alias, and for an empty file
    found: list[Any] = []
    while not isinstance(event := next(events), yaml.CollectionEndEvent):
        value = _value(event, events, levels - 1)
        found += [value] if levels > 0 else []
    if levels <= 0:
        return None
    is_list = isinstance(event, yaml.SequenceEndEvent)
    return found if is_list else dict(zip(map(str, found[::2]), found[1::2], strict=True))


def _submission(folder: str, data: Any) -> Submission:
    if not _SUBMISSION.fullmatch(folder) or not isinstance(data, dict):
        raise _not_understood(f"{folder}: {data}", "submission_<number>: and its :submitters:")
    time, submitters = data.get(":created_at"), data.get(":submitters") or []
    if not isinstance(submitters, list) or not all(isinstance(who, dict) for who in submitters):
        expected = "the :name:, :sid: or :email: of each"
        raise _not_understood(f"{folder}: :submitters: {submitters}", expected)
    match = _TIME.search(str(time.get("utc") if isinstance(time, dict) else time))
    return Submission(
        folder,
        [Submitter(*(_text(who, f":{key}") for key in _FIELDS)) for who in submitters],
        utc("{}T{}{}".format(*match.groups()).replace("UTC", "Z")) if match else None,
    )


def _text(data: dict[str, Any], key: str) -> str:
    text = data.get(key)
    return text if isinstance(text, str) and text not in ("null", "~") else ""


def _not_understood(got: str, expected: str) -> CourseError:
    return CourseError(
        f"{FILE}: got {clean(got, 60)!r}, expected {expected}; unpack the export, remove this file"
        " and name each folder after its student"
    )
