"""Decides which causes explain the cases that came out wrong: one weighted cover of them.

A hypothesis is a cause with the cases that show it, those that it implies, and those that speak
against it. `decide` takes the one that gains most, then the one that gains most of what is left,
until none gains anything. No name is better than a wrong one.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Iterable

from grader.source.feeding import Spot
from grader.spec.causes import Text

Place = tuple[str, int]  # check and number of the case
PLAIN = "plain"  # the check that every other one departs from in one thing


class Kind(enum.Enum):
    """What a hypothesis rests on."""

    PROVED = enum.auto()  # an experiment, or two programs that store to one element
    PREDICTED = enum.auto()  # a known mistake gives what the submission gave
    SEEN = enum.auto()  # what the machine saw the kernel do in a case
    NUMBERS = enum.auto()  # what a wrong result is made of, by its numbers alone


# What a case is worth that shows a hypothesis. A predicted tensor agrees in thousands of numbers;
# what was seen may be a consequence; a few fitted numbers may agree by chance. A proof goes before
# a known mistake of the same numbers.
_WEIGHT = {Kind.PROVED: 10.0, Kind.PREDICTED: 2.0, Kind.SEEN: 1.0, Kind.NUMBERS: 0.4}
# Share of it that an implied case is worth: a call is traced once in a check, so that its other
# cases were not looked at. Numbers are fitted to few, and must not grow by those that are not.
_IMPLIED = {Kind.PROVED: 0.6, Kind.PREDICTED: 0.0, Kind.SEEN: 0.6, Kind.NUMBERS: 0.0}
# Cases that outweigh one that speaks against it. A case may show a second mistake, so that four
# predicted ones outweigh it and three do not; more than half of the numbers must say the same.
# A call shows one thing at a time: another one seen elsewhere says nothing.
_AGAINST = {Kind.PROVED: 0.0, Kind.PREDICTED: 3.75, Kind.SEEN: 0.0, Kind.NUMBERS: 1.0}
# What a plain case counts: a mistake at the core shows there first, and nothing else is in the way.
_PLAIN = 1.5
# Share of all wrong and failed cases that a hypothesis must explain beyond its cost where plain
# cases are among them and it explains none: it is a consequence, or fits by chance.
_ASIDE = 0.15
# What a second name costs, and what each case costs that shows it and has a name by then: what a
# mistake looks like to others is no second mistake.
_ANOTHER, _SHARED = 1.0, 4.0
# Share of a gain with which another hypothesis of its kind, that explains a case which it does not,
# is a rival: neither is named.
_RIVAL = 0.75


@dataclasses.dataclass(frozen=True, eq=False)
class Hypothesis:
    """A cause, without the problem's prefix, what is said of it, and what speaks for and against.

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
        hypotheses: what may be the cause.
        wrong: the cases with wrong results.
        failed: cases that came to no result, of which a cause explains none.
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
    """Whether two of a kind explain a case alike, and neither explains all that the other does."""
    more = one.shown == best.shown or bool(one.shown - best.shown)
    return one.kind is best.kind and bool(one.shown & best.shown) and more
