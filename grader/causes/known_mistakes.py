"""Compares wrong results with the known mistakes of a problem: each that explains one is a
hypothesis, unless it would have made a right case wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping

import torch

import reference
from grader.causes.decide import Hypothesis, Kind, Place
from grader.causes.fitting import Fit, best_fit, moves
from grader.causes.outputs import Outputs
from grader.checks.correctness import Expected
from grader.spec.cases import Case
from grader.spec.causes import entry_of
from grader.spec.inputs import Inputs

# Once a mistake explains all wrong cases, and at least so many, mistakes that do not are put off:
# they are compared only if it fails to explain a later case, or right cases speak against it.
_SURE = 4
# Mistakes that only make all numbers zero, as many do: what the kernels were seen to do says which.
_SAY_LITTLE = {"ZEROS", "ROW-SUM-ZEROS"}

Recompute = Callable[[], tuple[Inputs, Callable[[], Expected]]]


class KnownMistakes:
    """The known mistakes of one entry point of a problem, and how each fits its results."""

    def __init__(self, problem_id: str, mistakes: Iterable[reference.Mistake]) -> None:
        self._problem_id = problem_id
        self._mistakes: dict[str, list[reference.Mistake]] = {}
        for mistake in mistakes:
            self._mistakes.setdefault(mistake.id, []).append(mistake)
        self._fits: dict[str, dict[Place, Fit]] = {id: {} for id in self._mistakes}
        self._shown: dict[str, reference.Mistake] = {}  # the variant, by tile size, that fits
        self._passed: list[tuple[Case, Recompute]] = []
        # For each result that was compared with the leading mistakes alone, a call that compares
        # the others.
        self._put_off: list[Callable[[], None]] = []

    @property
    def is_sure(self) -> bool:
        """Whether one mistake wholly explains all wrong results, of which there are several."""
        return bool(self._leading())

    def add_right(self, case: Case, recompute: Recompute) -> None:
        """Add a right result."""
        self._passed.append((case, recompute))

    def compare(self, place: Place, wrong: Outputs, recompute: Recompute) -> None:
        """Fit the known mistakes to a wrong result: if some lead, these alone for now.

        `recompute` returns the inputs and a function that computes what was expected.
        """
        leading = self._leading()
        self._fit(leading or self._mistakes, place, wrong)
        if leading:
            again = functools.partial(self._fit_again, place, wrong.case, wrong.got, recompute)
            self._put_off.append(again)
        if not self._leading():
            self._catch_up()

    def _leading(self) -> set[str]:
        """Return the mistakes that explain all wrong results, if one of them does so wholly.

        No other mistake can then be named, neither beside it nor in its place.
        """
        full = {id for id in self._shown if min(self._fits[id].values()) > Fit.SILENT}
        sure = (list(self._fits[id].values()) for id in full)
        is_sure = any(len(fits) >= _SURE and min(fits) >= Fit.WHOLE for fits in sure)
        return full if is_sure else set()

    def _catch_up(self) -> None:
        """Fit the mistakes that were put off to the results that they were not compared with."""
        late, self._put_off = self._put_off, []
        for again in late:
            again()

    def _fit_again(
        self, place: Place, case: Case, got: dict[str, torch.Tensor], recompute: Recompute
    ) -> None:
        inputs, expect = recompute()
        self._fit(self._mistakes, place, Outputs(self._problem_id, case, inputs, got, expect()))

    def _fit(self, ids: Iterable[str], place: Place, wrong: Outputs) -> None:
        """Fit mistakes to a result, except those that other results contradict too often."""
        for id in sorted(ids):
            fits = self._fits[id]
            if place in fits or _is_hopeless(fits):
                continue
            fit, variant = best_fit(self._mistakes[id], wrong)
            fits[place] = fit
            if fit > Fit.INFINITE:
                self._shown.setdefault(id, variant)

    def hypotheses(self) -> list[Hypothesis]:
        """Return the mistakes that explain a wrong case and leave every right case right."""
        found = self._not_contradicted_by_right(self._leading())
        if not found:
            self._catch_up()
            explain = [id for id in self._shown if not _is_hopeless(self._fits[id])]
            found = self._not_contradicted_by_right(explain)
        return [self._hypothesis(id) for id in sorted(found)]

    def _hypothesis(self, id: str) -> Hypothesis:
        fits, mistake = self._fits[id], self._shown[id]
        figures = {"tile": mistake.tile or "tile_k", **mistake.figures}
        text = entry_of(id).said(figures, mistake.variant)
        # Infinite numbers fit many mistakes: they count for one that fits another result wholly.
        least = Fit.INFINITE if max(fits.values()) >= Fit.WHOLE else Fit.PARTLY
        shown = frozenset(place for place, fit in fits.items() if fit >= least)
        against = frozenset(place for place, fit in fits.items() if fit is Fit.CONTRADICTED)
        kind = Kind.NUMBERS if id in _SAY_LITTLE else Kind.PREDICTED
        return Hypothesis(id, kind, text, shown, against=against)

    def _not_contradicted_by_right(self, ids: Iterable[str]) -> list[str]:
        """Return the mistakes that leave every right case right."""
        ids = list(ids)
        for case, recompute in self._passed:
            if not ids:
                break
            inputs, expect = recompute()
            expected = functools.cache(expect)
            moved = functools.partial(moves, self._problem_id, case, inputs, expected)
            ids = [id for id in ids if not all(map(moved, self._mistakes[id]))]
        return ids


def _is_hopeless(fits: Mapping[Place, Fit]) -> bool:
    """Whether results contradict a mistake more than once, and once more for two that fit it."""
    whole = sum(fit >= Fit.WHOLE for fit in fits.values())
    return sum(fit is Fit.CONTRADICTED for fit in fits.values()) > 1 + whole / 2
