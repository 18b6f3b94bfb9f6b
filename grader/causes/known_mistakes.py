"""Compares wrong results with the known mistakes of a problem, and says which of them explain them.

A mistake explains a wrong case if it gives what the submission gave. One that too many wrong cases
contradict, or that would have made a right case wrong, is none.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable

import torch

import reference
from grader.causes.fitting import Fit, Result, best_fit, moves
from grader.checks.correctness import Expected
from grader.spec.cases import Case
from grader.spec.inputs import Inputs

# Wrong cases that are wholly as the mistake has them, for each that is not. Without any exception
# softmax_scale=0 alone took its name from a missing scale, which fits 47 cases of p03. With it the
# 171 wrong kernels of p01, p03 and p04, judged in every check (tests/seeds.py), got no wrong name.
_FITS_PER_CONTRADICTION = 4
# So many wrong cases, all that there are, a mistake explains before others that do not are put off:
# they are compared only if it does not explain a later one too, or right cases speak against it.
_SURE = 4

Place = tuple[str, int]  # check and number of the case
Recompute = Callable[[], tuple[Inputs, Callable[[], Expected]]]


@dataclasses.dataclass(frozen=True)
class WrongResult:
    """A result that came out wrong; `recompute` gives its inputs and what was expected again."""

    place: Place
    case: Case
    inputs: Inputs
    got: dict[str, torch.Tensor]
    expected: Expected
    recompute: Recompute


class KnownMistakes:
    """The known mistakes of one entry point of a problem, and how each fits its results."""

    def __init__(self, problem_id: str, mistakes: Iterable[reference.Mistake]) -> None:
        self._problem_id = problem_id
        self._mistakes: dict[str, list[reference.Mistake]] = {}
        for mistake in mistakes:
            self._mistakes.setdefault(mistake.id, []).append(mistake)
        self._possible = set(self._mistakes)
        self._fits: dict[str, dict[Place, Fit]] = {id: {} for id in self._mistakes}
        self._shown: dict[str, reference.Mistake] = {}  # the variant, by tile size, that fits
        self._passed: list[tuple[Case, Recompute]] = []
        self._put_off: list[tuple[Place, Case, dict[str, torch.Tensor], Recompute]] = []
        self._put_off_from: dict[str, int] = {}  # by mistake, the first of these it was left out of

    @property
    def is_sure(self) -> bool:
        """Whether one explains all that was wrong, wholly, and several results were."""
        return bool(self._leading())

    @property
    def ids(self) -> set[str]:
        """The name of each, without that of the problem."""
        return set(self._mistakes)

    def add_right(self, case: Case, recompute: Recompute) -> None:
        """Take in a result that was right."""
        self._passed.append((case, recompute))

    def compare(self, wrong: WrongResult) -> None:
        """Fit each known mistake that may still explain most; put the others off."""
        leading = self._leading()
        if not leading:
            self._catch_up()
        result = Result.of(wrong.got, wrong.expected)
        for id in sorted(leading or self._possible):
            self._fit(id, wrong.place, wrong.case, wrong.inputs, result)
        if not leading:
            return
        for id in self._possible - leading:
            self._put_off_from.setdefault(id, len(self._put_off))
        self._put_off.append((wrong.place, wrong.case, wrong.got, wrong.recompute))
        if not any(self._fits[id][wrong.place] > Fit.SILENT for id in leading):
            self._catch_up()

    def _leading(self) -> set[str]:
        """Return the mistakes that explain all that was wrong, where one does so wholly.

        No other mistake can be told beside one that explains all, nor instead of it.
        """
        full = {id for id in self._possible if min(self._fits[id].values(), default=0) > Fit.SILENT}
        sure = (list(self._fits[id].values()) for id in full)
        is_sure = any(len(fits) >= _SURE and min(fits) >= Fit.WHOLE for fits in sure)
        return full if is_sure else set()

    def _catch_up(self) -> None:
        """Fit the mistakes that were put off to the results that they were left out of."""
        late, self._put_off = self._put_off, []
        since, self._put_off_from = self._put_off_from, {}
        for number, (place, case, got, recompute) in enumerate(late):
            inputs, expect = recompute()
            result = Result.of(got, expect())
            for id in sorted(self._possible):
                if since.get(id, len(late)) <= number:
                    self._fit(id, place, case, inputs, result)

    def _fit(self, id: str, place: Place, case: Case, inputs: Inputs, result: Result) -> None:
        """Fit a mistake; one that is contradicted too often is no cause any more."""
        fit, variant = best_fit(self._mistakes[id], case, inputs, result)
        self._fits[id][place] = fit
        if fit > Fit.SILENT:
            self._shown.setdefault(id, variant)
        contradicted, whole = self._for_and_against(id)
        if contradicted > 1 + whole / 2:  # two at the beginning may stay alone
            self._possible.discard(id)

    def explaining(self, wrong: set[Place]) -> list[tuple[reference.Mistake, set[Place]]]:
        """Return the mistakes that are told, and which of the `wrong` cases each explains."""
        if self._put_off:
            told = self._told_of(self._candidates(self._leading()))
            if told and told[0][1] == wrong:
                return told
            self._catch_up()
        return self._told_of(self._candidates(self._possible))

    def _told_of(self, candidates: list[str]) -> list[tuple[reference.Mistake, set[Place]]]:
        """Return those that right results leave, and no rival."""
        told = []
        explained: set[Place] = set()
        candidates = self._not_contradicted_by_right(candidates)
        for id in candidates:
            places = {p for p, fit in self._fits[id].items() if fit > Fit.SILENT}
            rivals = [other for other in candidates if self._rivals(other, id, places)]
            if not places - explained or rivals:
                continue
            told.append((self._shown[id], places))
            explained |= places
        return told

    def _for_and_against(self, id: str) -> tuple[int, int]:
        """Return how many cases contradict a mistake, and how many are wholly as it has them."""
        fits = list(self._fits[id].values())
        return fits.count(Fit.CONTRADICTED), sum(fit >= Fit.WHOLE for fit in fits)

    def _candidates(self, possible: set[str]) -> list[str]:
        """Return mistakes that explain cases and are hardly contradicted, the strongest first.

        Some stay possible until here that no further case has spoken for.
        """
        found = []
        for id in possible:
            contradicted, whole = self._for_and_against(id)
            if self._strength(id)[0] and contradicted * _FITS_PER_CONTRADICTION <= whole:
                found.append(id)
        return sorted(found, key=lambda id: (self._strength(id), id), reverse=True)

    def _strength(self, id: str) -> tuple[int, int]:
        fits = [fit for fit in self._fits[id].values() if fit > Fit.SILENT]
        return len(fits), sum(fits)

    def _rivals(self, other: str, id: str, places: set[Place]) -> bool:
        """Whether `other` explains some of the same cases just as well."""
        if other == id:
            return False
        fits, others = self._fits[id], self._fits[other]
        shared = [p for p in places if others.get(p, Fit.CONTRADICTED) > Fit.SILENT]
        if not shared or self._strength(other)[0] < self._strength(id)[0]:
            return False
        return sum(others[p] for p in shared) >= sum(fits[p] for p in shared)

    def _not_contradicted_by_right(self, ids: list[str]) -> list[str]:
        """Return the mistakes with which every case that came out right would have been right."""
        for case, recompute in self._passed:
            if not ids:
                break
            inputs, expect = recompute()
            expected = functools.cache(expect)
            moved = functools.partial(moves, self._problem_id, case, inputs, expected)
            ids = [id for id in ids if not all(map(moved, self._mistakes[id]))]
        return ids
