"""Gives each way in which a submission's call may end its verdict, headline and help.

Checks of correctness, speed and memory all look up replies, deaths and timeouts here, so that one
event has one name everywhere.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection

from grader.checks.translations import EMPTY, RECURSION_HELP, translation
from grader.isolate.evidence import CallEvidence
from grader.kernel.machine.outside import Outside
from grader.source.feeding import Spot
from grader.spec.causes import entry_of
from grader.spec.grade_record import Verdict
from grader.spec.protocol import Ended, Reply, Status

_STATUS_VERDICT = {
    Status.NOT_IMPLEMENTED: Verdict.NOT_IMPLEMENTED,
    Status.OUT_OF_MEMORY: Verdict.OUT_OF_MEMORY,
    Status.DEVICE_FAULT: Verdict.CRASH,
    Status.GUARD_CHANGED: Verdict.FAIL,
    Status.OUT_OF_BOUNDS: Verdict.FAIL,
    Status.ROUNDING_DOT: Verdict.FAIL,
    Status.FORBIDDEN_OPERATOR: Verdict.REJECTED,
    Status.NOT_MODELLED: Verdict.NOT_MEASURED,
    Status.STOPPED: Verdict.TIMEOUT,
}
_BOUNDS_HELP = (
    "positions past the end need a mask; where none is past the end, look at where the pointer"
    " starts and how far it moves"
)
_BLOCK_HELP = (
    "where a tile may reach past the end a block pointer needs boundary_check for that dimension,"
    " and a plain pointer a mask; then look at where it starts, by which strides, and how far it"
    " moves"
)
_MASKED_HELP = (
    "the mask lets these positions through: compare it with the tensor's length; then look at where"
    " the pointer starts, by the tensor's own strides, and how far it moves"
)
_FAR_HELP = (
    "the pointer has left its tensor: which batch, head and row does it start at, by the tensor's"
    " own strides, and how far does it move? Then compare the mask with the tensor's length"
)
_STRIDE_HELP = (
    "an index along an axis counts in the stride of that axis: of which tensor, and of which of its"
    " axes, is the stride that it is multiplied by?"
)
_WRAPS_HELP = (
    "cast the index to int64 before it is multiplied by the stride: .to(tl.int64); the third row or"
    " batch entry of a large tensor may begin 2**31 elements after the first"
)
_BEFORE_HELP = "is a first row or key negative, or does the pointer start before its tensor?"
_OUTSIDE_HELP = {
    Outside.MASK: _MASKED_HELP,
    Outside.BLOCK: _BLOCK_HELP,
    Outside.STRIDE: _STRIDE_HELP,
    Outside.SHIFT: _FAR_HELP,
    Outside.TILE: _FAR_HELP,
    Outside.POINTER: _FAR_HELP,
    Outside.BEFORE: _BEFORE_HELP,
    Outside.WRAPS: _WRAPS_HELP,
}
_UPDATE_HELP = (
    "on a GPU one program's store overwrites what another one has added: add with tl.atomic_add, or"
    " let each program store its own share apart, and sum the shares afterwards"
)
_LOOP_HELP = (
    "does every loop come closer to its end in each iteration, and how many does this input take?"
)
_STATUS_HELP = {
    Status.NOT_MODELLED: "the check costs no points here; on a GPU it is judged",
    Status.STOPPED: _LOOP_HELP,
    Status.OUT_OF_BOUNDS: _BOUNDS_HELP,
    Status.GUARD_CHANGED: _BOUNDS_HELP,
    Status.NO_ENTRY: "copy the function's first line from the stub",
    Status.EXITED: "return the result; the judge ends the process",
}
ROUNDING_HELP = {
    "TF32": 'TF32 keeps 10 of 23 fraction bits; input_precision="ieee" keeps all',
    "bf16x3": 'bf16x3 keeps about 16 of 23 fraction bits; input_precision="ieee" keeps all',
}
_STARVED_HELP = "grade again when less runs on this machine; the check costs no points"
# Their text is "headline; extent": one cause has one headline, however far it reaches.
_IN_PARTS = (Status.OUT_OF_BOUNDS, Status.FORBIDDEN_OPERATOR, Status.ROUNDING_DOT)
COMPILATION = "compilation"
_POLICY = "docs/source-policy.md says what PyTorch may do"
_OPERATOR_HELP = {
    "computes": f"compute it in a kernel; {_POLICY}",
    "reads": f"leave values in tensors, and compute with them in a kernel; {_POLICY}",
    "shortcut": f"write it yourself: that is the exercise; {_POLICY}",
}


@dataclasses.dataclass(frozen=True)
class CaseOutcome:
    """The verdict on a call without outputs to compare, and what a report says of it."""

    verdict: Verdict
    headline: str
    extent: str | None = None
    line: int = 0
    help: str | None = None
    spot: Spot | None = None  # where it shows, if the mistake may lie in another step
    looping: bool = False  # the line is where the call was stopped: any line of a loop
    wrong: tuple[str, ...] = ()  # outputs that it may make wrong, all where it is empty
    does: str = ""  # what a program of a race does to the element: "reads", "stores to", "changes"


def pointer_of(reply: Reply) -> str:
    """Return the kernel's argument whose access was outside, "" where the reply names none."""
    return reply.text.partition("; ")[0].partition(" argument ")[2]


def of_call(evidence: CallEvidence, signature: str) -> CaseOutcome | None:
    """Return the outcome of a call, None when it returned outputs to compare."""
    if evidence.over_budget is not None:
        return CaseOutcome(Verdict.TIMEOUT, f"not run: {evidence.over_budget}")
    if evidence.not_run is not None:
        earlier = of_call(evidence.not_run, signature)
        assert earlier is not None
        return CaseOutcome(Verdict.SKIPPED, f"not run: {earlier.headline}")
    assert evidence.result is not None
    outcome = of_result(evidence.result, signature, evidence.what)
    if outcome is None and evidence.changed is not None:
        return CaseOutcome(Verdict.FAIL, evidence.changed)
    return outcome


def of_choice(failure: CaseOutcome, result: Reply | Ended | None, *, ran: bool) -> CaseOutcome:
    """Return a failure; as an error where a file that `ran` elsewhere does what is not measured.

    A file must not choose which cases count. It does not choose how much room the system has.
    """
    chosen = isinstance(result, Reply) and result.status == Status.NOT_MODELLED
    if not ran or not chosen or result.error_type == "NoRoom":
        return failure
    help = "other cases run here: launch kernels of the same operations in all of them"
    headline = failure.headline.removeprefix("not measured: ")
    return dataclasses.replace(failure, verdict=Verdict.ERROR, headline=headline, help=help)


def of_remark(evidence: CallEvidence, names: Collection[str]) -> CaseOutcome | None:
    """Return the outcome of a race between programs for what the outputs `names` are made of.

    None where there was none. The outputs are right here, but need not be on a GPU or with other
    numbers.
    """
    reply = evidence.result
    if not isinstance(reply, Reply) or reply.status != Status.OK or reply.error_type != "race":
        return None
    races = [race for race in json.loads(reply.text) if set(names) & set(race[-1])]
    if not races:
        return None
    line, text, does, _ = races[0]
    headline, _, extent = text.partition("; ")
    wrong = tuple(name for name in names if any(name in of for *_, of in races))
    help = _UPDATE_HELP if does == "changes" else entry_of("PROGRAMS-RACE").text.help
    return CaseOutcome(Verdict.FAIL, headline, extent, line, help, wrong=wrong, does=does)


def of_result(result: Reply | Ended, signature: str = "", what: str = "call") -> CaseOutcome | None:
    """Return the outcome of a worker's reply or end, None when it is success."""
    if isinstance(result, Ended):
        return _of_end(result, what)
    if result.status == Status.OK:
        return None
    return _of_reply(result, signature)


def _of_reply(reply: Reply, signature: str) -> CaseOutcome:
    what, _, extent = reply.text.partition("; ") if reply.status in _IN_PARTS else ("", "", "")
    named = f"{reply.error_type}: {reply.text}" if reply.text else reply.error_type
    headline = {
        Status.NOT_IMPLEMENTED: reply.text or "not implemented",
        Status.BAD_RETURN: reply.text,
        Status.NO_ENTRY: f"{reply.text}, expected {signature}",
        Status.GUARD_CHANGED: f"write outside a tensor: {reply.text}",
        Status.OUT_OF_MEMORY: f"out of memory: {named}",
        Status.IMPORT_FAILED: f"the file cannot be imported: {named}",
        Status.COMPILE_FAILED: f"Triton cannot compile the kernel: {reply.text}",
        Status.ROUNDING_DOT: f"on a GPU this tl.dot rounds its fp32 operands to {what}",
        Status.EXITED: f"the submission called exit: {reply.text}",
        Status.NOT_MODELLED: f"not measured: {reply.text}",
        Status.STOPPED: f"no result after {reply.text}: the kernel was stopped",
    }.get(reply.status, named)
    if reply.status in (Status.OUT_OF_BOUNDS, Status.FORBIDDEN_OPERATOR):
        headline = what
    help = _STATUS_HELP.get(reply.status)
    if reply.status == Status.FORBIDDEN_OPERATOR:
        help = _OPERATOR_HELP.get(reply.error_type)
    if reply.status == Status.ROUNDING_DOT:
        help = ROUNDING_HELP.get(what)
    spot = Spot(reply.line) if re.search(EMPTY, named) else None
    if reply.status == Status.OUT_OF_BOUNDS:
        help = _OUTSIDE_HELP.get(reply.error_type, help)
        spot = Spot(reply.line, part="address+mask", of=pointer_of(reply))
    if reply.status in (Status.EXCEPTION, Status.COMPILE_FAILED, Status.IMPORT_FAILED):
        help = translation(named)
    verdict = _STATUS_VERDICT.get(reply.status, Verdict.ERROR)
    looping = reply.status == Status.STOPPED
    return CaseOutcome(verdict, headline, extent or None, reply.line, help, spot, looping)


def _of_end(ended: Ended, what: str) -> CaseOutcome:
    if not ended.started:
        sentence = ended.how("start")
        return CaseOutcome(Verdict.INTERNAL, f"the judge's worker did not start: {sentence}")
    help = None
    verdict = Verdict.CRASH
    if ended.starved_s:
        return CaseOutcome(Verdict.NOT_MEASURED, ended.how(what), help=_STARVED_HELP)
    if ended.timeout:
        verdict = Verdict.TIMEOUT
        help = _LOOP_HELP
        if ended.compiling or (what == COMPILATION and not ended.line):
            help = "smaller tiles, and range instead of tl.static_range, make less code"
        elif what == COMPILATION:
            help = (
                "kernels are compiled and not run here: a loop that waits for a result never ends"
            )
    elif ended.over is not None:
        help = "a call needs one process, and memory for its tiles and results"
    elif ended.signal_name == "SIGKILL":
        help = "Linux kills a process like this when memory runs out"
    elif ended.signal_name is not None:
        help = "a process dies like this when it writes to memory that is not its own"
    if ended.recursive:
        help = RECURSION_HELP
    headline = ended.how(what)
    return CaseOutcome(
        verdict, headline, line=ended.line, help=help, looping=ended.timeout and not ended.compiling
    )
