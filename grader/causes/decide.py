"""Chooses the causes that explain the wrong cases: a weighted cover of these cases.

A hypothesis is a possible cause with the cases that show it, those that it implies, and those that
speak against it. `decide` names the hypothesis with the largest gain, then the one with the largest
gain from the remaining cases, until none has any. Naming no cause is better than a wrong one.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Iterable

from grader.source.feeding import Spot
from grader.spec.causes import Text

Place = tuple[str, int]  # check and number of the case
PLAIN = "plain"  # the basic check, from which each other one differs in one respect


class Kind(enum.Enum):
    """What a hypothesis rests on."""

    PROVED = enum.auto()  # an experiment, or two programs that store to one element
    PREDICTED = enum.auto()  # a known mistake gives what the submission gave
    SEEN = enum.auto()  # what the machine saw the kernel do in a case
    NUMBERS = enum.auto()  # what a wrong result is made of, by its numbers alone


# Gain from a case that shows a hypothesis. A predicted tensor agrees in thousands of numbers; what
# was seen may be a mere consequence; a few fitted numbers may agree by chance. A proof outweighs a
# known mistake that predicts the same numbers.
_WEIGHT = {Kind.PROVED: 10.0, Kind.PREDICTED: 2.0, Kind.SEEN: 1.0, Kind.NUMBERS: 0.4}
# Share of this gain from a case that is only implied: one call of a check is traced, and the other
# cases are not observed. Numbers are fitted to few cases, and gain nothing from the others.
_IMPLIED = {Kind.PROVED: 0.6, Kind.PREDICTED: 0.0, Kind.SEEN: 0.6, Kind.NUMBERS: 0.0}
# Number of cases for a hypothesis that one case against it cancels. That case may have a second
# mistake: four predicted cases outweigh it and three do not. Of fitted cases a majority must agree.
# A call shows one mistake at a time, so that another one seen elsewhere is no case against it.
_AGAINST = {Kind.PROVED: 0.0, Kind.PREDICTED: 3.75, Kind.SEEN: 0.0, Kind.NUMBERS: 1.0}
# Weight of a plain case: a mistake at the core shows there first, with nothing else in the way.
_PLAIN = 1.5
# Penalty, as a share of all wrong and failed cases, of a hypothesis that explains no plain case
# while plain cases are unexplained: it is a consequence, or fits by chance.
_ASIDE = 0.15
# Cost of a second name, and of each case that shows it but is explained already: one mistake may
# look like another, and is no second one.
_ANOTHER, _SHARED = 1.0, 4.0
# Share of the best gain from which on a hypothesis may be a rival of the best (`_are_rivals`), so
# that neither is named.
_RIVAL = 0.75


@dataclasses.dataclass(frozen=True, eq=False)
class Hypothesis:
    """A possible cause: its id without the problem's prefix, its text, cases for and against it.

    `spot` is where it shows.
    """

    id: str
    kind: Kind
    text: Text
    shown: frozenset[Place]
    implied: frozenset[Place] = frozenset()
    against: frozenset[Place] = frozenset()
    spot: Spot = Spot()

    @property
    def cases(self) -> frozenset[Place]:
        """All cases that it explains."""
        return self.shown | self.implied


def decide(
    hypotheses: Iterable[Hypothesis], wrong: Collection[Place], failed: Collection[Place]
) -> list[tuple[Hypothesis, frozenset[Place]]]:
    """Return the hypotheses that are named, each with the wrong cases that it explains.

    Args:
        hypotheses: the possible causes.
        wrong: the cases with wrong results.
        failed: cases without a result, which hypotheses need not explain.
    """
    left = list(hypotheses)
    everything = {*wrong, *failed}
    named: list[tuple[Hypothesis, frozenset[Place]]] = []
    covered: frozenset[Place] = frozenset()
    while left:
        gains = {h: _gain(h, covered, everything) for h in left}
        best = max(left, key=lambda h: (gains[h], h.id))
        if gains[best] <= 0.0:
            break
        left = [h for h in left if h.id != best.id]
        rivals = [h for h in left if gains[h] >= _RIVAL * gains[best] and _are_rivals(h, best)]
        if rivals:
            left = [h for h in left if h not in rivals]
            continue
        named.append((best, best.cases - covered))
        covered |= best.cases
    return named


def _gain(h: Hypothesis, covered: frozenset[Place], everything: Collection[Place]) -> float:
    cases = _size(h.shown - covered) + _IMPLIED[h.kind] * _size(h.implied - covered)
    cases -= _AGAINST[h.kind] * _size(h.against)
    left = everything - covered
    if _size(left) > len(left) and _size(h.cases) == len(h.cases):
        cases -= _ASIDE * len(everything)
    return _WEIGHT[h.kind] * cases - bool(covered) * _ANOTHER - _SHARED * len(h.shown & covered)


def _size(places: Collection[Place]) -> float:
    return sum(_PLAIN if check == PLAIN else 1.0 for check, _ in places)


def _are_rivals(one: Hypothesis, best: Hypothesis) -> bool:
    """Whether two of a kind show a case in common, and `one` not merely fewer than `best`."""
    more = one.shown == best.shown or bool(one.shown - best.shown)
    return one.kind is best.kind and bool(one.shown & best.shown) and more
