"""Where the speed targets are from that a record was scored with."""

from __future__ import annotations

from collections.abc import Sequence

from grader.base.text import clean, plural, wrap
from grader.report.message import ID_LIMIT
from grader.spec.grade_record import GradeRecord, SpeedFigures

_MOST_NAMES = 3


def target_lines(record: GradeRecord, width: int) -> list[str]:
    """Return where the targets are from that speed was scored with, and what the canary said."""
    sources: dict[str, list[str]] = {}
    notes = []
    for problem in record.problems:
        speed = problem.components.get("speed")
        figures = speed.figures if speed else None
        if not isinstance(figures, SpeedFigures):
            continue
        if figures.targets:
            id = clean(problem.id, ID_LIMIT)
            sources.setdefault(clean(figures.targets, 60), []).append(id)
        if figures.note:
            notes.append(f"{clean(problem.id, ID_LIMIT)}: {clean(figures.note)}")
    lines = []
    if sources:
        parts = [f"{source} ({_spans(ids)})" for source, ids in sources.items()]
        lines += wrap("; ".join(parts), width, "speed targets: ", "    ")
    for note in notes[:_MOST_NAMES]:
        lines += wrap(note, width, "note: ", "    ")
    if len(notes) > _MOST_NAMES:
        rest = plural(len(notes) - _MOST_NAMES, "more problem")
        lines.append(f"note: and of {rest}, see JSON=file")
    return lines


def _spans(ids: Sequence[str]) -> str:
    """Return p02, p03, p04, p06 as "p02-p04, p06"."""
    spans: list[list[str]] = []
    for id in ids:
        follows = spans and id == f"p{int(spans[-1][-1][1:]) + 1:02d}" if _numbered(id) else False
        if follows:
            spans[-1].append(id)
        else:
            spans.append([id])
    words = [s[0] if len(s) == 1 else f"{s[0]}-{s[-1]}" for s in spans]
    return ", ".join(words)


def _numbered(id: str) -> bool:
    return len(id) == 3 and id[0] == "p" and id[1:].isascii() and id[1:].isdigit()
