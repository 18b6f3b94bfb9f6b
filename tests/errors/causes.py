"""Which causes the judge can name, and what the pages say of each."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import tomllib
from pathlib import Path

import reference
from grader.spec.grade_record import Verdict
from grader.spec.problem import ROOT, problem_ids

HERE = Path(__file__).parent
FILES = ("masks", "softmax", "backward", "seen", "events")
_ID = re.compile(r"[A-Z0-9]+(-[A-Z0-9]+)+")
_NO_EVENTS = (
    *(Verdict.PASS, Verdict.FAIL, Verdict.NOT_IMPLEMENTED),
    *(Verdict.SKIPPED, Verdict.NOT_MEASURED),
)


@dataclasses.dataclass(frozen=True)
class Cause:
    """One cause. `why` is written by hand; of a known mistake the rest is its own."""

    id: str
    title: str
    note: str
    help: str
    why: str
    problems: tuple[str, ...] = ()
    wrong: str | None = None
    right: str | None = None


@functools.cache
def known() -> dict[str, dict[str, reference.Mistake]]:
    """Return the known mistakes by id and problem, one of each where tile sizes differ."""
    found: dict[str, dict[str, reference.Mistake]] = {}
    for problem in problem_ids():
        for mistake in (
            *reference.mistakes_for(problem),
            *reference.bridge_mistakes_for(problem),
        ):
            found.setdefault(mistake.id, {}).setdefault(problem, mistake)
    return found


@functools.cache
def seen() -> frozenset[str]:
    """Return the ids in the source of the rules that look at a kernel."""
    folder = ROOT / "grader" / "causes" / "rules"
    nodes = [n for path in folder.glob("*.py") for n in ast.walk(ast.parse(path.read_text()))]
    return frozenset(_ids(nodes))


def _ids(nodes: list[ast.AST]) -> set[str]:
    texts = (n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return {text for text in texts if _ID.fullmatch(text)}


@functools.cache
def fitted() -> frozenset[str]:
    """Return those of `seen` that are always computed from a wrong result, never from a trace."""
    from_result, from_trace = set(), set()
    for path in (ROOT / "grader" / "causes" / "rules").glob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        calls = [n for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) == "Sighting"]
        untraced = calls and all("traced=False" in map(ast.unparse, n.keywords) for n in calls)
        (from_result if untraced else from_trace).update(_ids(nodes))
    return frozenset(from_result - from_trace)


def events() -> frozenset[str]:
    """Return the names of how a call can end, and of a check that fails without a cause."""
    ends = {str(verdict).upper() for verdict in Verdict if verdict not in _NO_EVENTS}
    return frozenset({*ends, "COMPILES", "UNNAMED"})


def all_ids() -> frozenset[str]:
    """Return every id that a report may show, without its problem's prefix."""
    return frozenset({*known(), *seen(), *events()})


@functools.cache
def written() -> dict[str, dict[str, str]]:
    """Return what is written by hand, by id.

    Raises:
        ValueError: an id is written about twice.
    """
    found: dict[str, dict[str, str]] = {}
    for name in FILES:
        table = tomllib.loads((HERE / f"{name}.toml").read_text(encoding="utf-8"))
        twice = found.keys() & table.keys()
        if twice:
            raise ValueError(f"{name}.toml: {', '.join(twice)} stand in another file as well")
        found |= table
    return found


@functools.cache
def about_pairs() -> frozenset[str]:
    """Return the ids of mistakes in which keys a query takes, of which there is a picture."""
    table = tomllib.loads((HERE / "masks.toml").read_text(encoding="utf-8"))
    return frozenset({*table, "ACC-OVERWRITTEN"})


@functools.cache
def cause(id: str) -> Cause:
    """Return what is known of a cause."""
    text = dict(written()[id])
    also = tuple(text.pop("problems", "").split())
    if id not in known():
        everywhere = tuple(p for p in problem_ids() if id != "COMPILES" or p != "p01")
        return Cause(id=id, problems=also or everywhere, **text)
    by_problem = known()[id]
    mistake = next(iter(by_problem.values()))
    problems = tuple(sorted({*by_problem, *also}))
    note = _of_any_tile(mistake)
    if "tile_k" in note and problems != ("p01",):
        note += "; what p01 calls tile_k is BLOCK_N in a kernel"
    return Cause(id, mistake.title, note, mistake.help, problems=problems, **text)


def _of_any_tile(mistake: reference.Mistake) -> str:
    """Return a note without the tile size of one of several variants."""
    if mistake.tile is None:
        return mistake.note
    return re.sub(rf"\b{mistake.tile}\b", "T", mistake.note) + "; T is the side of a tile"
