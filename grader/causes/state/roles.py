"""What a variable of a kernel is for, and whether it holds what it should after each round.

A kernel may keep its maximum in units of the scores, scaled or times log2(e); it may subtract
another number than the maximum; it may keep the accumulator divided. So a maximum is compared in a
unit, and what is relative to it with the reference's state relative to what the kernel subtracts.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from grader.causes.outputs import LOG2E
from grader.causes.state.online import State
from grader.kernel.observers.rounds import Variable

# fp32 rounds in the 7th digit, and sums add up; 16-bit inputs round the weights in the 4th or 3rd.
TOLERANCES = {"fp32": 2e-4, "fp16": 5e-2, "bf16": 1e-1}
_LEAST = 1e-37  # what is smaller underflows in fp32

Reference = tuple[np.ndarray, ...]  # by round: what is subtracted, in units of the scaled scores


class Known(enum.Enum):
    """How the judge knows what a variable is for."""

    NUMBERS = "its numbers"  # it agreed with the reference in the first round
    FACTOR = "a factor"  # it is the maximum times a factor that no unit has
    UNIT = "its unit"  # it is the maximum in a unit, and is subtracted in another one
    SUM = "a sum that is relative to it"  # a maximum
    NAME = "its name"
    PRODUCTS = "the products in it"  # of weights with V
    REST = "the others, which are known"


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

    def fits_but_for_underflow(self, r: int) -> bool:
        """Whether it is right after a round, or tiny where it should be too small for fp32."""
        tiny = self.wanted[r] < _LEAST
        clear = self.heard[r] & ~tiny
        underflows = np.abs(self.variable.values[r]) <= 10 * _LEAST
        return bool(clear.any() and np.where(tiny, underflows, self.agrees[r])[self.heard[r]].all())


@dataclasses.dataclass(frozen=True)
class Roles:
    """The roles in one loop's rounds; None where no variable, or more than one, may have a role.

    `unit` is what 1 in the scaled scores is in the maximum's units, None where that is not known;
    `factor` says how many times a maximum of `Known.FACTOR` or `Known.UNIT` is too large.
    `reference` is what sum and accumulator are relative to, None where that is not known; `divided`
    says whether the accumulator is divided by the sum; `good` adds up the rounds in which roles
    agreed.
    """

    maximum: Role | None = None
    sum: Role | None = None
    accumulator: Role | None = None
    unit: float | None = None
    factor: float | None = None
    reference: Reference | None = None
    divided: bool = False
    good: int = 0


@dataclasses.dataclass(frozen=True)
class Measure:
    """The states that variables are compared with, for the queries `rows` of a tile.

    `strayed`, (rounds, queries), are queries that should have met no key so far and have met some:
    none of their sums is right. `scale` is softmax_scale.
    """

    states: tuple[State, ...]
    rows: np.ndarray
    strayed: np.ndarray
    scale: float
    tolerance: float

    def units(self) -> list[float]:
        """Units in which right kernels keep the maximum: log2, natural, and not scaled."""
        scale = abs(self.scale)
        return [LOG2E, 1.0, *([1.0 / scale] if scale > 1e-12 else [])]

    def maximum(self, variable: Variable, unit: float, *, held: bool = False) -> Role:
        """Compare a vector with the largest score of the keys that count, or of all `held`."""
        largest = [unit * (state.held if held else state.largest) for state in self.states]
        allowed = [self.tolerance * (unit + np.abs(value)) for value in largest]
        met = [np.isfinite(value) for value in largest]
        return self._role(variable, largest, allowed, met, relative=False)

    def sum(self, variable: Variable, reference: Reference) -> Role:
        """Compare a vector with the sum of the weights relative to `reference`."""
        ones = np.ones(len(self.rows))
        wanted = [_times(s, r, ones) for s, r in zip(self.states, reference, strict=True)]
        # Zeros and subnormals: nothing to divide by is left.
        allowed = [np.where(w < _LEAST, -1.0, self.tolerance * w) for w in wanted]
        shown = [
            _finite(w, _times(s, s.largest, ones)) for w, s in zip(wanted, self.states, strict=True)
        ]
        return self._role(variable, wanted, allowed, self._met(), shown)

    def accumulator(self, variable: Variable, reference: Reference, *, divided: bool) -> Role:
        """Compare a matrix with weights times V, or with that over the sum of the weights."""
        pairs = list(zip(self.states, reference, strict=True))
        if divided:
            pairs = [(state, state.lse) for state, _ in pairs]
        wanted = [_times(s, r, s.out) for s, r in pairs]
        allowed = [
            self.tolerance * _times(s, r, s.magnitude).max(axis=1, keepdims=True) + _LEAST
            for s, r in pairs
        ]
        shown = [
            _finite(w, _times(s, s.largest, s.out)) for w, (s, _) in zip(wanted, pairs, strict=True)
        ]
        return self._role(variable, wanted, allowed, self._met(), shown)

    def _met(self) -> list[np.ndarray]:
        """Return by round which queries have met a key."""
        return [np.isfinite(state.lse) for state in self.states]

    def _role(
        self,
        variable: Variable,
        wanted: Sequence[np.ndarray],
        allowed: Sequence[np.ndarray],
        met: Sequence[np.ndarray],
        shown: Sequence[np.ndarray] | None = None,
        *,
        relative: bool = True,
    ) -> Role:
        """Compare a variable with `wanted`; the role shows `shown` in its place, if given."""
        agrees, heard = [], []
        for r, value in enumerate(wanted):
            got, there = variable.values[r].astype(np.float64), bool(variable.present[r])
            close = np.isfinite(value) & (np.abs(got - value) <= allowed[r])
            bad = np.isnan(got)
            if got.ndim == 2:
                close, bad = close.all(axis=1), bad.any(axis=1)
            bad = bad | self.strayed[r] if relative else bad
            compared = self.rows & met[r] & there
            agrees.append((close | ~compared) & ~(bad & self.rows & there))
            heard.append(compared)
        parts = tuple(shown or wanted), np.array(agrees), np.array(heard)
        return Role(variable, Known.NUMBERS, *parts)


def _finite(values: np.ndarray, instead: np.ndarray) -> np.ndarray:
    """Return values, with those of `instead` where they are not finite."""
    return np.where(np.isfinite(values), values, instead)


def _times(state: State, reference: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return values times the sum of the weights relative to `reference`; 0 without a key."""
    met = np.isfinite(state.lse)
    total = np.exp(np.where(met, state.lse, 0.0) - np.where(met, reference, 0.0))
    total = np.where(met, total, 0.0)
    return values * (total[:, None] if values.ndim == 2 else total)
