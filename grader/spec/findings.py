"""Findings of cases, requests of the judge to its own processes, and the events they send back.

A request is a file without a name, so that no command line shows a seed. Events are JSON lines on a
pipe. They come from the judge's own processes, but those run as the same user as a submission:
every line is read as one of these records or not at all.
"""

from __future__ import annotations

import base64
import secrets
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Base64Bytes, Field, TypeAdapter, ValidationError

from grader.spec.grade_record import (
    Compilation,
    Diagnosis,
    MemoryFigures,
    Message,
    PredictedCall,
    Record,
    SpeedFigures,
    Text,
    Verdict,
    WorkFigures,
)

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Finding(Record):
    """The verdict on one case. No `wrong_outputs` stand for all; `margin` is error / allowed.

    With an internal fault, `after_calls` says that the submission's code had run beside the process
    that failed, and may have caused the fault.
    """

    verdict: Verdict
    message: Message | None = None
    wrong_outputs: tuple[str, ...] = ()
    margin: float | None = None
    duration_s: float = 0.0
    after_calls: bool = False
    kernels: tuple[Compilation, ...] = ()
    predicted: PredictedCall | None = None


class CaseFailed(Exception):
    """A case that did not pass; holds its finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message.headline if finding.message else finding.verdict.value)
        self.finding = finding


class SourceFile(Record):
    """The bytes of one submitted file, as they were read once."""

    problem: str
    data: Base64Bytes

    @classmethod
    def of(cls, problem: str, data: bytes) -> SourceFile:
        """Wrap `data`, which travels as base64."""
        return cls(problem=problem, data=base64.b64encode(data))


class ChildRequest(Record):
    """The fields of every request to one of the judge's own processes.

    `token` begins every line of its events: others may write into the pipe. `policy` says whether
    the source policy is in force, `jailed` whether workers are in a jail (grader/isolate/jail.py);
    `device_uuid` and `capability` (90 is compute capability 9.0) are those of the GPU, where there
    is one.
    """

    device: Literal["cpu", "cuda"]
    policy: bool = True
    token: str = Field(default_factory=secrets.token_hex)
    jailed: bool = False
    device_uuid: str | None = None
    capability: int | None = None


class TestRequest(ChildRequest):
    """Run the cases of one problem but those of `done`; `spent_s` and `lost_s` are used up.

    Without a `source`, as from a command line, files are read from a folder.
    """

    __test__ = False  # keeps pytest from collecting it by its name

    source: SourceFile | None = None
    seed: str
    done: tuple[tuple[str, int], ...] = ()
    first: tuple[str, ...] = ()  # checks whose cases run before the others
    spent_s: Seconds = 0.0
    lost_s: Seconds = 0.0
    compile_workers: int = 1
    kernels: Path | None = None  # folder of kernels that were compiled for an absent GPU
    chips: tuple[int, ...] = ()  # further ones to compile for, on request


MEASURE_S = 1800.0  # the most that a measuring process may take


class MeasureRequest(ChildRequest):
    """Measure speed and memory of these files, `official` ones in more blocks."""

    sources: tuple[SourceFile, ...]
    official: bool = False


class Evidence(Record):
    """Figures of work, speed or memory, or a verdict and a reason why there are none to score."""

    verdict: Verdict | None = None
    reason: Text | None = None
    figures: WorkFigures | SpeedFigures | MemoryFigures | None = None


class Alive(Record):
    """Sent every second, so that a process that was stopped from outside is noticed."""

    event: Literal["alive"] = "alive"


class CaseBegins(Record):
    """Sent before a case calls the submission: an end of the process is then its doing."""

    event: Literal["begin"] = "begin"
    check: str
    index: int


class CaseEnds(Record):
    """A case came to a finding. `spent_s` and `lost_s` are what the problem's calls took so far."""

    event: Literal["end"] = "end"
    check: str
    index: int
    finding: Finding
    spent_s: Seconds = 0.0
    lost_s: Seconds = 0.0


class CauseFound(Record):
    """One mistake explains these cases; see `grader.causes.diagnose`."""

    event: Literal["cause"] = "cause"
    diagnosis: Diagnosis
    step: int | None
    cases: tuple[tuple[str, int], ...]
    line: int | None = None
    fed_by: tuple[int, ...] = ()

    def located(self, message: Message) -> Message:
        """Return `message` with the line of this cause, or its step where no line is known.

        A message keeps its line, if that is in a known step and the cause has none.
        """
        keeps = message.line is not None and message.step is not None
        if self.line is None and (self.step is None or keeps):
            return message
        where = {"line": self.line, "fed_by": self.fed_by, "step": self.step}
        return message.model_copy(update=where)


class WorkCounted(Record):
    """The counted work of a submission whose cases all passed."""

    event: Literal["work"] = "work"
    evidence: Evidence


class Phase(Record):
    """What is being measured for a problem; `submission` says whether its code runs in it."""

    event: Literal["phase"] = "phase"
    problem: str
    text: str
    submission: bool = False


class Measured(Record):
    """Evidence for the components speed and memory of one problem."""

    event: Literal["measured"] = "measured"
    problem: str
    speed: Evidence
    memory: Evidence


class Lane(Record):
    """One contestant of `make race`: milliseconds per call, or a reason why there are none.

    `spread_percent` is by how much its rounds differ.
    """

    name: str
    ms: float | None = Field(None, gt=0, allow_inf_nan=False)
    spread_percent: float | None = Field(None, ge=0, allow_inf_nan=False)
    reason: Text | None = None


class Raced(Record):
    """The result of a race; `library` is its fastest kernel, others are `left_out` with reasons.

    Without lanes `fault` says why nothing could be timed; `internal` if that is the judge's fault.
    """

    event: Literal["raced"] = "raced"
    problem: str
    shape: str = ""
    naive: Lane | None = None
    library: Lane | None = None
    yours: Lane | None = None
    left_out: tuple[Text, ...] = ()
    fault: Text | None = None
    internal: bool = False


Event = Alive | CaseBegins | CaseEnds | CauseFound | WorkCounted | Phase | Measured | Raced
_EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])
_MAX_EVENT_BYTES = 256 * 1024


def read_event(line: bytes, token: str = "") -> Event | None:
    """Return the event in a line that begins with `token`, None when it holds none."""
    if len(line) > _MAX_EVENT_BYTES or not line.startswith(token.encode()):
        return None
    try:
        return _EVENTS.validate_json(line[len(token) :])
    except (ValidationError, RecursionError):
        return None


def write_event(event: Event, token: str = "") -> bytes:
    """Return an event as one line, which begins with `token`."""
    return token.encode() + event.model_dump_json().encode() + b"\n"
