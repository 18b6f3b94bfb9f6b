"""Two accounts that handed in for one student: the instructor decides, never a date."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from classroom.layouts import Found
from classroom.unpacking import SourceError
from grader.source.intake.entries import shown

_LISTED = 10


def decided(found: Sequence[Found], ids: Collection[str], choose: Collection[str]) -> list[Found]:
    """Return the submissions without those that lost to one named in `choose`.

    `ids` are those of the roster; without a roster everybody counts.

    Raises:
        SourceError: a student has submissions of several sources, and none or several are chosen.
    """
    by_student: dict[str, dict[str, list[Found]]] = {}
    for one in found:
        by_student.setdefault(one.student, {}).setdefault(one.source, []).append(one)
    kept: list[Found] = []
    conflicts: list[str] = []
    for student, sources in by_student.items():
        chosen = [s for s, ones in sources.items() if any(_names(one, choose) for one in ones)]
        if len(sources) == 1 or (ids and student not in ids):
            kept += [one for ones in sources.values() for one in ones]
        elif len(chosen) == 1:
            others = tuple(
                f"{_entry(ones[0])} is not read: {_entry(sources[chosen[0]][0])} was chosen"
                for source, ones in sources.items()
                if source != chosen[0]
            )
            kept += [
                dataclasses.replace(one, notes=(*one.notes, *others)) for one in sources[chosen[0]]
            ]
        else:
            got = " and ".join(_entry(ones[0]) for ones in sources.values())
            conflicts.append(f"{shown(student)} has {got}")
    if conflicts:
        more = len(conflicts) - _LISTED
        some = "; ".join(conflicts[:_LISTED]) + f"; and {more} more" * (more > 0)
        raise SourceError(
            f"SOURCE: got submissions of different accounts for one student ({some}), expected"
            " one account each: find out whose they are, then name each one that counts with"
            " --choose NAME, or correct the roster"
        )
    return kept


def _entry(one: Found) -> str:
    return shown(one.shown_as.partition("/")[0])


def _names(one: Found, choose: Collection[str]) -> bool:
    return _entry(one) in choose or one.shown_as.partition("/")[0] in choose
