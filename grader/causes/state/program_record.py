"""Makes a record of what a followed program did: numbers to show, facts, and a conclusion."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from grader.causes.outputs import LOG2E
from grader.causes.state.blame import lines_to_blame
from grader.causes.state.comparing import ROLES, Compared
from grader.causes.state.ran import assignments, source_lines, what_ran
from grader.causes.state.roles import Role
from grader.checks.correctness import distinct, ranges_of
from grader.kernel.observers.rounds import Rounds, Variable
from grader.source.submission import Source
from grader.spec.cases import Case
from grader.spec.trace_record import Parting, Program, Shown, SourceLine, TileRound

_CORNER = (2, 4)  # rows and columns of an accumulator that are shown
_MOST_OTHERS = 4  # variables of unknown role that are shown
_WORDS = {
    "maximum": "the largest score of the visible keys so far",
    "sum": "the sum of the weights of the visible keys so far",
    "accumulator": "the sum of weights times V over the visible keys so far",
}


@dataclasses.dataclass(frozen=True)
class Corner:
    """Places in a tile of queries that are shown: two rows of it, and some columns of V.

    `queries` are the numbers of the rows in the sequence, `row` is the one that is wrong.
    """

    rows: tuple[int, ...]
    queries: tuple[int, ...]
    columns: range
    row: int

    @classmethod
    def of(cls, case: Case, rounds: Rounds, compared: Compared, worst: tuple[int, int]) -> Corner:
        """Choose them at the worst element, or where the state diverges if that is elsewhere."""
        exist = np.flatnonzero(rounds.queries >= 0)
        at = np.flatnonzero(rounds.queries == worst[0])
        row, column = int(at[0]) if at.size else int(exist[0]), worst[1]
        if compared.part is not None:
            r, name = compared.part.round, compared.part.roles[0]
            role = compared.role(rounds, r, name)
            assert role is not None
            wrong = np.flatnonzero(~role.agrees[r])
            row = row if row in wrong else int(wrong[0])
            if name == "accumulator":
                with np.errstate(invalid="ignore"):
                    error = np.abs(role.variable.values[r][row] - role.wanted[r][row])
                column = int(np.where(np.isnan(error), np.inf, error).argmax())
        near = exist[np.argsort(np.abs(exist - row), kind="stable")][: _CORNER[0]]
        first = min(column // _CORNER[1] * _CORNER[1], case.head_dim - _CORNER[1])
        rows = tuple(sorted(near.tolist()))
        queries = tuple(int(rounds.queries[r]) % case.seqlen_q for r in rows)
        return cls(rows, queries, range(first, first + _CORNER[1]), row)


def program_of(case: Case, rounds: Rounds, corner: Corner) -> Program:
    """Return which program was followed, and which of its queries are shown."""
    there = rounds.queries[rounds.queries >= 0]
    planes = np.unique(there // case.seqlen_q)
    return Program(
        kernel=rounds.kernel,
        ids=rounds.program,
        batch=int(planes[0]) // case.num_q_heads,
        head=int(planes[0]) % case.num_q_heads,
        queries=ranges_of((there % case.seqlen_q).tolist()),
        shown_queries=corner.queries,
        columns=f"{corner.columns[0]}-{corner.columns[-1]}",
    )


def rounds_of(
    case: Case,
    source: Source,
    rounds: Rounds,
    compared: Compared,
    corner: Corner,
    *,
    wrong: bool,
) -> tuple[TileRound, ...]:
    """Return what a record shows of each round, with facts if the result is wrong."""
    tiles = []
    for r in range(len(rounds)):
        shown: list[Shown] = []
        known: list[Variable] = []
        for name in ROLES:
            role = compared.role(rounds, r, name)
            if role is not None and role.variable.present[r]:
                known.append(role.variable)
                shown += _of_role(name, role, r, compared, corner)
        if len(known) < len(ROLES):
            others = [
                variable
                for variable in (*rounds.vectors, *rounds.matrices)
                if variable.carried and variable not in known and variable.present[r]
            ]
            shown += [s for v in others[:_MOST_OTHERS] for s in _numbers(v, r, corner)]
        keys = compared.oracle.positions[r]
        tiles.append(
            TileRound(
                number=r + 1,
                keys=ranges_of(keys[keys >= 0].tolist()) or "none",
                line=int(rounds.column("line")[r]) or None,
                ran=tuple(what_ran(case, source, rounds, r, [v.name for v in known])),
                ended=bool(rounds.column("ended")[r]),
                shown=tuple(shown),
                facts=tuple(_facts(rounds, compared, r, corner.row)) if wrong else (),
            )
        )
    return tuple(tiles)


def _of_role(name: str, role: Role, r: int, compared: Compared, corner: Corner) -> list[Shown]:
    status = compared.status[r][name]
    wanted = role.wanted[r] if status is not None else None
    shown = _numbers(role.variable, r, corner, wanted)
    if status is not False:
        return [s.model_copy(update={"role": name, "agrees": status}) for s in shown]
    apart = int((~role.agrees[r]).sum())
    by_query = dict(zip(corner.queries, role.agrees[r][list(corner.rows)].tolist(), strict=True))
    marked = []
    for s in shown:  # a matrix is shown by the query: one may agree where another does not
        agrees = by_query.get(s.query, False)
        update = {"role": name, "agrees": agrees, "apart": 0 if agrees else apart}
        marked.append(s.model_copy(update=update))
    return marked


def _numbers(
    variable: Variable,
    r: int,
    corner: Corner,
    wanted: np.ndarray | None = None,
) -> list[Shown]:
    """Return the numbers of the corner: one entry for a vector, one a row for a matrix."""
    values, columns = variable.values[r], slice(corner.columns.start, corner.columns.stop)
    places: list[tuple[int | None, Any]] = [(None, list(corner.rows))]
    if values.ndim > 1:
        rows = zip(corner.queries, corner.rows, strict=True)
        places = [(query, (row, columns)) for query, row in rows]
    return [
        _pair(variable.name, query, values[at], None if wanted is None else wanted[at])
        for query, at in places
    ]


def _pair(name: str, query: int | None, yours: np.ndarray, wanted: np.ndarray | None) -> Shown:
    texts = [f"{value:.6g}" for value in yours.tolist()]
    if wanted is None:
        return Shown(name=name, query=query, yours=tuple(texts))
    pairs = [  # with more than six digits where rounding alone does not make them differ
        distinct(a, b, most=6 if abs(a - b) <= 1e-5 * abs(b) else 9)
        for a, b in zip(yours.tolist(), wanted.tolist(), strict=True)
    ]
    return Shown(
        name=name, query=query, yours=tuple(a for a, _ in pairs), oracle=tuple(b for _, b in pairs)
    )


# -- facts ----------------------------------------------------------------------------------------


def _facts(rounds: Rounds, compared: Compared, r: int, row: int) -> list[str]:
    """Name the wrong pairs of a round, and tiles of other heads or rows.

    The example is of the row that is shown, if it has wrong pairs.
    """
    oracle, facts = compared.oracle, []
    seqlen_k = oracle.never.shape[1]
    if oracle.other_head is not None and r == oracle.other_head:
        facts.append("its keys are of another kv head than these queries need")
    mixed = int(rounds.column("mixed")[r])
    if mixed:  # which of the two is wrong is not known, nor what the mask was made for
        head, start = divmod(mixed - 1, seqlen_k)
        elsewhere = head not in rounds.keys[r] // seqlen_k
        met = "of another kv head" if elsewhere else f"from row {start} on"
        facts.append(f"its weights met V {met}, not V of its own keys")
        return facts
    padding = int(oracle.pairs.padding[r])
    if padding:
        facts.append(f"{padding} pairs of a query and an element past the last key were counted")
    kinds = (
        (oracle.pairs.again[r], "", "counted again, after an earlier tile"),
        (oracle.pairs.extra[r], "hidden ", "counted"),
        (oracle.pairs.lost[r], "visible ", "masked"),
    )
    for pairs, kind, what in kinds:
        if pairs.any():
            here = row if pairs[row].any() else int(pairs.any(axis=1).argmax())
            query, key = int(rounds.queries[here]) % oracle.seqlen_q, int(pairs[here].argmax())
            count = int(pairs.sum())
            pair, were = ("pair", "was") if count == 1 else ("pairs", "were")
            facts.append(
                f"{count} {kind}{pair} of a query and a key {were} {what},"
                f" such as query {query} and key {key}"
            )
    return facts


def parting_of(rounds: Rounds, compared: Compared, source: Source) -> Parting | None:
    """Return where the state diverges from the reference, in words, and the lines behind it."""
    part = compared.part
    if part is None:
        return None
    r, found = part.round, [compared.role(rounds, part.round, name) for name in part.roles]
    names = tuple(role.variable.name for role in found if role is not None)
    what = [f"{name} is not {_WORDS[role]}" for name, role in zip(names, part.roles, strict=True)]
    if part.factor is not None:
        unit = compared.roles[int(rounds.column("segment")[r])].unit or 1.0
        what[0] = f"{names[0]} is {part.factor:.4g} times {_largest(unit)}, in every row"
    if part.roles[0] == "maximum":  # the others are relative to it
        verb = "diverge" if len(names) > 2 else "diverges"
        what[1:] = [f"{' and '.join(names[1:])} {verb} with it"] if names[1:] else []
    lines = _lines(rounds, compared, r, names, source)
    if part.of_tile is not None:
        of = f"the scores of tile {r + 1} have {part.of_tile:.4g} times the factor"
        what[0] = f"{of} of those of tile 1, in every row"
        lines = source_lines(source, [int(rounds.column("line")[r])])  # which makes the scores
    return Parting(
        number=r + 1,
        names=names,
        text="; ".join(what),
        by_factor=part.factor is not None,
        lines=lines,
    )


def _largest(unit: float) -> str:
    """Name the largest score so far in a unit: natural, times log2(e), or not scaled."""
    if unit == 1.0:
        return "the largest scaled score so far"
    if abs(unit / LOG2E - 1.0) < 1e-9:
        return "the largest scaled score so far times log2(e)"
    return "the largest product of q and k so far, not scaled"


def _lines(
    rounds: Rounds, compared: Compared, r: int, names: tuple[str, ...], source: Source
) -> tuple[SourceLine, ...]:
    """Return the lines of the mask where it lets the wrong pairs pass, else those of `names`."""
    pairs, loop = compared.oracle.pairs, int(rounds.column("loop")[r])
    products = [int(rounds.column(name)[r]) for name in ("line", "product_line")]
    mask = int(rounds.column("mask_line")[r])
    if rounds.column("mixed")[r] or compared.oracle.other_head == r:
        return source_lines(source, products)
    if pairs.again[r].any():
        return source_lines(source, [products[0], mask])
    if pairs.any_in(r) and (mask or rounds.kernel):  # in PyTorch a weight of 0 may be no mask
        return source_lines(source, [mask or products[0]])
    assert compared.part is not None
    first = compared.part.roles[0] == "maximum"  # the others are relative to it
    wanted = {name.partition("[")[0] for name in (names[:1] if first else names)}
    found = [
        *lines_to_blame(rounds, compared, r, wanted, source),
        *assignments(source.tree, loop, wanted),
    ]
    if "accumulator" in compared.part.roles and not first:
        found.append(products[1])  # it may be in a function that the loop calls
    return source_lines(source, found or products[1:])
