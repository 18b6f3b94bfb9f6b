"""Looks again at a case whose numbers are wrong: in one more call the kernels are watched."""

from __future__ import annotations

import dataclasses

from grader.causes.known_mistakes import Place
from grader.causes.rules.look import look
from grader.causes.rules.overflow import limited, overflow
from grader.causes.rules.placement import misplaced
from grader.causes.rules.sighting import Result, Sighting
from grader.causes.state.program import Called, trimmed, untold
from grader.checks.correctness import find_differences
from grader.checks.outcome import of_call
from grader.checks.walk import tile_map, walk_of
from grader.isolate.evidence import CallEvidence
from grader.isolate.session import Session
from grader.judge.answers import Answer
from grader.judge.trial import Trial
from grader.kernel.observers.trace import PRODUCTS, traceable
from grader.spec.cases import Case
from grader.spec.grade_record import TileMap
from grader.spec.protocol import Reply, Status
from grader.spec.trace_record import TRACED, TraceRecord

# Calls of a problem that are made again to see what the kernels do: one of each check that fails.
_MOST_LOOKS = 8


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a student is shown of a call: the tiles that were visited, and one program's state.

    `fault` is an error of the judge's own while it looked, empty where there was none.
    """

    tiles: TileMap | None = None
    trace: TraceRecord | None = None
    fault: str = ""


def look_again(
    trial: Trial, session: Session, called: Called, names: tuple[str, ...], result: Result
) -> Seen:
    """Call once more; of each check the first wrong case tells. The casebook hears of a sighting.

    Not where one known mistake explains all that is wrong: what it does was seen by then.

    Args:
        trial: what the cases of the problem share.
        session: runs the submission.
        called: the case, and where it is wrong.
        names: the outputs to ask for.
        result: what is wrong about them.
    """
    case, check = called.case, called.check
    if check.id in trial.looked_at or sum(trial.looked_at.values()) >= _MOST_LOOKS:
        return Seen()
    if not session.machine or not traceable(case):
        return Seen()
    trial.looked_at[check.id] = not trial.casebook.is_sure()
    if not trial.looked_at[check.id]:
        return Seen()
    sighting = _overflow(session, called, names)
    evidence = _watched(trial, session, called, names)
    trace = evidence.trace
    if trace is None:
        return Seen()
    sighting = sighting or look(called.problem.id, case, trace, result)
    if sighting is not None:
        trial.casebook.add_seen((check.id, called.number - 1), sighting)
    walk = None
    if any(name in (*PRODUCTS, "lse") for name in result.wrong):  # no walk makes dsink_logits
        first = result.wrong[0]
        product = first if first in PRODUCTS else "out"
        near = result.place if first in (*PRODUCTS, "lse") else None
        walk = walk_of(called.problem.id, case, trace, product, near)
    tiles = tile_map(walk) if walk is not None else None
    return Seen(tiles, _told(trial, called, evidence))


def _overflow(session: Session, called: Called, names: tuple[str, ...]) -> Sighting | None:
    """Call with options that mean the same and are smaller: if that is right, they overflow."""
    case = limited(called.case)
    if case is None:
        return None
    evidence = session.call(case, called.inputs, names)
    if of_call(evidence, called.problem.signature) is not None:
        return None
    right = not find_differences(evidence.outputs, called.expected)
    return overflow(called.case, case) if right else None


def look_at_race(
    trial: Trial, session: Session, place: Place, case: Case, answer: Answer, headline: str
) -> None:
    """Call once more where programs race: one may store where the rows of another belong.

    The casebook hears of it, in each case with this headline. What programs race for need not be
    among the outputs that are judged.
    """
    if headline not in trial.races and traceable(case):
        names = tuple(dict.fromkeys((*trial.problem.returns, *answer.names)))
        trace = session.call(case, answer.inputs, names, traced=True).trace
        result = Result(names, nan=False, close=False)
        trial.races[headline] = trace and misplaced(case, trace, result)
    sighting = trial.races.get(headline)
    if sighting is not None:
        trial.casebook.add_raced(place, sighting)


def _watched(
    trial: Trial, session: Session, called: Called, names: tuple[str, ...]
) -> CallEvidence:
    """Call with the kernels watched, and until one program was followed, follow one."""
    case, inputs = called.case, called.inputs
    if called.problem.id in TRACED and not trial.followed:
        follow = called.to_follow()
        evidence = session.call(case, inputs, names, traced=True, follow=follow)
        reply = evidence.result
        if not isinstance(reply, Reply) or reply.status != Status.TRACE_FAILED:
            return evidence
        trial.followed = True  # what fails once may fail each time
    return session.call(case, inputs, names, traced=True)


def _told(trial: Trial, called: Called, evidence: CallEvidence) -> TraceRecord | None:
    """Return what the program did that was followed, and why that does not say what is wrong.

    None where nothing is wrong with its results, or the call did not come back with any.
    """
    if evidence.rounds is None:
        return None
    trial.followed = True
    told = called.told(evidence)
    if told.is_known:
        return trimmed(told.record)
    return trimmed(untold(told)) if told.why_not else None
