"""Goes back from a wrong variable of a running state to the first wrong one that it is made of."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

import numpy as np

from grader.causes.outputs import LOG2E
from grader.causes.state.comparing import Compared
from grader.causes.state.ran import assignments
from grader.kernel.observers.rounds import Rounds, Variable
from grader.source.expressions import assigned_by, names_in
from grader.source.loops import nodes_of
from grader.source.origins import returned_from
from grader.source.submission import Source

_CLOSE = 5e-2  # relative; numbers that are made otherwise differ by more
_LEAST = 1e-30


@np.errstate(all="ignore")
def lines_to_blame(
    rounds: Rounds, compared: Compared, r: int, wrong: set[str], source: Source
) -> list[int]:
    """Return the lines that make the first wrong variable behind the `wrong` ones, in a round.

    A wrong variable that is made of right ones is made wrongly. If it is made of a variable that
    holds none of the numbers of an online softmax, that one is wrong, and is traced back in turn.
    """
    tree, loop = source.tree, int(rounds.column("loop")[r])
    held = {v.name.partition("[")[0]: v for v in _held(rounds) if v.present[r]}
    for name, inner in _returned(tree, loop):  # known by its name in the function that makes it
        if inner in held:
            held.setdefault(name, held[inner])
    # The maximum from before the round is right in a carried variable, not in one made anew.
    known = {anew: list(_right(compared, r, anew=anew)) for anew in (False, True)}
    seen, found = set(wrong), list[int]()
    suspects, exist = set(wrong), compared.oracle.rows
    # The value of a name is from the last line that sets it, whatever it held before.
    while tree is not None and (
        lines := sorted({_set_at(tree, loop, name) for name in suspects} - {0})
    ):
        found, seen = lines, seen | suspects
        read = _read_at(tree, lines) & held.keys() - seen
        values = {name: held[name].values[r] for name in read}
        suspects = {
            name
            for name, of in values.items()
            # A carried name that is read before it is set has the right value of the round before.
            if (not held[name].carried or _set_at(tree, loop, name) < max(lines))
            and not _is_among(of, known[not held[name].carried], exist)
            and not _is_of_tile(of, compared, r)
        }
    return [_in_called(tree, line, held, r, exist) for line in found] if tree else found


def _returned(tree: ast.Module | None, loop: int) -> Iterator[tuple[str, str]]:
    """Yield names that a loop assigns from a function, each with what that function returns."""
    for node in nodes_of(tree, ast.Assign) if tree else ():
        names, called = assigned_by(node), getattr(getattr(node.value, "func", None), "id", "")
        made = returned_from(tree, called) if len(names) == 1 and called else None
        if made and node.lineno in assignments(tree, loop, names):
            yield min(names), made[1]


def _set_at(tree: ast.Module, loop: int, name: str) -> int:
    return max(assignments(tree, loop, {name}), default=0)


def _in_called(
    tree: ast.Module, line: int, held: Mapping[str, Variable], r: int, exist: np.ndarray
) -> int:
    """Return the line in a called function that makes what `line` assigns, else `line`.

    A function that returns an argument unchanged does not make it.
    """
    assigns = [n for n in nodes_of(tree, ast.Assign) if n.lineno == line]
    calls = [n for n in assigns if hasattr(getattr(n.value, "func", None), "id")]
    made = returned_from(tree, calls[0].value.func.id) if len(calls) == 1 else None
    if made is None:
        return line
    passed = [held[name].values for name in names_in(calls[0].value) & held.keys()]
    got = [held[name].values[r] for name in assigned_by(calls[0]) & held.keys()]
    as_it_was = [x for of in passed for x in of[max(r - 1, 0) : r + 1]]
    return line if any(_is_among(x, as_it_was, exist) for x in got) else made[0]


def _held(rounds: Rounds) -> Iterator[Variable]:
    yield from rounds.vectors
    yield from rounds.matrices


def _read_at(tree: ast.Module, lines: list[int]) -> set[str]:
    statements = nodes_of(tree, ast.Assign, ast.AugAssign)
    return names_in(*(n for n in statements if n.lineno in lines))


def _right(compared: Compared, r: int, *, anew: bool) -> Iterator[np.ndarray]:
    """Yield what an online softmax may hold in a round: a number or a row for each query."""
    now = compared.oracle.states[r]
    old = compared.oracle.states[r - 1] if r else None
    largest = np.where(np.isfinite(now.largest), now.largest, 0.0)
    none = np.zeros_like(largest)
    before = np.full_like(largest, -np.inf) if old is None else old.largest
    rescale = np.exp(before - largest)
    total = np.exp(now.lse - largest)
    earlier = none if old is None else np.where(np.isfinite(old.lse), np.exp(old.lse - largest), 0)
    sums = now.out * total[:, None]
    others = none[:, None] * sums if old is None else old.out * earlier[:, None]
    scale = abs(compared.oracle.scale) or 1.0
    for unit in (1.0, LOG2E, 1.0 / scale):
        yield unit * now.largest
        yield unit * largest  # finite, as it is subtracted
        if old is not None and not anew:  # the -inf before the first round says little
            yield unit * before
    yield from (rescale, total, total - earlier, earlier, np.exp(np.log(earlier) - np.log(rescale)))
    yield from (sums, sums - others, others, now.out)


def _is_of_tile(values: np.ndarray, compared: Compared, r: int) -> bool:
    """Whether values are the largest scores of a tile: with earlier ones, the largest so far."""
    now, exist = compared.oracle.states[r].largest, compared.oracle.rows
    before = compared.oracle.states[r - 1].largest if r else np.full_like(now, -np.inf)
    if values.shape != now.shape:
        return False
    sofar = (np.maximum(values / unit, before) for unit in (1.0, LOG2E))
    return any(bool(np.isclose(one[exist], now[exist], rtol=_CLOSE).all()) for one in sofar)


def _is_among(values: np.ndarray, known: list[np.ndarray], exist: np.ndarray) -> bool:
    """Whether values are those of one array of `known`, in all rows that exist."""
    alike = (one for one in known if one.shape == values.shape)
    close = {"rtol": _CLOSE, "atol": _LEAST, "equal_nan": True}
    return any(bool(np.isclose(values[exist], one[exist], **close).all()) for one in alike)
