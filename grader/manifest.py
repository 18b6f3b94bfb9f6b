"""Reads problem.toml, the only place for a problem's title, points, steps, cases and targets.

A check departs from the plain `[base]` case in what its `varies` lists and in nothing else, so that
a mistake costs the checks of its own subject; the reader refuses a case that sets more. Sizes may
be drawn from the seed of a run: `seqlen = { draw = [256, 384, 512] }` or
`{ from = 130, to = 400, step = 1 }`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

ROOT = Path(__file__).resolve().parent.parent
PROBLEMS = ROOT / "problems"
ALIGNED = 128  # a length that is no multiple of it is a subject of its own
OPTIONS = ("is_causal", "softmax_scale", "window_size", "num_sink_tokens", "tile_q", "tile_k")
SIZES = ("batch", "num_q_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim", "rows", "cols")
_NUMBERS = ("int", "constrained-int", "float")

Dtype = Literal["fp32", "fp16", "bf16"]
Layout = Literal["dense", "packed_qkv", "bshd", "padded", "transposed", "expanded", "every_other"]
Values = Literal["normal", "offset", "peaked", "needle", "large", "cancelling"]
Device = Literal["cpu", "cuda"]


class ManifestError(Exception):
    """A problem.toml that cannot be used; the message names file, key, got and expected."""


_T = TypeVar("_T")
ListOf = Annotated[tuple[_T, ...], Strict(False)]  # an array of TOML is a list to begin with
Positive = Annotated[int, Field(gt=0)]
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Table(BaseModel):
    """A table of problem.toml: frozen, strictly typed, without unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_keys(cls, data: Any) -> Any:
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for key in data if isinstance(data, dict) else ():
            if key not in known:
                raise ValueError(f"{key}: got an unknown key, expected one of {', '.join(known)}")
        return data


class Draw(Table):
    """A size that the seed of the run draws: one of `draw`, or a number of a range."""

    draw: Annotated[ListOf[Positive], Field(min_length=2)] | None = None
    first: Positive | None = Field(None, alias="from")
    last: Positive | None = Field(None, alias="to")
    step: Positive = 1

    @model_validator(mode="after")
    def _one_way(self) -> Draw:
        ends = [end for end in (self.first, self.last) if end is not None]
        ranged = len(ends) == 2 and ends[0] < ends[1]
        if ranged if self.draw is None else not ends:
            return self
        got = self.model_dump(by_alias=True, exclude_defaults=True)
        raise ValueError(f"got {got}, expected `draw` with a list, or `from` and a larger `to`")

    @property
    def choices(self) -> tuple[int, ...]:
        """All sizes that may be drawn."""
        return self.draw or tuple(range(self.first or 1, (self.last or 1) + 1, self.step))


Size = Annotated[int, Field(ge=0)] | Draw


class CaseTable(Table):
    """One line of `cases`: what it sets, the rest comes from `[base]`."""

    batch: Size | None = None
    num_q_heads: Size | None = None
    num_kv_heads: Size | None = None
    seqlen: Size | None = None
    seqlen_q: Size | None = None
    seqlen_k: Size | None = None
    head_dim: Size | None = None
    rows: Size | None = None
    cols: Size | None = None
    dtypes: Annotated[ListOf[Dtype], Field(min_length=1)] | None = None
    layout: Layout | None = None
    dout_layout: Layout | None = None
    values: Values | None = None
    sink_logits: bool | None = None
    sink_logits_values: Literal["normal", "neg_inf"] | None = None
    is_causal: bool | None = None
    softmax_scale: float | None = None
    window_size: int | float | Draw | None = None
    num_sink_tokens: int | float | Draw | None = None
    tile_q: int | Draw | None = None
    tile_k: int | Draw | None = None
    invalid: str | None = None
    mutate: str | None = None
    # Runs on the GPU where there is one; every other case runs in Triton's interpreter.
    gpu: bool | None = None

    @model_validator(mode="after")
    def _empty_only_to_be_refused(self) -> CaseTable:
        for key in ("seqlen", *SIZES):
            if getattr(self, key) == 0 and self.invalid is None:
                raise ValueError(f"{key}: got 0, expected 1 or more in a case that is not invalid")
        return self

    @property
    def given(self) -> dict[str, Any]:
        """The keys that this table sets."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in values.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class Case:
    """One set of inputs for one check: sizes, dtype, layout, kind of values and options.

    `exact` asks of fp32 that its dots are IEEE fp32, not TF32. `gpu`: see `CaseTable`.
    """

    batch: int = 1
    num_q_heads: int = 1
    num_kv_heads: int = 1
    seqlen_q: int = 1
    seqlen_k: int = 1
    head_dim: int = 64
    rows: int | None = None
    cols: int | None = None
    dtype: str = "fp32"
    layout: str = "dense"
    dout_layout: str = "dense"
    values: str = "normal"
    sink_logits: bool = False
    sink_logits_values: str = "normal"
    invalid: str | None = None
    mutate: str | None = None
    gpu: bool = False
    exact: bool = False
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword options that are passed to the entry point."""
        return dict(self.options)

    @property
    def words(self) -> tuple[str, ...]:
        """The case in words such as `batch=2`, without what is as usual."""
        if self.rows is not None:
            size = [f"rows={self.rows}", f"cols={self.cols}"]
        else:
            size = [f"batch={self.batch}", f"num_q_heads={self.num_q_heads}"]
            if self.num_kv_heads != self.num_q_heads:
                size.append(f"num_kv_heads={self.num_kv_heads}")
            if self.seqlen_q == self.seqlen_k:
                size.append(f"seqlen={self.seqlen_q}")
            else:
                size += [f"seqlen_q={self.seqlen_q}", f"seqlen_k={self.seqlen_k}"]
            size.append(f"head_dim={self.head_dim}")
        size += [f"{name}={value}" for name, value in self.options]
        if self.sink_logits:
            infinite = self.sink_logits_values == "neg_inf"
            size.append("sink_logits=-inf" if infinite else "sink_logits")
        size.append(self.dtype)
        defaults = (("layout", "dense"), ("dout_layout", "dense"), ("values", "normal"))
        for name, default in defaults:
            if getattr(self, name) != default:
                size.append(f"{name}={getattr(self, name)}")
        if self.invalid:
            size.append(f"invalid={self.mutate or self.invalid}")
        return tuple(size)

    def __str__(self) -> str:
        return " ".join(self.words)


class Check(Table):
    """One promise of a problem: a test function, its weight, and its cases.

    `varies` lists the keys in which its cases may depart from `[base]`; `outputs` what is judged.
    Where `needs` names another check, this one counts only if that one passes.
    """

    id: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    weight: PositiveNumber
    varies: ListOf[str]
    cases: Annotated[ListOf[CaseTable], Field(min_length=1)]
    outputs: ListOf[str] = ()
    exact: bool = False
    needs: str | None = None

    @property
    def test_name(self) -> str:
        """Name of the function in test_pNN.py."""
        return "test_" + self.id


class Step(Table):
    """One numbered step of a stub: title, about how many lines, the known mistakes made there."""

    title: str
    lines: Annotated[int, Field(ge=1)]
    causes: ListOf[str] = ()


class Targets(Table):
    """Speed-up over naive PyTorch at which points begin (`floor`) and are full (`full`)."""

    floor: PositiveNumber
    full: PositiveNumber

    @model_validator(mode="after")
    def _in_order(self) -> Targets:
        if not self.floor < self.full:
            raise ValueError(f"full: got {self.full}, expected more than floor, {self.floor}")
        return self


class Speed(Targets):
    """Default targets, and those of devices that were calibrated."""

    devices: dict[str, Targets] = {}


class PointTable(Table):
    """Face value of the four components."""

    correctness: Annotated[int, Field(ge=0)]
    work: Annotated[int, Field(ge=0)]
    speed: Annotated[int, Field(ge=0)]
    memory: Annotated[int, Field(ge=0)]


class Limits(Table):
    """Seconds: of one call, of all calls that do not come back, of all calls together."""

    call_s: PositiveNumber
    lost_s: PositiveNumber
    total_s: PositiveNumber


class Tolerance(Table):
    """Allowed error as a multiple of an honest computation's in the same dtype.

    `fp32` is what checks other than that of precision ask of fp32: IEEE, or TF32 as `tl.dot` does.
    """

    factor: PositiveNumber
    fp32: Literal["ieee", "tf32"] = "ieee"


class FixedTable(CaseTable):
    """A case for speed or memory: one dtype, so that it is one call."""

    dtypes: Annotated[ListOf[Dtype], Field(min_length=1, max_length=1)] | None = None


class BenchmarkTable(FixedTable):
    """A shape for speed on one kind of device."""

    device: Device


class MemoryTable(Table):
    """What is called for memory on one kind of device, at two lengths."""

    lengths: Annotated[tuple[Positive, Positive], Strict(False)]
    case: FixedTable


class Memory(Table):
    """Extra memory may be `linear_factor` times the bytes of inputs and outputs, and some slack."""

    linear_factor: PositiveNumber
    cpu: MemoryTable | None = None
    cuda: MemoryTable | None = None


class Problem(Table):
    """One problem as problem.toml describes it."""

    id: str
    title: str
    file: str
    entry: str
    signature: str
    oracle: str  # the function of reference.naive: the truth in fp64, the baseline at speed
    language: Literal["pytorch", "triton"]
    returns: Annotated[ListOf[str], Field(min_length=1)]
    gradients: ListOf[str] = ()
    bonus: bool
    points: PointTable
    steps: Annotated[ListOf[Step], Field(min_length=1)]
    limits: Limits
    tolerance: Tolerance
    base: CaseTable
    checks: Annotated[ListOf[Check], Field(min_length=1)]
    benchmarks: ListOf[BenchmarkTable] = ()
    speed: Speed
    memory: Memory | None = None

    @model_validator(mode="after")
    def _checks_depart_in_their_subject_alone(self) -> Problem:
        ids = [check.id for check in self.checks]
        for check in self.checks:
            where = f"checks: {check.id}"
            if ids.count(check.id) > 1:
                raise ValueError(f"{where}: got two checks of this name")
            if check.needs is not None and check.needs not in ids[: ids.index(check.id)]:
                raise ValueError(f"{where}: needs: got {check.needs!r}, expected an earlier check")
            known = (*self.returns, *self.gradients)
            for key, names, expected in (
                ("outputs", check.outputs, known),
                ("varies", check.varies, CaseTable.model_fields),
            ):
                unknown = [name for name in names if name not in expected]
                if unknown:
                    some = ", ".join(expected)
                    raise ValueError(f"{where}: {key}: got {unknown[0]!r}, expected some of {some}")
            for table in check.cases:
                _departs_only_in(check, table)
        return self

    @property
    def total_points(self) -> int:
        """Face value of the problem."""
        return sum(self.points_of(name) for name in PointTable.model_fields)

    def points_of(self, component: str) -> int:
        """Face value of a component."""
        return getattr(self.points, component)

    @property
    def uses_triton(self) -> bool:
        """Whether the answer is Triton kernels."""
        return self.language == "triton"

    @property
    def folder(self) -> Path:
        """The problem's folder in this repository."""
        return PROBLEMS / self.id

    def check(self, check_id: str) -> Check:
        """Return the check called `check_id`."""
        for check in self.checks:
            if check.id == check_id:
                return check
        known = ", ".join(check.id for check in self.checks)
        raise ManifestError(f"{self.id}: got no check {check_id!r} in problem.toml, only {known}")

    def judged(self, check: Check) -> tuple[str, ...]:
        """Outputs that `check` judges: by default the first returned, or dq, dk and dv."""
        return check.outputs or self.gradients[:3] or self.returns[:1]

    def cases(self, check: Check, seed: str, device: str) -> dict[int, Case]:
        """Cases of `check` that run on `device` by their number, sizes drawn from `seed`.

        Triton's interpreter multiplies bf16 wrongly, so that without a GPU there are no such cases.
        """
        cases = {}
        for index, case in enumerate(self._expanded(check, seed)):
            if case.dtype == "bf16" and self.uses_triton and device == "cpu":
                continue
            if case.dtype == "bf16":
                case = dataclasses.replace(case, gpu=True)
            cases[index] = case
        return cases

    def _expanded(self, check: Check, seed: str) -> Iterator[Case]:
        index = itertools.count()
        for table in check.cases:
            for dtype in table.dtypes or self.base.dtypes or ("fp32",):
                # Draws depend on the run's seed and on nothing that the submission can choose.
                place = f"{seed}/{self.id}/{check.id}/{next(index)}"
                yield resolve(self.base.given | table.given, dtype, place, exact=check.exact)

    def step_of_cause(self, cause: str) -> int | None:
        """Number of the step in which the known mistake `cause` (without prefix) is made."""
        for number, step in enumerate(self.steps, start=1):
            if cause in step.causes:
                return number
        return None

    def targets(self, device_name: str) -> Targets:
        """Speed targets for a GPU model (or "cpu"), the stated default where not calibrated."""
        return self.speed.devices.get(device_name, self.speed)

    def benchmarks_on(self, device: str) -> tuple[Case, ...]:
        """Shapes for speed on `device`, the largest first."""
        return tuple(
            _fixed(table, without=("device",))
            for table in self.benchmarks
            if table.device == device
        )

    def memory_cases(self, device: str) -> tuple[Case, Case] | None:
        """The two calls whose memory is measured on `device`; None where none is."""
        table = getattr(self.memory, device) if self.memory else None
        if table is None:
            return None
        case = _fixed(table.case)
        short, long = (dataclasses.replace(case, seqlen_q=n, seqlen_k=n) for n in table.lengths)
        return short, long


def _departs_only_in(check: Check, table: CaseTable) -> None:
    for key, value in table.given.items():
        if key in (*check.varies, "values", "gpu") or table.invalid is not None:
            continue
        lengths = value.choices if isinstance(value, Draw) else (value,)
        if key in ("seqlen", "rows", "cols") and not any(n % ALIGNED for n in lengths):
            continue
        raise ValueError(
            f"checks: {check.id}: cases: {key}: got {value}, but the check varies "
            + (", ".join(check.varies) or "nothing")
        )


def resolve(given: dict[str, Any], dtype: str, place: str, *, exact: bool = False) -> Case:
    """Return the case that the keys `given` describe; drawn sizes depend on `place` alone."""
    given = dict(given)
    given.pop("dtypes", None)
    for key, value in given.items():
        if isinstance(value, Draw):
            digest = hashlib.sha256(f"{place}/{key}".encode()).digest()
            choices = value.choices
            given[key] = choices[int.from_bytes(digest[:8], "little") % len(choices)]
    seqlen = given.pop("seqlen", None)
    if seqlen is not None:
        given.setdefault("seqlen_q", seqlen)
        given.setdefault("seqlen_k", seqlen)
    if "num_q_heads" in given:
        given.setdefault("num_kv_heads", given["num_q_heads"])
    options = tuple((name, given.pop(name)) for name in OPTIONS if name in given)
    return Case(dtype=dtype, exact=exact, options=options, **given)


def _fixed(table: CaseTable, without: tuple[str, ...] = ()) -> Case:
    given = {key: value for key, value in table.given.items() if key not in without}
    (dtype,) = table.dtypes or ("fp32",)
    return resolve(given, dtype, "fixed")


def problem_ids() -> tuple[str, ...]:
    """Ids of all problems, in order."""
    return tuple(sorted(p.parent.name for p in PROBLEMS.glob("p[0-9][0-9]/problem.toml")))


@functools.cache
def load_problem(problem_id: str) -> Problem:
    """Read problems/<problem_id>/problem.toml.

    Raises:
        ManifestError: the file is missing or a key is missing, unknown or out of range.
    """
    return read_problem(PROBLEMS / problem_id / "problem.toml")


def read_problem(path: Path) -> Problem:
    """Read one problem.toml; see `load_problem`."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(problem_ids())
        raise ManifestError(
            f"{path.parent.name}: no such problem; expected one of {known}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path}: not valid TOML: {error}") from None
    try:
        problem = Problem.model_validate(data)
    except ValidationError as error:
        raise ManifestError(f"{path}: {_explained(error)}") from None
    if problem.id != path.parent.name:
        expected = f"expected the folder's name {path.parent.name!r}"
        raise ManifestError(f"{path}: id: got {problem.id!r}, {expected}")
    return problem


def _explained(error: ValidationError) -> str:
    """Return the first error as key, got, expected."""
    errors = error.errors(include_url=False)
    # A table in the place of a number is a Draw with a mistake.
    numbers = [e for e in errors if e["type"] in ("int_type", "float_type")]
    drawn = [e for e in numbers if isinstance(e["input"], dict)]
    first = next(e for e in errors if e not in drawn)
    # Alternatives of a type appear in the path, tables with brackets: they are no keys of the file.
    keys = [str(k) for k in first["loc"] if k not in _NUMBERS and "[" not in str(k)]
    where = ".".join(keys)
    if first["type"] == "missing":
        return f"{where}: got nothing, expected a value"
    if first["type"] == "value_error":
        text = str(first["ctx"]["error"])
        return f"{where}: {text}" if where else text
    noise = r"^(Input|Tuple|String) should (be|have) | after validation.*"
    expected = re.sub(noise, "", first["msg"])
    return f"{where}: got {first['input']!r}, expected {expected}"
