"""The frozen records that every room of the judge passes on, and the verdicts they may hold.

Nothing here runs code, reads files or imports torch: a record is data, and `to_json` of a
`GradeRecord` is the canonical grade record from which every view is rendered.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from typing import Any

SCHEMA_VERSION = 1
COMPONENTS = ("correctness", "work", "speed", "memory")


class Verdict(enum.StrEnum):
    """What became of one check, one component or one problem."""

    PASS = "pass"
    FAIL = "fail"
    ERROR = "error"
    TIMEOUT = "timeout"
    CRASH = "crash"
    OUT_OF_MEMORY = "out-of-memory"
    NOT_IMPLEMENTED = "not-implemented"
    REJECTED = "rejected"
    SKIPPED = "skipped"
    NOT_MEASURED = "not-measured"
    INTERNAL = "internal"


# The worst first: a problem with several findings shows the verdict that comes first here.
SEVERITY = (
    Verdict.INTERNAL,
    Verdict.REJECTED,
    Verdict.NOT_IMPLEMENTED,
    Verdict.CRASH,
    Verdict.OUT_OF_MEMORY,
    Verdict.TIMEOUT,
    Verdict.ERROR,
    Verdict.FAIL,
    Verdict.SKIPPED,
    Verdict.PASS,
    Verdict.NOT_MEASURED,
)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the most severe of `verdicts`; `NOT_MEASURED` when there are none."""
    return min(verdicts, key=SEVERITY.index, default=Verdict.NOT_MEASURED)


@dataclasses.dataclass(frozen=True)
class Points:
    """Points of a part: `possible` is the face value, `available` what could be measured here."""

    earned: float = 0
    available: float = 0
    possible: float = 0

    def __add__(self, other: Points) -> Points:
        return Points(
            self.earned + other.earned,
            self.available + other.available,
            self.possible + other.possible,
        )


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """A named cause: `id` such as P04-DIAGONAL, what it is (`note`) and what to do (`help`)."""

    id: str
    title: str
    note: str
    help: str


@dataclasses.dataclass(frozen=True)
class Message:
    """What a student reads about one failure; a field that does not apply is None.

    `headline` stands alone in one line. `where` is test, step, file and line; `input` the case;
    `first` the first wrong element (got, expected, allowed); `extent` how far the error reaches;
    `output` the tail of what the submission printed.
    """

    headline: str
    where: str | None = None
    input: str | None = None
    first: str | None = None
    extent: str | None = None
    output: str | None = None
    repeat: str | None = None


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """One check of one problem: the worst of its cases."""

    id: str
    title: str
    step: int | None
    verdict: Verdict
    weight: int = 1
    points: Points = Points()
    message: Message | None = None
    diagnosis: Diagnosis | None = None
    cases_passed: int = 0
    cases_total: int = 0
    duration_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class ComponentResult:
    """One of correctness, work, speed and memory; `figures` holds what was measured, with units."""

    verdict: Verdict
    points: Points = Points()
    reason: str | None = None
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ProblemResult:
    """One problem of a grade record; `next_step` is the command or step the student takes next."""

    id: str
    title: str
    bonus: bool
    verdict: Verdict
    points: Points
    components: dict[str, ComponentResult]
    checks: tuple[CheckResult, ...] = ()
    message: Message | None = None
    next_step: str | None = None
    source_sha256: str | None = None
    duration_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class GradeRecord:
    """Everything one run of the grader found out; see DESIGN section 7 for the outer keys."""

    mode: str
    environment: dict[str, Any]
    seed: str
    submission: str
    problems: tuple[ProblemResult, ...]
    totals: Points
    bonus: Points
    interrupted: bool = False
    duration_s: float = 0.0
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain dicts, lists, strings and numbers."""
        return _plain(self)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def message_from_json(data: dict[str, Any] | None) -> Message | None:
    """Rebuild a `Message` from its plain form; None stays None."""
    return None if data is None else Message(**data)


def diagnosis_from_json(data: dict[str, Any] | None) -> Diagnosis | None:
    """Rebuild a `Diagnosis` from its plain form; None stays None."""
    return None if data is None else Diagnosis(**data)
