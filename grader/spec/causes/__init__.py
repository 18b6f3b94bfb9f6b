"""The texts on each cause that a report can name: a table for each id in the files beside this.

    [POINTER-WITHOUT-STRIDE]    without the problem's prefix
    problems    where it can occur, if known mistakes do not say so; without it: everywhere
    part        of a line where it shows: see Spot in grader/source/feeding.py; "product": the dot
    title, note, help           what is wrong, what happened, what to do: in general
    why, wrong, right           why it happens, and a line of code, wrong and right
    [POINTER-WITHOUT-STRIDE.seen]           what a rule of grader/causes says of a kernel
    [POINTER-WITHOUT-STRIDE.seen.variant]   another form of that; [ID.variant]: of a known mistake

A form has the keys among title, note and help that differ from the table above it. {fields} are
figures that a rule or a known mistake gives. The files "masks" (with a picture each), "softmax",
"backward" and "backward_rows" have known mistakes, "kernels" and "pairs" what was seen while a
kernel ran, "results" what was computed from a wrong result, "events" how a call can end.
measured.toml has what tests/test_mistakes.py found: what a mistake costs, and its picture.
"""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grader.spec.problem import ManifestError, load_problem, problem_ids

FOLDER = Path(__file__).parent
MEASURED = "measured"
_TEXTS = ("title", "note", "help")
_OF_A_TABLE = {*_TEXTS, "problems", "part", "why", "wrong", "right"}


@dataclasses.dataclass(frozen=True)
class Text:
    """What is wrong, what happened, and what to do."""

    title: str
    note: str
    help: str


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one mistake costs in a problem: percent of the points kept, and the checks that fail.

    `smallest` is the one of these with the smallest case. A `core` mistake fails the plain case.
    """

    keeps: int
    fails: str
    smallest: str
    core: bool = False


@dataclasses.dataclass(frozen=True)
class Picture:
    """Which keys each query takes, or which heads are read; `legend` says what letters mean."""

    legend: str
    rows: str


@dataclasses.dataclass(frozen=True)
class Entry:
    """One cause; `file` is the name of the file that has it, without its suffix."""

    id: str
    file: str
    table: Mapping[str, Any]
    costs: Mapping[str, Cost]
    picture: Picture | None = None

    @functools.cached_property
    def problems(self) -> tuple[str, ...]:
        """Return the problems of this checkout in which the cause can occur."""
        said = self.table.get("problems", "" if self.costs else " ".join(problem_ids()))
        among = {*said.split(), *self.costs}
        if self.id == "COMPILES":
            among = {p for p in among if any(c.compiles for c in load_problem(p).checks)}
        return tuple(id for id in problem_ids() if id in among)

    @property
    def part(self) -> str:
        """The part of a line that is wrong where the cause shows, "" where that is not known."""
        return str(self.table.get("part", ""))

    @functools.cached_property
    def text(self) -> Text:
        """The general texts, which hold for any size of a tile."""
        if "{tile}" not in self.table["note"]:
            return self.said({})
        if "p01" not in self.problems:
            text = self.said({"tile": "T"})
            return dataclasses.replace(text, note=f"{text.note}; T is the side of a tile")
        text = self.said({"tile": "tile_k"})
        more = "; what p01 calls tile_k is BLOCK_N in a kernel" if self.problems[1:] else ""
        return dataclasses.replace(text, note=text.note + more)

    def said(self, figures: Mapping[str, object], *forms: str) -> Text:
        """Return the texts of the last of nested `forms`, with `figures`; "" names no form."""
        templates = self.templates(*forms)
        return Text(**{key: text.format(**figures) for key, text in templates.items()})

    def templates(self, *forms: str) -> dict[str, str]:
        """Return the texts of the last of nested `forms`, with {fields} in place of figures."""
        table = self.table
        found = {key: table[key] for key in _TEXTS}
        for form in filter(None, forms):
            table = table.get(form, {}) if form == "seen" else table[form]
            found |= {key: table[key] for key in _TEXTS if key in table}
        return found

    def forms(self) -> list[tuple[str, ...]]:
        """Return all forms in which a report may show the cause."""
        seen = self.table.get("seen", {})
        variants = [(name,) for name, form in self.table.items() if isinstance(form, dict)]
        below = [("seen", name) for name, form in seen.items() if isinstance(form, dict)]
        return [*variants, *below]


def entry_of(id: str) -> Entry:
    """Return the cause with this id."""
    return entries()[id]


@functools.cache
def entries() -> dict[str, Entry]:
    """Return all causes, by id, in order.

    Raises:
        ManifestError: a file cannot be read, lacks a key or has one too many.
    """
    measured = _read(FOLDER / f"{MEASURED}.toml")
    pictures = measured.pop("pictures", {})
    costs: dict[str, dict[str, Cost]] = {}
    for problem, rows in measured.items():
        for id, row in rows.items():
            costs.setdefault(id, {})[problem] = Cost(**row)
    found: dict[str, Entry] = {}
    for path in sorted(FOLDER.glob("*.toml")):
        for id, table in _read(path).items() if path.stem != MEASURED else ():
            keys = {key for key, value in table.items() if not isinstance(value, dict)}
            if id in found or not {*_TEXTS, "why"} <= keys <= _OF_A_TABLE:
                raise ManifestError(
                    f"{path}: [{id}] has {', '.join(sorted(keys))}{' twice' * (id in found)},"
                    f" expected once title, note, help and why, and at most {sorted(_OF_A_TABLE)}"
                )
            picture = Picture(**pictures[id]) if id in pictures else None
            found[id] = Entry(id, path.stem, table, costs.get(id, {}), picture)
    return dict(sorted(found.items()))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ManifestError(f"{path}: {why}; copy the file from the release again") from None
