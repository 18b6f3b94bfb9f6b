"""Finds the running maximum, sum and accumulator among a kernel's variables, by what they hold.

A kernel may keep its maximum in units of the scores, scaled or times log2(e); it may subtract
another number than the maximum; it may keep the accumulator divided. What counts is that the sum
and the accumulator agree with some such reading. A variable whose numbers fit none from the first
round on is known by its name, or by the products it is made of, and only if one alone is.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from grader.checks.online import Oracle, State
from grader.running.rounds import Rounds, Variable

LN_2 = math.log(2.0)
MAXIMUM_NAMES = {"running_max", "row_max", "rowmax", "m", "m_i", "mi", "m_run", "largest"}
SUM_NAMES = {"running_sum", "row_sum", "rowsum", "l", "l_i", "li", "l_run", "total", "denominator"}
ACCUMULATOR_NAMES = {"acc", "o", "o_i", "acc_o", "accumulator"}
_LEAST_ROWS = 4  # from which on a common factor of a maximum is no chance
_LIKELY = 0.03  # how far from a unit a maximum in it may be: the units are further apart
_LEAST = 1e-30  # what is smaller has underflowed, or is about to
# fp32 rounds in the 7th digit, and sums add up; 16-bit inputs round the weights in the 4th.
TOLERANCES = {"fp32": 2e-4, "fp16": 2e-2, "bf16": 5e-2}

Reference = tuple[np.ndarray, ...]  # by round: what is subtracted, in units of the scaled scores


class Known(enum.Enum):
    """How the judge knows what a variable is for."""

    NUMBERS = "its numbers"  # it agreed with the oracle in the first round
    FACTOR = "a factor"  # it is the maximum times a factor that no unit has
    NAME = "its name"
    PRODUCTS = "the products in it"  # of weights with V


@dataclasses.dataclass(frozen=True)
class Role:
    """A variable and what it is for: `wanted` is what it should hold after each round.

    `agrees`, (rounds, queries), says whether it does. Queries that are not compared agree, and so
    do rounds in which the variable was not there. `heard` are the queries that had met a key.
    A maximum whose unit is not known is not `comparable`.
    """

    variable: Variable
    known: Known
    wanted: tuple[np.ndarray, ...]
    agrees: np.ndarray
    heard: np.ndarray
    comparable: bool = True

    def right_rounds(self, where: Iterable[int]) -> int:
        """Count the rounds from the first on in which it agrees; 0 where no query had a key."""
        there = [r for r in where if self.variable.present[r]]
        good = list(itertools.takewhile(lambda r: bool(self.agrees[r].all()), there))
        return len(good) if self.heard[good].any() else 0


@dataclasses.dataclass(frozen=True)
class Roles:
    """The state of one loop's rounds; None where no variable, or more than one, may be it.

    `unit` is what 1 in the scaled scores is in the maximum's units, None where that is not known;
    `factor` by what a maximum of `Known.FACTOR` is too large.
    """

    maximum: Role | None = None
    sum: Role | None = None
    accumulator: Role | None = None
    unit: float | None = None
    factor: float | None = None


def find_roles(rounds: Rounds, oracle: Oracle, where: Sequence[int], tolerance: float) -> Roles:
    """Return what the variables of the rounds `where`, which lie in one loop, are for."""
    finder = _Finder(rounds, oracle, tuple(where), tolerance)
    roles = finder.maximum()
    maximum = roles.maximum
    vectors = [v for v in rounds.vectors if maximum is None or v is not maximum.variable]
    readings = finder.readings(maximum, roles.unit)
    best: tuple[int, Role | None, Role | None, Reference | None] = (0, None, None, None)
    for reference in readings:
        total = finder.best(finder.as_sum(v, reference) for v in vectors)
        acc = finder.best(
            finder.as_accumulator(v, reference, divided=divided)
            for v in rounds.matrices
            for divided in (False, True)
        )
        good = sum(role.right_rounds(where) for role in (total, acc) if role is not None)
        if good > best[0]:
            best = (good, total, acc, reference)
    _, total, acc, reference = best
    if reference is None and maximum is not None and roles.unit is not None:
        reference = readings[0]
    if reference is not None:
        total = total or finder.sum_by_name(vectors, reference)
        acc = acc or finder.accumulator_by_making(reference)
    return dataclasses.replace(roles, sum=total, accumulator=acc)


@dataclasses.dataclass(frozen=True)
class _Finder:
    rounds: Rounds
    oracle: Oracle
    where: tuple[int, ...]
    tolerance: float

    def best(self, roles: Iterable[Role]) -> Role | None:
        """Return the role that agrees longest, a carried one first.

        What is made anew in each round is the state only if it agrees in all: the sum of a tile is
        the running sum in the first.
        """
        found, most = None, (0, False)
        for role in roles:
            good = role.right_rounds(self.where)
            whole = good == sum(bool(role.variable.present[r]) for r in self.where)
            rank = good, role.variable.carried
            if good and (role.variable.carried or (whole and good > 1)) and rank > most:
                found, most = role, rank
        return found

    # -- the maximum ------------------------------------------------------------------------------

    def maximum(self) -> Roles:
        """Return the maximum, alone, with its unit, and the factor by which it is too large."""
        units = self._units()
        found: tuple[int, Roles] = (0, Roles())
        for unit in units:
            for held in (False, True):
                role = self.best(
                    self._as_maximum(v, unit, held=held) for v in self.rounds.vectors
                )
                good = 2 * role.right_rounds(self.where) - held if role is not None else 0
                if role is not None and good > found[0]:
                    plain = self._as_maximum(role.variable, unit, held=False)
                    found = good, Roles(plain, unit=unit)
        return found[1] if found[0] else self._off_by_a_factor(units) or self._called_maximum()

    def _off_by_a_factor(self, units: list[float]) -> Roles | None:
        """Return a maximum that one factor, the same in all rows, makes wrong."""
        first = self.where[0]
        largest = self.oracle.states[first].largest
        rows = self.oracle.rows & np.isfinite(largest) & (np.abs(largest) > 1e-6)
        for variable in self.rounds.vectors if rows.sum() >= _LEAST_ROWS else ():
            if not variable.carried or not variable.present[first]:
                continue
            ratio = variable.values[first][rows] / largest[rows]
            middle = float(np.median(ratio))
            if middle > 0 and bool((np.abs(ratio / middle - 1.0) < self.tolerance).all()):
                unit = min(units, key=lambda u: abs(math.log(middle / u)))
                role = self._as_maximum(variable, unit, held=False)
                role = dataclasses.replace(role, known=Known.FACTOR)
                return Roles(role, unit=unit, factor=middle / unit)
        return None

    def _called_maximum(self) -> Roles:
        variable = self._only(v for v in self.rounds.vectors if v.name in MAXIMUM_NAMES)
        if variable is None:
            return Roles()
        unit = self._likely_unit(variable)
        role = self._as_maximum(variable, unit or 1.0, held=False)
        role = dataclasses.replace(role, known=Known.NAME, comparable=unit is not None)
        return Roles(role, unit=unit)

    def _likely_unit(self, variable: Variable) -> float | None:
        """Return the unit that a maximum with an error in it has in most rows, if any."""
        first = self.where[0]
        largest = self.oracle.states[first].largest
        rows = self.oracle.rows & np.isfinite(largest) & (np.abs(largest) > 1e-6)
        if rows.sum() < _LEAST_ROWS:
            return None
        middle = float(np.median(variable.values[first][rows] / largest[rows]))
        return next((u for u in self._units() if abs(middle / u - 1.0) < _LIKELY), None)

    def _units(self) -> list[float]:
        """Units in which right kernels keep the maximum: log2, natural, and not scaled."""
        scale = abs(self.oracle.scale)
        return [1.0 / LN_2, 1.0, *([1.0 / scale] if scale > 1e-12 else [])]

    def _as_maximum(self, variable: Variable, unit: float, *, held: bool) -> Role:
        states = self.oracle.states
        largest = [unit * (state.held if held else state.largest) for state in states]
        allowed = [self.tolerance * (unit + np.abs(value)) for value in largest]
        return self._role(variable, largest, allowed, [np.isfinite(x) for x in largest])

    # -- what is relative to it -------------------------------------------------------------------

    def readings(self, maximum: Role | None, unit: float | None) -> list[Reference]:
        """Return what the kernel may subtract from scaled scores: its maximum, in some unit.

        Else the true maximum, or nothing.
        """
        found: list[Reference] = []
        if maximum is not None:
            units = sorted(self._units(), key=lambda u: u != unit)  # its own first
            values = maximum.variable.values.astype(np.float64)
            found = [tuple(values / unit) for unit in units]
        states = self.oracle.states
        found.append(tuple(state.largest for state in states))
        found.append(tuple(np.zeros_like(state.largest) for state in states))
        return found

    def as_sum(self, variable: Variable, reference: Reference) -> Role:
        """Compare a vector with the sum of the weights relative to `reference`."""
        wanted = [_times(s, r, np.ones_like(r)) for s, r in self._after(reference)]
        allowed = [self.tolerance * value + _LEAST for value in wanted]
        return self._role(variable, wanted, allowed, self._met())

    def as_accumulator(self, variable: Variable, reference: Reference, *, divided: bool) -> Role:
        """Compare a matrix with weights times V, or with that over the sum of the weights."""
        pairs = self._after(reference)
        if divided:
            pairs = [(state, state.lse) for state, _ in pairs]
        wanted = [_times(s, r, s.out) for s, r in pairs]
        allowed = [
            self.tolerance * _times(s, r, s.magnitude).max(axis=1, keepdims=True) + _LEAST
            for s, r in pairs
        ]
        return self._role(variable, wanted, allowed, self._met())

    def sum_by_name(self, vectors: Sequence[Variable], reference: Reference) -> Role | None:
        """Return the one carried vector that is called as a sum is."""
        variable = self._only(v for v in vectors if v.name in SUM_NAMES)
        if variable is None:
            return None
        return dataclasses.replace(self.as_sum(variable, reference), known=Known.NAME)

    def accumulator_by_making(self, reference: Reference) -> Role | None:
        """Return the one carried matrix that is made of products with V, or called so."""
        matrices, known = self.rounds.matrices, Known.PRODUCTS
        variable = self._only(v for v in matrices if v.of_products)
        if variable is None:
            known = Known.NAME
            variable = self._only(v for v in matrices if v.name in ACCUMULATOR_NAMES)
        if variable is None:
            return None
        role = self.as_accumulator(variable, reference, divided=False)
        return dataclasses.replace(role, known=known)

    def _only(self, variables: Iterable[Variable]) -> Variable | None:
        found = [v for v in variables if v.carried and v.present[list(self.where)].any()]
        return found[0] if len(found) == 1 else None

    def _after(self, reference: Reference) -> list[tuple[State, np.ndarray]]:
        return list(zip(self.oracle.states, reference, strict=True))

    def _met(self) -> list[np.ndarray]:
        """Return by round which queries have met a key."""
        return [np.isfinite(state.lse) for state in self.oracle.states]

    def _role(
        self,
        variable: Variable,
        wanted: Sequence[np.ndarray],
        allowed: Sequence[np.ndarray],
        met: Sequence[np.ndarray],
    ) -> Role:
        agrees, heard = [], []
        for r, value in enumerate(wanted):
            got = variable.values[r].astype(np.float64)
            with np.errstate(invalid="ignore"):
                close = np.abs(got - value) <= allowed[r]
            nan = np.isnan(got)
            if got.ndim == 2:
                close, nan = close.all(axis=1), nan.any(axis=1)
            rows = self.oracle.rows
            compared = rows & met[r] & bool(variable.present[r])
            agrees.append((close | ~compared) & ~(nan & rows & bool(variable.present[r])))
            heard.append(compared)
        return Role(variable, Known.NUMBERS, tuple(wanted), np.array(agrees), np.array(heard))


def _times(state: State, reference: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return values times the sum of the weights relative to `reference`; 0 without a key."""
    met = np.isfinite(state.lse)
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.exp(np.where(met, state.lse, 0.0) - np.where(met, reference, 0.0))
        total = np.where(met, total, 0.0)
        return values * (total[:, None] if values.ndim == 2 else total)
