"""Calls a case with wrong numbers once more, and watches its kernels."""

from __future__ import annotations

import dataclasses

from grader.causes.decide import Place
from grader.causes.diagnose import Casebook
from grader.causes.rules.fitted_sums import as_read
from grader.causes.rules.look import astray, look
from grader.causes.rules.numbers import Rounding, by_zero, first_nan, in_no_tile, of_state, rounded
from grader.causes.rules.others import limited, overflow
from grader.causes.rules.placement import misplaced, raced
from grader.causes.rules.pointers import outside
from grader.causes.rules.sighting import Result, Sighting
from grader.causes.state.program import Called, ProgramReport, of_unknown, trimmed
from grader.checks.correctness import find_differences
from grader.checks.counted_pairs import counted_pairs, tile_map
from grader.checks.outcome import CaseOutcome, of_call, of_remark
from grader.isolate.evidence import CallEvidence
from grader.isolate.session import Session
from grader.judge.roundings import rounding
from grader.kernel.machine.outside import Outside
from grader.kernel.observers.trace import PRODUCTS, Trace, traceable
from grader.spec.grade_record import TileMap
from grader.spec.protocol import Reply, Status
from grader.spec.trace_record import TRACED, TraceRecord

# Calls of a problem that are made again to see what the kernels do: one of each check that fails.
_MOST_LOOKS = 8


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a student is shown of a call: the tiles that were visited, and one program's state.

    `rounding` is the one that alone makes the result wrong, `nan` the line of the first NaN and
    what makes it; `fault` is an error of the judge's own in that call, "" if there was none.
    """

    tiles: TileMap | None = None
    trace: TraceRecord | None = None
    rounding: Rounding | None = None
    nan: tuple[int, str] = (0, "")
    fault: str = ""


class Looks:
    """Makes calls of a problem once more and watches them; adds what is seen to `casebook`."""

    def __init__(self, casebook: Casebook) -> None:
        self._casebook = casebook
        self._looked: dict[str, bool] = {}  # by wrong check: whether it was traced
        self._races: dict[str, Sighting | None] = {}  # by headline: what the programs do
        self._faults: dict[int, Sighting | None] = {}  # by line: why an access is outside
        self._followed = False  # whether one program of a kernel was followed, tile by tile

    def again(self, session: Session, called: Called, result: Result) -> Seen:
        """Call the first wrong case of a check once more; `result` says what is wrong with it.

        Not if one known mistake explains all that is wrong: earlier calls show what it does.
        """
        case, check = called.case, called.check
        remark = of_remark(called.evidence, result.wrong)
        if remark is not None:
            self._casebook.add_race(_place(called), remark)
        if check.id in self._looked or sum(self._looked.values()) >= _MOST_LOOKS:
            return Seen()
        is_followed = not called.problem.uses_triton and called.problem.id in TRACED
        if not traceable(case) or not (session.machine or is_followed):
            return Seen()
        self._looked[check.id] = not self._casebook.is_sure()
        if not self._looked[check.id]:
            return Seen()
        found = rounding(session, called) if session.machine else None
        # Operands of a dot may be rounded: this is the cause only if nothing else is seen.
        of_rounding = rounded(case, found) if found is not None else None
        of_dot = found is not None and found.op == "dot"
        sighting = None if of_dot else of_rounding
        sighting = sighting or _overflow(session, called)
        evidence = self.watched(session, called)
        # The rounding explains a state that is wrong by no more than it.
        report = self._report(called, evidence, found.dtype if found and of_dot else "")
        trace, place = evidence.trace, _place(called)
        state = _state(called, report)
        if state is not None:
            self._casebook.add_state(place, state)
            sighting = sighting or (state if state.id == "MAXIMUM-IN-ANOTHER-UNIT" else None)
        if trace is not None:
            sighting = sighting or look(called.problem.id, case, trace, result)
            sighting = sighting or as_read(called.outputs, trace) or by_zero(trace)
            found = None if of_dot and (sighting or state) else found
        sighting = sighting or of_rounding
        if sighting is not None:
            self._casebook.add_seen(place, sighting)
        if trace is None:
            return Seen(trace=None if session.machine else _shown(report), rounding=found)
        tiles = self._tiles(called, trace, result)
        return Seen(tiles, _shown(report), found, first_nan(trace))

    def _tiles(self, called: Called, trace: Trace, result: Result) -> TileMap | None:
        """Return the tiles of the product that the first wrong output is made of."""
        if not any(name in (*PRODUCTS, "lse") for name in result.wrong):  # dsink_logits alone
            return None
        first = result.wrong[0]
        product = first if first in PRODUCTS else "out"
        near = result.place if first in (*PRODUCTS, "lse") else None
        counted = counted_pairs(called.problem.id, called.case, trace, product, near)
        if counted is None:
            return None
        if product != "out":
            self._casebook.add_product(_place(called), product, counted.product_line)
        return tile_map(counted)

    def at_fault(self, session: Session, called: Called, how: str, line: int, of: str) -> bool:
        """Find why a kernel accessed memory outside of its tensors, in the way `how` of `Outside`.

        Where a whole tile lies outside, what lies there is left out of one more call. Return
        whether a cause was added to the casebook.
        """
        place, case = _place(called), called.case
        is_new = session.machine and traceable(case) and line not in self._faults
        if is_new and how not in (Outside.EDGE, Outside.BLOCK, Outside.WRAPS):
            names = tuple(called.problem.judged(called.check))
            # A call that fails once more has no trace, but its forward pass alone may have one.
            ways = [names, ("out",)] if called.problem.gradients else [names]
            lenient = {"traced": True, "lenient": True}
            traces = ((way, session.call(case, called.inputs, way, **lenient)) for way in ways)
            causes = (astray(case, seen.trace, way) for way, seen in traces if seen.trace)
            found = next(filter(None, causes), None)
            # What this line stores outside is left out, and its rows are then stored by nobody.
            is_left_out = found is not None and found.family == "grid" and found.line == line
            self._faults[line] = None if is_left_out else found
        seen, fault = self._faults.get(line), outside(how, line, of)
        if seen is not None:
            self._casebook.add_raced(place, seen)
        elif fault is not None:
            self._casebook.add_fault(place, case, fault)
        return bool(seen or fault)

    def at_race(self, session: Session, called: Called, remark: CaseOutcome) -> None:
        """Call once more where programs race: one may store where the rows of another belong.

        That is added to the casebook for each case with this headline. All outputs are returned, as
        programs may race for one that is not judged.
        """
        case, headline = called.case, remark.headline
        if headline not in self._races and traceable(case):
            names = tuple(dict.fromkeys((*called.problem.returns, *called.evidence.outputs)))
            trace = session.call(case, called.inputs, names, traced=True).trace
            result = Result(names, nan=False, close=False)
            self._races[headline] = trace and misplaced(case, trace, result)
        self._casebook.add_raced(_place(called), self._races.get(headline) or raced(remark))

    def watched(self, session: Session, called: Called) -> CallEvidence:
        """Call with the kernels watched, and until one program was followed, follow one."""
        case, inputs, names = called.case, called.inputs, tuple(called.expected.truth)
        # One key has no more than one number per query in all that a program holds.
        if called.problem.id in TRACED and not self._followed and case.seqlen_k > 1:
            follow = called.to_follow()
            evidence = session.call(case, inputs, names, traced=True, follow=follow)
            reply = evidence.result
            if not isinstance(reply, Reply) or reply.status != Status.TRACE_FAILED:
                return evidence
            self._followed = True  # what fails once may fail each time
        return session.call(case, inputs, names, traced=True)

    def _report(self, called: Called, evidence: CallEvidence, rounded: str) -> ProgramReport | None:
        """Return the report of the program that was followed, None if none was.

        Nor if `rounded`, the dtype of a wrong rounding, explains what its state differs by.
        """
        if evidence.rounds is None:
            return None
        self._followed = True
        report = called.report(evidence, rounded=rounded)
        return report if report.part or not rounded else None


def _place(called: Called) -> Place:
    return called.check.id, called.number - 1


def _state(called: Called, report: ProgramReport | None) -> Sighting | None:
    """Return what is wrong with the state of a program that was followed, if that is known."""
    if report is None or report.pairs is not None:
        return report and report.pairs
    if report.part is not None:
        first, in_unit = report.part.roles[0], report.part.in_unit
        located = called.source.keeps_given
        return of_state(report.record, first, in_unit=in_unit, located=located)
    return in_no_tile(report.record, report.never) if report.never else None


def _shown(report: ProgramReport | None) -> TraceRecord | None:
    """Return the record of the program, with the reason if it does not say what is wrong.

    None where nothing is wrong with its results.
    """
    if report is None or not (report.is_known or report.why_not):
        return None
    return trimmed(report.record if report.is_known else of_unknown(report))


def _overflow(session: Session, called: Called) -> Sighting | None:
    """Call with options that mean the same and are smaller: if that is right, they overflow."""
    case = limited(called.case)
    if case is None:
        return None
    evidence = session.call(case, called.inputs, tuple(called.evidence.outputs))
    if of_call(evidence, called.problem.signature) is not None:
        return None
    right = not find_differences(evidence.outputs, called.expected)
    return overflow(called.case, case) if right else None
