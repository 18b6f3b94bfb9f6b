"""The frozen records that every room of the judge passes on, and the verdicts they may hold.

Nothing here runs code, reads files or imports torch. A record is data, checked when it is made:
what comes over a pipe or out of a file is read with `model_validate_json`, and what does not fit
is an error there and not three rooms later. `GradeRecord` is the canonical grade record from which
every view is rendered; docs/record.schema.json describes it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from grader.base.record import Record, Text
from grader.spec.kernel_report import Compilation, PredictedCall
from grader.spec.trace_record import TraceRecord

SCHEMA_VERSION = 2
COMPONENTS = ("correctness", "work", "speed", "memory")


class Verdict(enum.StrEnum):
    """What became of one case, one check, one component or one problem."""

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


class Points(Record):
    """Points of a part: `possible` is the face value, `available` what could be measured here."""

    earned: float = 0
    available: float = 0
    possible: float = 0

    def __add__(self, other: Points) -> Points:
        # One decimal each: rounding here removes nothing but the noise of binary fractions.
        return Points(
            earned=round(self.earned + other.earned, 6),
            available=round(self.available + other.available, 6),
            possible=round(self.possible + other.possible, 6),
        )


class Diagnosis(Record):
    """A named cause: `id` such as P04-DIAGONAL, what it is (`note`) and what to do (`help`)."""

    id: str
    title: str
    note: str
    help: str


class TileMap(Record):
    """Which tiles of queries (rows) and keys (columns) one head's program visited, a letter each.

    `FULL` and `MASKED` were due, whole or in part, and taken once; `WASTED` was visited and not
    due. `MISSED`, `TAKEN` (though not visible) and `TWICE` hold at least one wrong pair.
    """

    FULL: ClassVar[str] = "#"
    MASKED: ClassVar[str] = "/"
    WASTED: ClassVar[str] = "o"
    MISSED: ClassVar[str] = "x"
    TAKEN: ClassVar[str] = "!"
    TWICE: ClassVar[str] = "2"
    NOTHING: ClassVar[str] = "."

    product: str
    batch: int
    head: int
    tile_q: int
    tile_k: int
    rows: tuple[str, ...]


class ErrorMap(Record):
    """How far wrong one head of an output is: the worst error / allowed of each cell, a letter.

    `OK` is within the tolerance, `NOT_FINITE` holds NaN or infinity where none belongs. Of the
    digits `k` begins at 10 ** ((k - 1) / 2) times what is allowed, and `9` has no end. Rows are
    queries or keys, columns the elements of a row; a cell has `cell_rows` of `num_rows` by
    `cell_columns` of `num_columns`. Batch and head are None where an output has none.
    """

    OK: ClassVar[str] = "."
    NOT_FINITE: ClassVar[str] = "N"
    MOST_CELLS: ClassVar[int] = 32  # along a side

    output: Annotated[Text, Field(max_length=200)]
    batch: int | None = Field(None, ge=0)
    head: int | None = Field(None, ge=0)
    num_rows: int = Field(ge=1)
    num_columns: int = Field(ge=1)
    cell_rows: int = Field(ge=1)
    cell_columns: int = Field(ge=1)
    rows: tuple[Annotated[str, Field(pattern=r"^[.1-9N]{1,32}$")], ...] = Field(
        min_length=1, max_length=32
    )


class Message(Record):
    """What a student reads about one failure; a field that does not apply is None.

    `headline` stands alone in one line. `test`, `file`, `line` and `step` say where, and `fed_by`
    the lines of steps that make what is wrong at another line, or may; `step_lines` are the first
    and the last one of the step where no line is known. `input` is the case; `first` and `worst`
    the first and the worst wrong element (got, expected, allowed); `extent` how far the error
    reaches; `small` a smaller case that is wrong likewise; `output` the tail of what the submission
    printed; `help` what to do where the headline does not say it; `repeat` the command that repeats
    the case. `tiles` shows which tiles the kernel visited, `errors` where the numbers are wrong,
    `trace` what one program held after each tile. `not_run` says that there was no call, for a
    reason that lies in another case.
    """

    headline: Text
    test: str | None = None
    file: str | None = None
    line: int | None = None
    fed_by: tuple[int, ...] = ()
    step_lines: tuple[int, int] | None = None
    step: int | None = None
    input: str | None = None
    first: str | None = None
    worst: str | None = None
    extent: str | None = None
    small: str | None = None
    output: Text | None = None
    help: str | None = None
    repeat: str | None = None
    tiles: TileMap | None = None
    errors: ErrorMap | None = None
    trace: TraceRecord | None = None
    not_run: bool = False


class CheckResult(Record):
    """One check of one problem: the worst of its cases.

    `step` is the step of the stub in which the mistake lies, None where that is not known;
    `kernels` what the compiler made of the kernels, where the check is about that, and `predicted`
    how long they would take on GPUs, where there is none.
    """

    id: str
    title: str
    verdict: Verdict
    step: int | None = None
    weight: float = 1
    points: Points = Points()
    message: Message | None = None
    diagnosis: Diagnosis | None = None
    # The part of the check that passes: a backward check judges three gradients, a third each.
    share: float = Field(default=0.0, ge=0.0, le=1.0)
    cases_passed: int = 0
    cases_total: int = 0
    duration_s: float = 0.0
    kernels: tuple[Compilation, ...] = ()
    predicted: PredictedCall | None = None


class CorrectnessFigures(Record):
    """How many checks passed, of how many."""

    kind: Literal["correctness"] = "correctness"
    checks_passed: int
    checks_total: int


class SpeedFigures(Record):
    """The measured speed-up and what it was made from.

    `clock` is what was read: `wall` time on a GPU; on the CPU the `cpu` time of all processes of
    the submission, which a busy machine changes least. `naive_drift_percent` is by how much the
    blocks of the baseline differ, `worst_error_over_allowed` that of all timed outputs. `targets`
    says where `floor` and `full` are from, `note` what is odd about them or about the machine.
    """

    kind: Literal["speed"] = "speed"
    speedup: float | None = None
    median_ms: float | None = None
    naive_ms: float | None = None
    spread_percent: float | None = None
    naive_drift_percent: float | None = None
    samples: int = 0
    calls_per_sample: int = 0
    worst_error_over_allowed: float | None = None
    floor: float | None = None
    full: float | None = None
    targets: str = ""
    note: str | None = None
    clock: Literal["wall", "cpu"] = "wall"
    shape: str = ""
    device: str = ""


class MemoryFigures(Record):
    """Peak bytes beyond inputs and outputs, at each of `lengths`, and what is allowed there.

    `tile` is the queries and keys of a tile, where the call says how many.
    """

    kind: Literal["memory"] = "memory"
    lengths: tuple[int, ...] = ()
    extra_bytes: tuple[int, ...] = ()
    naive_extra_bytes: tuple[int, ...] = ()
    io_bytes: tuple[int, ...] = ()
    allowed_bytes: tuple[int, ...] = ()
    shape: str = ""
    tile: tuple[int, int] | None = None


class Amount(Record):
    """How much of one kind of work was done, is needed, and is done naively.

    No right answer does less than `least`: if that much was not seen, it was done out of sight.
    """

    done: int
    needed: int
    naive: int
    least: int = 0

    @property
    def ratio(self) -> float:
        return self.done / max(self.needed, 1)

    @property
    def naive_ratio(self) -> float:
        return self.naive / max(self.needed, 1)


class WorkFigures(Record):
    """What a traced call did: multiply-adds in dots, elements read, and how many different ones.

    None where a kind does not apply. What is needed is counted with tiles of `tile_q` queries by
    `tile_k` keys, the kernel's own. All points at `full` times what is needed, none at naive's.
    `trace` is what one program of that call held after each tile, where one was followed. `waste`
    says which tiles were visited for nothing.
    """

    kind: Literal["work"] = "work"
    multiply_adds: Amount | None = None
    elements_read: Amount | None = None
    distinct_read: Amount | None = None
    full: float = 1.0
    tile_q: int = 0
    tile_k: int = 0
    launches: int = 0
    programs: int = 0
    shape: str = ""
    tiles: TileMap | None = None
    waste: Text = ""
    trace: TraceRecord | None = None

    @property
    def amounts(self) -> dict[str, Amount]:
        """The kinds of work that were counted, in words."""
        named = {
            "multiply-adds": self.multiply_adds,
            "elements read": self.elements_read,
            "different elements read": self.distinct_read,
        }
        return {name: amount for name, amount in named.items() if amount is not None}


Figures = Annotated[
    CorrectnessFigures | WorkFigures | SpeedFigures | MemoryFigures, Field(discriminator="kind")
]


class ComponentResult(Record):
    """One of correctness, work, speed and memory; `figures` holds what was measured."""

    verdict: Verdict
    points: Points = Points()
    reason: Text | None = None
    figures: Figures | None = None


class ProblemResult(Record):
    """One problem of a grade record; `next_step` is the command or step the student takes next.

    `unseen` says in one line what this run could not see of a problem that passes.
    """

    id: str
    title: str
    bonus: bool
    verdict: Verdict
    points: Points
    components: dict[str, ComponentResult]
    checks: tuple[CheckResult, ...] = ()
    message: Message | None = None
    next_step: str | None = None
    unseen: str | None = None
    source_sha256: str | None = None
    duration_s: float = 0.0


class Chip(Record):
    """What bounds a GPU, as its driver reports it: the highest clocks, and the width of memory."""

    multiprocessors: int = Field(ge=1)
    clock_mhz: float = Field(gt=0, allow_inf_nan=False)
    memory_clock_mhz: float = Field(gt=0, allow_inf_nan=False)
    memory_bus_bits: int = Field(ge=1)


class Environment(Record):
    """The machine and the versions of a run; what was not found is None."""

    device: Literal["cpu", "cuda"]
    device_name: str
    capability: tuple[int, int] | None = None
    device_bytes: int | None = None
    device_uuid: str | None = None
    chip: Chip | None = None
    driver: str | None = None
    python: str | None = None
    torch: str | None = None
    triton: str | None = None
    numpy: str | None = None
    cuda_build: str | None = None
    platform: str | None = None
    notes: tuple[str, ...] = ()


class GradeRecord(Record):
    """Everything one run of the grader found out; see DESIGN section 7 for the outer keys."""

    schema_version: Literal[2] = SCHEMA_VERSION
    mode: Literal["local", "official"]
    environment: Environment
    seed: str
    submission: Text
    problems: tuple[ProblemResult, ...]
    totals: Points
    bonus: Points
    interrupted: bool = False
    duration_s: float = 0.0
