"""Compares a program's rounds with the reference: where they diverge, and what is known.

Rows whose result is right are not called wrong: what a kernel holds there follows a convention that
this package does not know.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from grader.causes.state.finding_roles import find_roles
from grader.causes.state.online import Oracle, oracle_of
from grader.causes.state.roles import TOLERANCES, Known, Role, Roles
from grader.kernel.observers.rounds import Rounds
from grader.kernel.observers.trace import PRODUCTS, Trace
from grader.spec.cases import Case
from grader.spec.inputs import Inputs

# In scaled scores: how much too large a maximum does harm. In fp16 weights lose bits from its
# smallest normal number on, 2**-14 = exp(-9.7), in fp32 and bf16 from 2**-126 = exp(-87) on, and
# weights far below the largest much earlier.
_FAR, _FAR_IN_FP16 = 60.0, 10.0
# A factor that so many rows have in common is no chance.
_LEAST_ROWS, _LEAST_SCORE, _NEAR = 4, 1e-3, 1e-2
ROLES = ("maximum", "sum", "accumulator")


@dataclasses.dataclass(frozen=True)
class Part:
    """The first round after which the state is wrong, and the wrong roles, in order.

    `factor` says how many times the maximum is too large, if it is the same in all rows; `in_unit`
    says whether the maximum is right in another unit than it is subtracted in. `of_tile` says
    how many times the factor of the first round's scores that of this round's is, if it differs.
    """

    round: int
    roles: tuple[str, ...]
    factor: float | None
    in_unit: bool = False
    of_tile: float | None = None


@dataclasses.dataclass(frozen=True)
class Compared:
    """How the state after each round compares with the reference.

    `roles` are by loop, in the order of `Rounds.column("segment")`. `status` says by round and role
    whether the state agrees, None where it is not compared. `why_not` says why there may be no
    `part` though the result is wrong; it is empty where all was compared.
    """

    oracle: Oracle
    roles: tuple[Roles, ...]
    status: tuple[dict[str, bool | None], ...]
    part: Part | None
    why_not: str

    def role(self, rounds: Rounds, r: int, name: str) -> Role | None:
        """Return a role of the loop that a round lies in."""
        return getattr(self.roles[int(rounds.column("segment")[r])], name)

    @property
    def agrees_throughout(self) -> bool:
        """Whether each role was compared after each round, and agreed."""
        return all(value is True for status in self.status for value in status.values())


@np.errstate(all="ignore")  # what a wrong kernel holds may be infinite, or no number
def compare(
    problem_id: str,
    case: Case,
    inputs: Inputs,
    rounds: Rounds,
    trace: Trace | None = None,
    *,
    wrong: bool,
    dtype: str,
) -> Compared:
    """Compare rounds with the reference; `part` is None unless the queries' result is `wrong`.

    The `trace` of the call says what other programs counted, `dtype` how precise what is multiplied
    is.
    """
    counted = None if trace is None else trace.arrays["takes"][PRODUCTS.index("out")] > 0
    oracle = oracle_of(problem_id, case, inputs, rounds, counted)
    segments = rounds.column("segment")
    tolerance = TOLERANCES.get(dtype, TOLERANCES[case.dtype])  # replies may hold anything
    roles = tuple(
        find_roles(rounds, oracle, where, tolerance) if len(where) else Roles()
        for where in (np.flatnonzero(segments == s).tolist() for s in range(segments.max() + 1))
    )
    why_not = _why_not(rounds, oracle)
    far = _FAR_IN_FP16 if dtype == "fp16" else _FAR
    status = tuple(
        {
            name: None if why_not else _status(roles[segments[r]], name, r, rounds, far)
            for name in ROLES
        }
        for r in range(len(rounds))
    )
    part = None if why_not or not wrong else _part(rounds, roles, status, far)
    if part is not None and part.roles[0] == "maximum" and part.factor is None:
        part = dataclasses.replace(part, of_tile=_factor_of_tile(rounds, oracle, part.round))
    if part is not None and oracle.other_head is not None and part.round >= oracle.other_head:
        part = None  # keys of another head explain it
    if part is not None and part.roles[0] == "maximum" and not rounds.kernel:
        # Of a mask in PyTorch the judge sees a weight of 0, which too large a maximum gives, too.
        pairs = dataclasses.replace(oracle.pairs, lost=np.zeros_like(oracle.pairs.lost))
        oracle = dataclasses.replace(oracle, pairs=pairs)
    return Compared(oracle, roles, status, part, why_not)


def _why_not(rounds: Rounds, oracle: Oracle) -> str:
    """Say why the state after a round cannot be compared, "" where it can."""
    products = rounds.column("products")
    held = oracle.positions
    for r in np.flatnonzero(products == 0):
        others = [s for s in range(len(rounds)) if s != r]
        if any(np.isin(held[r][held[r] >= 0], held[s]).any() for s in others):
            return "the kernel has several loops over keys, and each makes a part of the state"
    if not products.any():
        return "no product of weights with tiles of V was seen"
    if rounds.column("apart").any():
        return "the kernel multiplies the weights of a tile with V in a later tile's round"
    return ""


def _status(roles: Roles, name: str, r: int, rounds: Rounds, far: float) -> bool | None:
    role: Role | None = getattr(roles, name)
    if role is None or not role.variable.present[r] or not role.comparable:
        return None
    if role.known is Known.SUM and not _harms(roles, r, far):
        return None  # while the sum is right, any number does that is not far too large
    if role.agrees[r].all():
        return True
    return False if rounds.column("ended")[r] else None


def _part(
    rounds: Rounds, roles: Sequence[Roles], status: Sequence[dict[str, bool | None]], far: float
) -> Part | None:
    """Return the first round with a wrong sum or accumulator, or with the maximum that led to it.

    A maximum that is not the largest score does no harm as long as sum and accumulator are
    relative to it; if it is too small, or far too large, it may do harm later.
    """
    segments = rounds.column("segment")
    behind = [r for r, s in enumerate(status) if s["sum"] is False or s["accumulator"] is False]
    if not behind:
        behind = [r for r, s in enumerate(status) if _is_no_number(roles[segments[r]], r, s)]
    if not behind:
        return None
    unseen = [r for r in range(behind[0]) if not rounds.column("ended")[r]]
    if unseen:
        return None
    first = behind[0]
    for r in range(first + 1):
        own = roles[segments[r]]
        if status[r]["maximum"] is False and _harms(own, r, far):
            first = r
            break
    wrong = tuple(name for name in ROLES if status[first][name] is False)
    own = roles[segments[first]]
    if "maximum" in wrong and not _harms(own, first, far):
        wrong = tuple(name for name in wrong if name != "maximum")
    in_unit = own.maximum is not None and own.maximum.known is Known.UNIT
    of_maximum = "maximum" in wrong
    return Part(first, wrong, own.factor if of_maximum else None, of_maximum and in_unit)


def _factor_of_tile(rounds: Rounds, oracle: Oracle, r: int) -> float | None:
    """Return how many times the factor of the first tile's scores that of another tile's is.

    None where it is the same, and where wrong pairs explain the maximum.
    """
    first, here = (_factor(rounds, oracle, n) for n in (0, r))
    differs = abs(here / first - 1.0) > _NEAR and not oracle.pairs.any_in(r)
    return float(here / first) if differs else None


def _factor(rounds: Rounds, oracle: Oracle, r: int) -> np.float64:
    """Return the factor of the largest scores of a round; NaN where it is not the same in all."""
    due = oracle.states[r].of_tile
    rows = oracle.rows & np.isfinite(due) & (np.abs(due) > _LEAST_SCORE)
    ratios = rounds.largest[r][rows] / due[rows]
    middle = np.median(ratios) if rows.sum() >= _LEAST_ROWS else np.float64(np.nan)
    same = 0.0 < abs(middle) < np.inf and np.allclose(ratios, middle, _NEAR, 0.0)
    return middle if same else np.float64(np.nan)


def _is_no_number(roles: Roles, r: int, status: dict[str, bool | None]) -> bool:
    """Whether a wrong maximum is infinite or NaN, and no other role agrees."""
    role = roles.maximum
    if role is None or status["maximum"] is not False or any(status[n] for n in ROLES):
        return False
    wrong = ~role.agrees[r]
    values, wanted = role.variable.values[r][wrong], role.wanted[r][wrong]
    return bool((~np.isfinite(values) & np.isfinite(wanted)).any())


def _harms(roles: Roles, r: int, far: float) -> bool:
    """Whether a wrong maximum is too small, NaN, so `far` too large, or in a wrong unit."""
    role = roles.maximum
    if role is None:
        return False
    if role.known in (Known.FACTOR, Known.UNIT):
        return True
    wrong = ~role.agrees[r]
    values, wanted = role.variable.values[r][wrong], role.wanted[r][wrong]
    is_far = values > wanted + far * (roles.unit or 1.0)
    if role.known is Known.SUM:
        return bool(is_far.any())
    return bool((np.isnan(values) | (values < wanted) | is_far).any())
