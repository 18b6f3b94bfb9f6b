"""Finds the running maximum, sum and accumulator among a kernel's variables, by what they hold.

The pairs that the kernel took, right or wrong, identify a variable; the pairs that are due say
whether it is right. A variable that fits nothing from the first round on is identified by its name,
by the products in it, or because no other is left, and only if it is the only such variable.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from grader.causes.outputs import LOG2E
from grader.causes.state.online import Oracle
from grader.causes.state.roles import Known, Measure, Reference, Role, Roles
from grader.kernel.observers.rounds import Rounds, Variable

MAXIMUM_NAMES = {"running_max", "row_max", "rowmax", "m", "m_i", "mi", "m_run", "largest"}
SUM_NAMES = {"running_sum", "row_sum", "rowsum", "l", "l_i", "li", "l_run", "total", "denominator"}
ACCUMULATOR_NAMES = {"acc", "o", "o_i", "acc_o", "accumulator"}
_LEAST_ROWS = 4  # from which on a common factor of a maximum is no chance
_SCALED = (LOG2E, 1.0)  # units of a maximum of scaled scores
_LIKELY = 0.03  # how far from a unit a maximum in it may be: the units are further apart


def find_roles(rounds: Rounds, oracle: Oracle, where: Sequence[int], tolerance: float) -> Roles:
    """Return the roles of variables in the rounds `where`, which lie in one loop."""
    met = [np.array([np.isfinite(s.lse) for s in of]) for of in (oracle.own, oracle.states)]
    strayed = met[0] & ~met[1]
    true = Measure(oracle.states, oracle.rows, strayed, oracle.scale, tolerance)
    own = dataclasses.replace(
        true, states=oracle.own, rows=oracle.rows & ~oracle.unknown, strayed=np.zeros_like(strayed)
    )
    measures = (own, true) if own.rows.any() else (true,)
    finders = [_Finder(rounds, tuple(where), measure) for measure in measures]
    found = max((finder.find() for finder in finders), key=lambda f: f.good)
    return _compared(found, true)


def _compared(roles: Roles, measure: Measure) -> Roles:
    """Return the same roles, compared with the states of `measure`."""
    reference = roles.reference
    maximum, total, acc = roles.maximum, roles.sum, roles.accumulator
    if maximum is not None:
        role = measure.maximum(maximum.variable, roles.unit or 1.0)
        maximum = dataclasses.replace(role, known=maximum.known, comparable=maximum.comparable)
    if total is not None and reference is not None:
        role = measure.sum(total.variable, reference)
        total = dataclasses.replace(role, known=total.known)
    if acc is not None and reference is not None:
        role = measure.accumulator(acc.variable, reference, divided=roles.divided)
        acc = dataclasses.replace(role, known=acc.known)
    return dataclasses.replace(roles, maximum=maximum, sum=total, accumulator=acc)


@dataclasses.dataclass(frozen=True)
class _Finder:
    rounds: Rounds
    where: tuple[int, ...]
    measure: Measure

    def find(self) -> Roles:
        """Return all roles that can be identified."""
        roles = self._maximum()
        if roles.unit is None:
            roles = self._subtracted() or roles
        maximum = roles.maximum
        vectors = [v for v in self.rounds.vectors if maximum is None or v is not maximum.variable]
        readings = self._readings(maximum, roles.unit)
        best = roles
        for reference in readings:
            total = self._best(self.measure.sum(v, reference) for v in vectors)
            for divided in (False, True):
                acc = self._best(
                    self.measure.accumulator(v, reference, divided=divided)
                    for v in self.rounds.matrices
                )
                good = sum(r.right_rounds(self.where) for r in (total, acc) if r is not None)
                if good > best.good:
                    found = dataclasses.replace(roles, sum=total, accumulator=acc, good=good)
                    best = dataclasses.replace(found, reference=reference, divided=divided)
        if best.sum is None and (other := self._in_another_unit(best, vectors)):
            best = other
        elif best.sum is None and best.factor is None and best.unit not in (None, *_SCALED):
            # The scores may not be scaled at all by mistake: then the unit itself is wrong.
            maximum = dataclasses.replace(maximum, comparable=False)
            best = dataclasses.replace(best, maximum=maximum)
        maximum, reference = best.maximum, best.reference
        if reference is None and maximum is not None and best.unit is not None:
            # Nothing can be relative to a maximum in no unit: use the true maximum.
            reference = readings[-2] if best.factor is not None else readings[0]
        total, acc = best.sum, best.accumulator
        if reference is not None:
            total = total or self._called_sum(vectors, reference)
            acc = acc or self._made_of_products(reference)
        good = best.good + (maximum.right_rounds(self.where) if maximum is not None else 0)
        return dataclasses.replace(best, sum=total, accumulator=acc, reference=reference, good=good)

    def _in_another_unit(self, roles: Roles, vectors: Sequence[Variable]) -> Roles | None:
        """Return the roles if the kernel subtracts its maximum in another unit than it is in.

        Weights that underflow for that reason are as good evidence as those that do not.
        """
        unit, first, maximum = roles.unit, self.where[0], roles.maximum
        if unit is None or maximum is None or roles.factor is not None:
            return None
        values = maximum.variable.values.astype(np.float64)
        for other in self.measure.units():
            relative = tuple(values / other)
            sums = (self.measure.sum(v, relative) for v in vectors if v.carried)
            if other != unit and any(role.fits_but_for_underflow(first) for role in sums):
                role = self.measure.maximum(maximum.variable, other)
                role = dataclasses.replace(role, known=Known.UNIT)
                return Roles(role, unit=other, factor=unit / other)
        return None

    def _best(self, roles: Iterable[Role]) -> Role | None:
        """Return the role that agrees for most rounds; of equals, one with a carried variable.

        A variable that is made anew in each round must agree in all rounds: in the first one, the
        sum of a tile is the running sum as well.
        """
        found, most = None, (0, False)
        for role in roles:
            good, carried = role.right_rounds(self.where), role.variable.carried
            whole = good == sum(bool(role.variable.present[r]) for r in self.where)
            if good and (carried or (whole and good > 1)) and (good, carried) > most:
                found, most = role, (good, carried)
        return found

    def _maximum(self) -> Roles:
        """Return the maximum, alone, with its unit, and the factor by which it is too large."""
        best, most = Roles(), 0
        for unit in self.measure.units():
            for held in (False, True):
                compared = (self.measure.maximum(v, unit, held=held) for v in self.rounds.vectors)
                role = self._best(compared)
                good = 2 * role.right_rounds(self.where) - held if role is not None else 0
                if role is not None and good > most:
                    best, most = Roles(role, unit=unit), good
        return best if most else self._off_by_a_factor() or self._called_maximum()

    def _ratios(self, variable: Variable) -> np.ndarray:
        """Return a vector over the largest scaled scores; nothing if rows are too few."""
        first = self.where[0]
        largest = self.measure.states[first].largest
        rows = self.measure.rows & np.isfinite(largest) & (np.abs(largest) > 1e-6)
        if rows.sum() < _LEAST_ROWS or not variable.present[first]:
            return np.array([])
        return variable.values[first][rows] / largest[rows]

    def _off_by_a_factor(self) -> Roles | None:
        """Return a maximum that one factor, the same in all rows, makes wrong."""
        for variable in self.rounds.vectors:
            ratios = self._ratios(variable) if variable.carried else np.array([])
            middle = float(np.median(ratios)) if ratios.size else 0.0
            near = np.abs(ratios - middle) < self.measure.tolerance * middle
            if 0 < middle < math.inf and near.all():
                unit = min(self.measure.units(), key=lambda u: abs(math.log(middle / u)))
                role = self.measure.maximum(variable, unit)
                role = dataclasses.replace(role, known=Known.FACTOR)
                return Roles(role, unit=unit, factor=middle / unit)
        return None

    def _subtracted(self) -> Roles | None:
        """Return as the maximum what a sum is relative to, in the unit that makes it so."""
        carried = [v for v in self.rounds.vectors if v.carried]
        for variable, unit in itertools.product(carried, self.measure.units()):
            relative = tuple(variable.values.astype(np.float64) / unit)
            sums = (self.measure.sum(v, relative) for v in carried if v is not variable)
            if any(role.right_rounds(self.where) for role in sums):
                role = self.measure.maximum(variable, unit)
                return Roles(dataclasses.replace(role, known=Known.SUM), unit=unit)
        return None

    def _called_maximum(self) -> Roles:
        variable = self._only(v for v in self.rounds.vectors if v.name in MAXIMUM_NAMES)
        if variable is None:
            return Roles()
        ratios = self._ratios(variable)
        middle = float(np.median(ratios)) if ratios.size else 0.0
        units = (u for u in self.measure.units() if abs(middle / u - 1.0) < _LIKELY)
        unit = next(units, None)
        role = self.measure.maximum(variable, unit or 1.0)
        first = variable.values[self.where[0]][role.heard[self.where[0]]]
        comparable = unit is not None or not np.isfinite(first).all()  # wrong in any unit
        return Roles(dataclasses.replace(role, known=Known.NAME, comparable=comparable), unit=unit)

    def _readings(self, maximum: Role | None, unit: float | None) -> list[Reference]:
        """Return what may be subtracted from scaled scores: in each unit the kernel's maximum.

        Then the true maximum, and nothing.
        """
        found: list[Reference] = []
        if maximum is not None:
            units = sorted(self.measure.units(), key=lambda u: u != unit)  # its own first
            values = maximum.variable.values.astype(np.float64)
            found = [tuple(values / unit) for unit in units]
        states = self.measure.states
        found.append(tuple(state.largest for state in states))
        found.append(tuple(np.zeros_like(state.largest) for state in states))
        return found

    def _called_sum(self, vectors: Sequence[Variable], reference: Reference) -> Role | None:
        known, vectors = Known.NAME, [v for v in vectors if not self._is_lse(v)]
        variable = self._only(v for v in vectors if v.name in SUM_NAMES)
        if variable is None:
            known = Known.REST
            variable = self._only(vectors) if len(vectors) < len(self.rounds.vectors) else None
        if variable is None:
            return None
        return dataclasses.replace(self.measure.sum(variable, reference), known=known)

    def _is_lse(self, variable: Variable) -> bool:
        """Whether a vector is the log-sum-exp of the keys so far: maximum and sum in one."""
        first = self.where[0]
        lse, rows = self.measure.states[first].lse, self.measure.rows
        rows = rows & np.isfinite(lse)
        got = variable.values[first].astype(np.float64)[rows]
        near = (np.abs(got - unit * lse[rows]) for unit in _SCALED)
        return bool(rows.any()) and any((off < self.measure.tolerance).all() for off in near)

    def _made_of_products(self, reference: Reference) -> Role | None:
        """Return the accumulator: by products with V, by its name, or as the only matrix."""
        matrices, known = self.rounds.matrices, Known.PRODUCTS
        variable = self._only(v for v in matrices if v.of_products)
        if variable is None:
            known = Known.NAME
            variable = self._only(v for v in matrices if v.name in ACCUMULATOR_NAMES)
        if variable is None:
            known = Known.REST
            variable = self._only(matrices)
        if variable is None:
            return None
        role = self.measure.accumulator(variable, reference, divided=False)
        return dataclasses.replace(role, known=known)

    def _only(self, variables: Iterable[Variable]) -> Variable | None:
        """Return the one variable that is carried from round to round; None where several are."""
        found = [v for v in variables if v.carried and v.present[list(self.where)].any()]
        return found[0] if len(found) == 1 else None
