"""Names the cause of wrong results: a known mistake that gives what the submission gave
(`grader.causes.known_mistakes`), or what the judge saw the kernel do (`grader.causes.rules`).

A name is given when one mistake explains wrong cases, and hardly any other wrong case contradicts
it; a case may do so because it shows a second mistake. A mistake that would have made a right case
wrong is never named. No name is better than a wrong one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable

import reference
from grader.base.background import Behind
from grader.causes.known_mistakes import KnownMistakes, Place, Recompute, WrongResult
from grader.causes.rules.fits import fittable, fitted
from grader.causes.rules.sighting import Sighting
from grader.spec.cases import Case
from grader.spec.causes import Text, entry_of
from grader.spec.grade_record import Diagnosis
from grader.spec.problem import Problem

_MOST_WAITING = 16  # two for each wrong result that is yet to be looked at, which take memory
# A known mistake that explains less than this share of the wrong cases explains few.
_FEW = 4
# Wrong results that numbers are fitted to, where nothing else says what is wrong.
_MOST_FITTED, _MOST_FITTED_OF_CHECK = 6, 2

# What is told where some cases, of one tile or of few keys, show less of it.
_MORE = {
    "TILE-SHARES": {"OTHER-KEYS", "SINK-SHARES"},
    "EXPONENTIALS-MIXED": {"OTHER-SCALE"},
    "SCALE-OF-SOME-TILES": {"OTHER-SCALE", "EXPONENTIALS-MIXED"},
}


@dataclasses.dataclass(frozen=True)
class Cause:
    """What is wrong, the step and line where it is (if known), and the wrong cases it explains."""

    diagnosis: Diagnosis
    step: int | None
    cases: tuple[Place, ...]
    line: int | None = None


StepAt = Callable[[int, bool], int | None]


class Casebook:
    """Collects the results of one entry point and settles on their causes when all are in.

    With `bridge` that is the first step of the problem, which has known mistakes of its own.
    """

    def __init__(self, problem: Problem, *, bridge: bool = False) -> None:
        self._problem = problem
        self._bridge = problem.bridge if bridge else None
        known = reference.bridge_mistakes_for if bridge else reference.mistakes_for
        self._known = KnownMistakes(problem.id, known(problem.id))
        self._wrong: list[Place] = []
        self._failed: list[Place] = []  # no numbers came out
        self._seen: dict[Place, Sighting] = {}
        self._numbers: dict[Place, Sighting] = {}  # what wrong numbers say alone
        self._behind = Behind(_MOST_WAITING)
        self._to_fit: dict[Place, Callable[[], Sighting | None]] = {}
        self._outs: set[Place] = set()  # of those, where `out` is wrong
        self._options: dict[str, set[Place]] = {}  # wrong cases with an option

    def add_wrong(self, wrong: WrongResult) -> None:
        """Take a wrong result in; it is looked at while others come in."""
        place, case, got = wrong.place, wrong.case, wrong.got
        self._wrong.append(place)
        of_check = sum(check == place[0] for check, _ in self._to_fit)
        few = len(self._to_fit) < _MOST_FITTED and of_check < _MOST_FITTED_OF_CHECK
        if few and fittable(case, got):
            numbers = wrong.inputs, got, wrong.expected
            fit = functools.partial(fitted, self._problem.id, case, *numbers)
            self._to_fit.setdefault(place, fit)
            if "out" in wrong.expected.truth:
                self._outs.add(place)
        for option in ("sink_logits",):
            if getattr(case, option):
                self._options.setdefault(option, set()).add(place)
        self._behind.add(functools.partial(self._known.compare, wrong))

    def add_numbers(self, place: Place, look: Callable[[], Sighting | None]) -> None:
        """Take in what the numbers of a wrong result say alone.

        `look` is called while others come in, unless one known mistake explains all that is wrong.
        """
        self._behind.add(functools.partial(self._look_at_numbers, place, look))

    def _look_at_numbers(self, place: Place, look: Callable[[], Sighting | None]) -> None:
        found = None if self._known.is_sure else look()
        if found is not None:
            self._numbers[place] = found

    def is_sure(self) -> bool:
        """Whether one known mistake explains all wrong results so far, which are waited for."""
        self._behind.finish()
        return self._known.is_sure

    def add_right(self, case: Case, recompute: Recompute) -> None:
        """Take a right result in; `recompute` gives its inputs and what was expected again.

        The latter when it is called: most mistakes make no difference on most cases.
        """
        self._known.add_right(case, recompute)

    def add_failed(self, place: Place) -> None:
        """Take in that no numbers came out of a case: its message says why."""
        self._failed.append(place)

    def add_seen(self, place: Place, sighting: Sighting) -> None:
        """Take in what the judge saw the kernel do in a case that came out wrong."""
        self._seen.setdefault(place, sighting)

    def add_raced(self, place: Place, sighting: Sighting) -> None:
        """Take in what programs were seen to do that race, though the judged numbers are right."""
        self._wrong.append(place)
        self.add_seen(place, sighting)

    def settle(self, step_at: StepAt = lambda line, located: None) -> list[Cause]:
        """Return the causes that are known, each with the cases it explains.

        Known mistakes come first; what was seen explains the cases that are left. `step_at` gives
        the step of the stub in which a mistake lies that shows in a line, or is `located` there.
        """
        self._behind.finish()
        self._seen = self._numbers | self._seen
        self._seen = {place: self._seen[place] for place in self._wrong if place in self._seen}
        known = [c for c in self._of_known_mistakes() if not self._is_told_otherwise(c)]
        causes = [cause for cause in known if not self._is_part_of_more(cause)]
        causes = self._as_seen(causes)
        explained = {place for cause in causes for place in cause.cases}
        told = {self._seen[place].kind for place in explained if place in self._seen}
        left = {p: s for p, s in self._seen.items() if p not in explained and s.kind not in told}
        left = self._without_chance(left, explained)
        plain = [sighting for (check, _), sighting in left.items() if check == "plain"]
        for kind in dict.fromkeys(s.kind for s in plain[:1] or left.values()):
            places = [p for p, s in left.items() if plain or s.kind == kind]
            of_kind = (s for s in left.values() if s.kind == kind)
            shown = min(of_kind, key=lambda s: not s.located)  # the first that knows its step
            if plain:  # every other check departs from the plain case
                places += [p for p in self._wrong if p not in explained and p not in places]
            known = None if shown.located else self._problem.step_of_cause(shown.id)
            step = known or step_at(shown.line, shown.located)
            causes.append(self._cause(shown, places, step))
        causes = self._without_remnants(self._with_fitted(causes), plain=bool(plain))
        return [cause for cause in causes if not self._is_of_a_failure(cause)]

    def _is_of_a_failure(self, cause: Cause) -> bool:
        """Whether the plain case came to no numbers, and few cases show this cause.

        Then what made that one fail is wrong in them too: a head that is counted wrongly lies
        outside of q in most cases, and in the others it is a pair taken twice.
        """
        number = len(self._wrong) + len(self._failed)
        plain_failed = any(check == "plain" for check, _ in self._failed)
        return plain_failed and _FEW * len(cause.cases) < number

    def _with_fitted(self, causes: list[Cause]) -> list[Cause]:
        """Fit numbers to the wrong results where no cause is known, or what was seen explains few.

        Numbers that explain the few cases as well say more: an infinite logit of the wrong sign is
        a NaN in one case, and a wrong denominator in the others.
        """
        if not causes:
            return self._fitted()
        known = {f"{self._problem.id.upper()}-{id}" for id in self._known.ids}
        bare = any(check == "plain" for check, _ in self._wrong)
        if bare or any(c.diagnosis.id in known or not self._is_one_of_few(c) for c in causes):
            return causes
        explained = {place for cause in causes for place in cause.cases}
        found = self._fitted(self._to_fit.keys() - explained)
        covered = {place for cause in found for place in cause.cases}
        return found if covered >= explained else causes

    def _without_remnants(self, causes: list[Cause], *, plain: bool) -> list[Cause]:
        """Leave out known mistakes that fit some cases by chance, where the plain case says more.

        Every other check departs from the plain case. What explains none of its wrong cases, and
        few others, is a consequence of what was seen there, or may be told when that is mended. If
        nothing was seen, numbers are fitted.
        """
        bare = {place for place in self._wrong if place[0] == "plain"}
        few = [c for c in causes if not bare & set(c.cases) and self._is_one_of_few(c)]
        covered = any(bare & set(cause.cases) for cause in causes)
        if not bare or not few or (covered and not plain):
            return causes
        rest = [cause for cause in causes if cause not in few]
        return (rest if covered else self._fitted(bare)) or causes

    def _is_one_of_few(self, cause: Cause) -> bool:
        return _FEW * len(cause.cases) < len(self._wrong)

    def _fitted(self, only: set[Place] | None = None) -> list[Cause]:
        """Return the cause that all wrong results show that numbers could be fitted to.

        More than half must tell it: half if those of the plain case do, as one tile shows little.
        """
        wanted = set(self._to_fit) if only is None else only & self._to_fit.keys()
        if wanted & self._outs:  # wrong gradients of a wrong out are a consequence
            wanted &= self._outs
        told: dict[Place, Sighting] = {}
        plain = {place for place in wanted if place[0] == "plain"}
        for number, place in enumerate([*sorted(plain), *sorted(wanted - plain)]):
            sighting = self._to_fit[place]()
            if sighting is not None:
                told[place] = sighting
            half_will_do = plain and plain <= told.keys()
            if 2 * (number + 1 - len(told)) >= len(wanted) + bool(half_will_do):
                return []
        ids = {sighting.id for sighting in told.values()}
        for more, less in _MORE.items():
            if more in ids and ids <= less | {more}:
                ids = {more}
        if len(ids) != 1:
            return []
        places: Iterable[Place] = told
        if self._bridge or any(check == "plain" for check, _ in told):
            places = self._wrong  # every other check departs from the plain case
        # What a number has in common with a length in one case alone is chance, and makes it long.
        shown = min((s for s in told.values() if s.id in ids), key=lambda s: len(s.text.title))
        step = self._bridge.step if self._bridge else None
        places = {*places, *self._options.get(shown.option, ())}
        return [self._cause(shown, places, step)]

    def _cause(self, shown: Sighting, places: Iterable[Place], step: int | None) -> Cause:
        diagnosis = self._diagnosis(shown.id, shown.text)
        return Cause(diagnosis, step, tuple(sorted(places)), shown.line or None)

    def _diagnosis(self, id: str, text: Text) -> Diagnosis:
        return Diagnosis(id=f"{self._problem.id.upper()}-{id}", **dataclasses.asdict(text))

    def _as_seen(self, causes: list[Cause]) -> list[Cause]:
        """Tell what was seen instead of known mistakes that have the same numbers by it."""
        kept, told = [], {}
        for cause in causes:
            seen = (self._seen[place] for place in cause.cases if place in self._seen)
            shown = next((sighting for sighting in seen if sighting.outright), None)
            if shown is None:
                kept.append(cause)
                continue
            same = {place for place, s in self._seen.items() if s.id == shown.id}
            told.setdefault(shown.id, (shown, set()))[1].update(same, cause.cases)
        step_of = self._problem.step_of_cause
        return [*kept, *(self._cause(s, places, step_of(s.id)) for s, places in told.values())]

    def _without_chance(
        self, left: dict[Place, Sighting], explained: set[Place]
    ) -> dict[Place, Sighting]:
        """Leave out what numbers alone say, where more is known or most other cases do not say it.

        Then they are a consequence: of another cause, or of a case that is like no other.
        """
        traced = {place: sighting for place, sighting in left.items() if sighting.traced}
        if explained or traced:
            return traced
        ids = [sighting.id for sighting in left.values()]
        return {p: s for p, s in left.items() if 2 * ids.count(s.id) > len(self._wrong)}

    def _is_part_of_more(self, cause: Cause) -> bool:
        """Whether what was seen in all cases of a known mistake was seen in others as well.

        Then it is what the cases have in common, and the mistake fits some of them by chance.
        """
        traced = {place: s.id for place, s in self._seen.items() if s.traced}
        seen = {traced[place] for place in cause.cases if place in traced}
        others = {id for place, id in traced.items() if place not in cause.cases}
        return len(seen) == 1 and seen <= others

    def _is_told_otherwise(self, cause: Cause) -> bool:
        """Whether each check of a known mistake has a case that shows another one, as was seen.

        A check departs from the plain case in one thing: a name for some of its cases alone fits
        them by chance, as a last tile of one key that is dropped fits a last key that is hidden.
        """
        checks = {check for check, _ in cause.cases}
        traced = {place for place, s in self._seen.items() if s.traced and place[0] in checks}
        return {check for check, _ in traced - set(cause.cases)} == checks

    def _of_known_mistakes(self) -> list[Cause]:
        causes = []
        for mistake, places in self._known.explaining(set(self._wrong)):
            figures = {"tile": mistake.tile or "tile_k", **mistake.figures}
            text = entry_of(mistake.id).said(figures, mistake.variant)
            step = self._bridge.step if self._bridge else self._problem.step_of_cause(mistake.id)
            causes.append(Cause(self._diagnosis(mistake.id, text), step, tuple(sorted(places))))
        return causes
