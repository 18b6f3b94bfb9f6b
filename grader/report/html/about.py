"""What grader/spec/causes says of the causes that a report names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from grader.report.cause_pages import ExplainError, look_up, sections

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
    by_id: dict[str, About] = {}
    found = {}
    for id in ids:
        try:
            entry = look_up(id).entry
        except ExplainError:
            continue
        if entry is not None:
            parts = [p for name, part in sections(entry) if name in _PARTS for p in part]
            title = f"{entry.id}: {entry.text.title}"
            new = About(f"about-{len(by_id)}", title, list(map(_paragraph, parts)))
            found[id] = by_id.setdefault(entry.id, new)
    return found


def _paragraph(text: str) -> tuple[bool, list[str]]:
    is_code = text.startswith("    ")
    rows = [row.removeprefix("    ") for row in text.split("\n")]
    return is_code, ["\n".join(rows)] if is_code else text.split("`")
