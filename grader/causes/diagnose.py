"""Names the cause of wrong results: a known mistake that gives what the submission gave
(`grader.causes.known_mistakes`), what the judge saw the kernel do, or what the numbers are made of
(`grader.causes.rules`). `grader.causes.decide` chooses between them.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping

import reference
from grader.base.background import Behind
from grader.causes.decide import PLAIN, Hypothesis, Kind, Place, decide
from grader.causes.known_mistakes import KnownMistakes, Recompute
from grader.causes.outputs import Outputs
from grader.causes.rules.fits import fittable, fitted
from grader.causes.rules.others import exchanged
from grader.causes.rules.placement import raced
from grader.causes.rules.sighting import EITHER_LOOP, Sighting
from grader.checks.outcome import CaseOutcome
from grader.kernel.observers.trace import traceable
from grader.source.feeding import Spot
from grader.source.submission import Source
from grader.spec.cases import Case
from grader.spec.causes import entry_of
from grader.spec.findings import CauseFound
from grader.spec.grade_record import Diagnosis
from grader.spec.problem import Problem

_MOST_WAITING = 16  # comparisons, two for each wrong result: each holds its tensors in memory
# How many wrong results numbers are fitted to, where nothing else says what is wrong.
_MOST_FITTED, _MOST_FITTED_OF_CHECK = 6, 2

# By mistake, others that count as shows of it: its consequences, which some cases show instead, and
# simpler mistakes that look the same in a case of one tile or of few keys.
_INCLUDES = {
    "MASK-BY-TILE-NUMBER": {"MASK-INSIDE-THE-TILE", "VISIBLE-KEYS-MASKED", "OTHER-PAIRS"},
    "MAXIMUM-IN-ANOTHER-UNIT": {"OPERANDS-ROUNDED", "SUM-OUT-OF-RANGE", "WEIGHTS-INFINITE"},
    "TILES-NOT-ALIGNED": {"KEYS-AFTER-THE-QUERY", "KEYS-NEVER-VISITED", "OTHER-PAIRS"},
    "TILE-SHARES": {"OTHER-KEYS", "SINK-SHARES"},
    "EXPONENTIALS-MIXED": {"OTHER-SCALE"},
    "SCALE-OF-SOME-TILES": {"OTHER-SCALE", "EXPONENTIALS-MIXED"},
    # Which of two loops is at fault shows in a case in which one of them alone misses keys.
    "KEYS-NEVER-VISITED": {EITHER_LOOP},
    "VISIBLE-KEYS-MASKED": {EITHER_LOOP},
}
# By what is wrong with a state, consequences in place of which it is named. Where a maximum is too
# large, weights become so small that rounding alone makes them wrong.
_OF_A_STATE = {"maximum": {"OPERANDS-ROUNDED", "OTHER-KEYS"}, "in_no_tile": {"OTHER-KEYS"}}
# Wrong pairs of a query and a key: the name where no rule of a mask explains them, and the others.
_ANY_PAIRS = "OTHER-PAIRS"
_OF_PAIRS = {
    "KEYS-AFTER-THE-QUERY", "KEYS-BEFORE-THE-WINDOW", "KEYS-NEVER-VISITED", "VISIBLE-KEYS-MASKED",
    EITHER_LOOP,
}  # fmt: skip


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
        self._short: set[Place] = set()  # wrong numbers of 16 bits, of which few fits are possible
        self._unwatched: set[Place] = set()  # cases too far apart or too large to be traced
        self._faults: dict[Place, Sighting] = {}  # of these, accesses outside of a tensor
        self._seen: dict[Place, Sighting] = {}  # what the kernels were seen to do
        self._races: dict[Place, Sighting] = {}  # of programs that store to the same elements
        self._symptoms: dict[Place, Sighting] = {}  # seen as well, but any mistake may lead to it
        self._numbers: dict[Place, Sighting] = {}  # what wrong numbers say without a kernel
        self._states: dict[Place, Sighting] = {}  # where the running state first went wrong
        self._products: dict[Place, tuple[str, int]] = {}  # a gradient, and its product's line
        self._behind = Behind(_MOST_WAITING)
        self._to_fit: dict[Place, Callable[[], Sighting | None]] = {}

    def add_wrong(self, place: Place, wrong: Outputs, recompute: Recompute) -> None:
        """Add a wrong result, which is compared with the known mistakes in the background.

        `recompute` returns its inputs and a function that computes what was expected.
        """
        self._wrong.append(place)
        self._note(place, wrong.case)
        if wrong.case.dtype != "fp32":
            self._short.add(place)
        of_check = sum(check == place[0] for check, _ in self._to_fit)
        few = len(self._to_fit) < _MOST_FITTED and of_check < _MOST_FITTED_OF_CHECK
        if few and fittable(wrong):
            self._to_fit.setdefault(place, functools.partial(fitted, wrong))
        self._behind.add(functools.partial(self._known.compare, place, wrong, recompute))

    def add_numbers(self, place: Place, look: Callable[[], Sighting | None]) -> None:
        """Add what the numbers of a wrong result say without a kernel.

        `look` is called in the background, unless one known mistake explains all that is wrong.
        """
        self._behind.add(functools.partial(self._look_at_numbers, place, look))

    def _look_at_numbers(self, place: Place, look: Callable[[], Sighting | None]) -> None:
        found = None if self._known.is_sure else look()
        if found is not None:
            self._numbers[place] = found

    def is_sure(self) -> bool:
        """Whether one known mistake explains all wrong results so far; waits for comparisons."""
        self._behind.finish()
        return self._known.is_sure

    def add_right(self, case: Case, recompute: Recompute) -> None:
        """Add a right result, which refutes mistakes that would have made it wrong.

        `recompute` returns its inputs and a function that computes what was expected: it is not
        called for mistakes that make no difference in this case, which are most.
        """
        self._known.add_right(case, recompute)

    def add_failed(self, place: Place, case: Case) -> None:
        """Add a case out of which no numbers came; its message says why."""
        self._failed.append(place)
        self._note(place, case)

    def _note(self, place: Place, case: Case) -> None:
        """Note whether kernels cannot be watched in a case.

        What nothing explains there counts for the cause that is named, if one is.
        """
        if not traceable(case):
            self._unwatched.add(place)

    def add_fault(self, place: Place, case: Case, sighting: Sighting) -> None:
        """Add an access outside of a tensor, for which no numbers came out of a case.

        It is a cause where no other is named, because other mistakes lead outside, too. Accesses at
        one line are one mistake, though they look different at other sizes.
        """
        self.add_failed(place, case)
        same = (fault for fault in self._faults.values() if fault.line == sighting.line)
        self._faults[place] = next(same, sighting)

    def add_seen(self, place: Place, sighting: Sighting) -> None:
        """Add what the judge saw the kernel do in a case with a wrong result."""
        (self._symptoms if sighting.symptom else self._seen).setdefault(place, sighting)

    def add_state(self, place: Place, sighting: Sighting) -> None:
        """Add where the running state of a followed program first went wrong.

        A cause without a line has this one. It is itself a cause where no other is named.
        """
        self._states[place] = sighting

    def add_product(self, place: Place, name: str, line: int) -> None:
        """Add the line of the product that a wrong gradient is a sum of."""
        self._products[place] = name, line

    def add_undefined(self, place: Place) -> None:
        """Add that only lanes which a load left undefined are wrong: the state is not at fault."""
        self._states.pop(place, None)

    def add_raced(self, place: Place, sighting: Sighting) -> None:
        """Add a race that was seen between programs, though the judged numbers are right."""
        self._wrong.append(place)
        self.add_seen(place, sighting)

    def add_race(self, place: Place, remark: CaseOutcome) -> None:
        """Add a race for what a wrong output is made of; stores say how a sum is overwritten."""
        self.add_seen(place, raced(remark, symptom=True))
        if remark.does != "reads":
            self._races[place] = raced(remark, of_sum=True)

    def settle(self, source: Source | None = None) -> list[CauseFound]:
        """Return the causes that are named, each with the cases it explains.

        The `source` says in which of its steps a mistake lies that shows somewhere.
        """
        self._behind.finish()
        sightings = {
            place: self._seen.get(place) or self._numbers.get(place) for place in self._wrong
        }
        traced = {place: s for place, s in sightings.items() if s and s.kind is not Kind.NUMBERS}
        untraced = {place: s for place, s in sightings.items() if place not in traced}
        numbers = {place: s for place, s in untraced.items() if s or place not in self._short}
        known = map(self._as_race, filter(self._may_be, self._known.hypotheses()))
        found = [*known, *self._hypotheses(traced), *self._hypotheses(numbers)]
        # An offset that overflows is a mistake of its own; others outside may follow from another.
        proved = {place: s for place, s in self._faults.items() if s.kind is Kind.PROVED}
        found += self._hypotheses(proved)
        pair = source.exchanged() if source and not self._bridge else None
        if pair is not None:
            found += self._hypotheses(dict.fromkeys([*self._wrong, *self._faults], exchanged(pair)))
        named, everywhere = decide(found, self._wrong, self._failed), frozenset(self._wrong)
        explained = {place for _, cases in named for place in cases}
        if 2 * len(explained & self._to_fit.keys()) < len(self._to_fit):
            found += self._hypotheses(self._fitted())
            named = decide(found, self._wrong, self._failed)
        follow = (_OF_A_STATE.get(state.variant, set()) for state in self._states.values())
        follows = {found.id for found, _ in named} <= {id for ids in follow for id in ids}
        # A state that goes wrong in a plain case has no cause that shows in other cases alone.
        parts = {place for place in self._states if place[0] == PLAIN}
        aside = parts and not any(place[0] == PLAIN for _, cases in named for place in cases)
        if not named or follows or aside:
            # One program of one case is followed: its mistake is taken to be that of all.
            states = self._hypotheses(self._states)
            states = [dataclasses.replace(s, implied=everywhere - s.shown) for s in states]
            named = decide(states, self._wrong, self._failed)
        if not named:
            last = self._faults or self._symptoms
            named = decide(self._hypotheses(last), last, self._failed)[:1]
        if len(named) == 1:
            ((only, cases),) = named
            named = [(only, cases | self._unwatched)]
        causes = [(found, self._cause(found, cases, source)) for found, cases in named]
        return self._with_others(_joined(causes, source), source)

    def _with_others(self, causes: list[CauseFound], source: Source | None) -> list[CauseFound]:
        """Return causes, each with the symptoms and accesses outside of a tensor that it leads to.

        These are in its line, or what is wrong there is made in the same lines.
        """
        explained = {place for cause in causes for place in cause.cases}
        seen = self._symptoms | self._faults
        spots = {p: s.spot for p, s in seen.items() if p not in explained}
        near = {p: source.nearest(spot) if source else set() for p, spot in spots.items()}
        found = []
        for cause in causes:
            lines = {cause.line, *cause.fed_by}
            same = {place for place, spot in spots.items() if lines & {spot.line, *near[place]}}
            spots = {place: spot for place, spot in spots.items() if place not in same}
            cases = tuple(sorted({*cause.cases, *same}))
            found.append(cause.model_copy(update={"cases": cases}))
        return found

    def _may_be(self, known: Hypothesis) -> bool:
        """Whether nothing that was seen refutes a known mistake, whatever its numbers.

        In a state that forgets all tiles but one, the others were visited.
        """
        seen = {self._seen[place].family for place in known.shown & self._seen.keys()}
        return "KEYS-NEVER-VISITED" not in seen or entry_of(known.id).file != "softmax"

    def _as_race(self, known: Hypothesis) -> Hypothesis:
        """Return an overwritten sum as one that programs overwrite, where they were seen to."""
        races = [self._races[place] for place in sorted(known.shown & self._races.keys())]
        if not races or not known.id.endswith("OVERWRITTEN"):
            return known
        return dataclasses.replace(known, id=races[0].id, text=races[0].text, spot=races[0].spot)

    def _hypotheses(self, sightings: Mapping[Place, Sighting | None]) -> list[Hypothesis]:
        """Return one hypothesis a mistake; None stands for a case in which nothing was seen."""
        families = collections.Counter(s.family for s in sightings.values() if s)
        includes = {family: _INCLUDES.get(family, set()) for family in families}
        # Cases may show different wrong pairs: the name is that which most of them show.
        of_pairs = [family for family in families if family in _OF_PAIRS]
        if of_pairs and _ANY_PAIRS in families:
            sizes = {f: sum(families[one] for one in {f, *includes[f]}) for f in of_pairs}
            best = max(sizes, key=sizes.__getitem__)
            if sizes[best] >= families[_ANY_PAIRS]:
                includes[best] = includes[best] | {_ANY_PAIRS}
            else:
                includes[_ANY_PAIRS] = includes[_ANY_PAIRS] | {*of_pairs}
        included = {other for others in includes.values() for other in others}
        return [
            self._hypothesis(family, {family, *includes[family]}, sightings)
            for family in families
            if family not in included
        ]

    def _hypothesis(
        self, family: str, alike: set[str], sightings: Mapping[Place, Sighting | None]
    ) -> Hypothesis:
        own = [s for s in sightings.values() if s and s.family == family]
        alone = own[0].kind is Kind.NUMBERS
        # Prefer a sighting that is located. Of numbers, prefer the shortest title: a longer one
        # names a length that the number equals in one case by chance.
        best = min(own, key=lambda s: (not s.located, alone and len(s.text.title)))
        shown = frozenset(place for place, s in sightings.items() if s and s.family in alike)
        checks = {check for check, _ in shown}
        implied = frozenset(
            place
            for place in self._wrong
            if PLAIN in checks or place[0] in checks or (alone and place not in sightings)
        )
        against = frozenset(sightings) - shown
        others = implied - shown
        return Hypothesis(best.id, best.kind, best.text, shown, others, against, best.spot)

    def _fitted(self) -> dict[Place, Sighting | None]:
        """Fit numbers to wrong results, those of the plain case first, until most are in vain."""
        sightings: dict[Place, Sighting | None] = {}
        for place in sorted(self._to_fit, key=lambda place: (place[0] != PLAIN, place)):
            if 2 * list(sightings.values()).count(None) > len(self._to_fit):
                break
            sightings[place] = self._to_fit[place]()
        return sightings

    def _cause(
        self, found: Hypothesis, cases: frozenset[Place], source: Source | None
    ) -> CauseFound:
        id = f"{self._problem.id.upper()}-{found.id}"
        diagnosis = Diagnosis(id=id, **dataclasses.asdict(found.text))
        step = None if found.spot.located else self._problem.step_of_cause(found.id)
        if self._bridge:
            step = self._bridge.step
        elif step and source and found.kind is Kind.SEEN and found.spot.line:
            # What is seen at a line has nothing to do with a step that feeds nothing into it.
            step = step if source.reaches(found.spot, step) else None
        cause = CauseFound(diagnosis=diagnosis, step=step, cases=tuple(sorted(cases)))
        spots = [s.spot for s in self._lines_of(found)]
        # The line where the state goes wrong says more than a line that only shows the mistake,
        # such as a division by what the state came to.
        of_state = any(found.spot == state.spot for state in self._states.values())
        first = found.spot.located or found.spot.part not in ("", "divisor") or of_state
        spots.insert(0 if first else len(spots), found.spot)
        if source and found.spot.part in ("pointer", "option") and not found.spot.line:
            other = Spot(source.replacing(found.spot), located=True)
            spots = [*spots, other] if found.spot.part == "pointer" else [other]
        for spot in filter(lambda spot: spot.line, spots if source else ()):
            of = None if not source.has_steps else step
            fed_by = tuple(n for n in source.fed_by(spot) if of in (None, source.step_making(n)))
            if step is not None and not fed_by and source.step_at(spot.line) not in (None, step):
                continue
            # A mistake in given code that was changed may show at any line.
            sure = spot is found.spot or source.keeps_given
            step = step or (source.step_behind(spot) if sure else None)
            return cause.model_copy(update={"step": step, "line": spot.line, "fed_by": fed_by})
        return cause.model_copy(update={"line": self._line_of_product(found, source)})

    def _line_of_product(self, found: Hypothesis, source: Source | None) -> int | None:
        """Return the line of the product that a cause says has wrong factors, if it is known.

        None in the stub's own code, where the step says where to look.
        """
        made = [self._products[place] for place in sorted(found.shown) if place in self._products]
        own = bool(made) and source is not None and not source.keeps_given
        if not own or entry_of(found.id).part != "product":
            return None
        return next((line for name, line in made if name in found.text.title and line), None)

    def _lines_of(self, found: Hypothesis) -> list[Sighting]:
        """Return sightings of its cases that have a line: located ones first, then states.

        They give a line to a cause that is known by its numbers alone.
        """
        shown = sorted(found.shown)
        seen = [self._seen[place] for place in shown if place in self._seen]
        # One program of one case is followed, and stands for all cases that are explained.
        states = [state for place, state in self._states.items() if place in found.cases]
        located = [sighting for sighting in seen if sighting.located]
        return [sighting for sighting in (*located, *states, *seen) if sighting.line]


def _joined(causes: list[tuple[Hypothesis, CauseFound]], source: Source | None) -> list[CauseFound]:
    """Return causes, of which those that the same lines lead to are one, the first.

    A wrong offset leads to another head in one layout, and out of the tensor in another.
    """
    found: list[tuple[set[int], CauseFound]] = []
    for hypothesis, cause in causes:
        near = {*cause.fed_by}
        if source and hypothesis.spot.line:
            near &= source.nearest(hypothesis.spot)
        joins = near if hypothesis.kind is Kind.SEEN else set()
        number = next((n for n, (lines, _) in enumerate(found) if joins & lines), None)
        if number is None:
            found.append((near, cause))
        else:
            lines, first = found[number]
            cases = tuple(sorted({*first.cases, *cause.cases}))
            found[number] = lines, first.model_copy(update={"cases": cases})
    return [cause for _, cause in found]


def named_alike(
    of_bridge: list[CauseFound], named: list[CauseFound], source: Source
) -> list[CauseFound]:
    """Give a mistake of the bridge that the kernels make, too, the name that it has there.

    Its step is not where it lies if code that both use was changed.
    """
    known = {_mistake(cause): cause.diagnosis for cause in named}
    step = {} if source.keeps_given else {"step": None}
    return [
        cause.model_copy(update={"diagnosis": known[_mistake(cause)], **step})
        if _mistake(cause) in known
        else cause
        for cause in of_bridge
    ]


def _mistake(cause: CauseFound) -> str:
    """Return the id of a cause, without saying that it is one of a backward pass."""
    return cause.diagnosis.id.replace("-BACKWARD-", "-")
