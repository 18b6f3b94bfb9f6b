"""What the pages of docs/errors say of the causes that a report names."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from grader.report.cause_pages import ExplainError, look_up

_PARTS = ("What happened", "Why", "How to fix it")


@dataclasses.dataclass(frozen=True)
class About:
    """The text of one cause: its paragraphs, each whether it is code, in pieces of which every
    second one is a name of the code."""

    anchor: str
    title: str
    paragraphs: list[tuple[bool, list[str]]]


def texts(ids: Iterable[str]) -> dict[str, About]:
    """Return the texts of those causes that have one, by id; causes may share a text."""
    by_title: dict[str, About] = {}
    found = {}
    for id in ids:
        try:
            text = look_up(id).text
        except ExplainError:
            continue
        title = re.search(r"^# (.*)", text, re.MULTILINE)
        if title is not None:
            new = About(f"about-{len(by_title)}", title[1], _paragraphs(text))
            found[id] = by_title.setdefault(title[1], new)
    return found


def _paragraphs(text: str) -> list[tuple[bool, list[str]]]:
    sections = dict(re.findall(r"^## (.*)\n\n((?:(?!## |Read on).*\n)*)", text, re.MULTILINE))
    made = []
    for part in _PARTS:
        for paragraph in re.split(r"\n{2,}", sections.get(part, "").strip("\n")):
            is_code = paragraph.startswith("    ")
            rows = [row.removeprefix("    ") for row in paragraph.split("\n")]
            made.append((is_code, ["\n".join(rows)] if is_code else paragraph.split("`")))
    return made
