"""Looks again at a case whose numbers are wrong: in one more call the kernels are watched."""

from __future__ import annotations

import dataclasses

from grader.checks.walk import tile_map, walk_of
from grader.following.program import Called, trimmed, untold
from grader.model import TileMap
from grader.running.evidence import CallEvidence
from grader.running.protocol import Reply, Status
from grader.running.session import Session
from grader.running.trace import PRODUCTS, traceable
from grader.sightings.look import look
from grader.sightings.sighting import Result
from grader.traced import TRACED, TraceRecord
from grader.trial import Trial

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
    if not session.interpret or not traceable(case):
        return Seen()
    trial.looked_at[check.id] = not trial.casebook.is_sure()
    if not trial.looked_at[check.id]:
        return Seen()
    evidence = _watched(trial, session, called, names)
    trace = evidence.trace
    if trace is None:
        return Seen()
    sighting = look(called.problem.id, case, trace, result)
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
