"""Reads problem.toml, the only place for a problem's title, points, steps, cases and targets.

A check departs from the plain `[base]` case in what its `varies` lists and in nothing else, so that
a mistake costs the checks of its own subject; the reader refuses a case that sets more.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from grader.spec.cases import Case, CaseTable, Draw, ListOf, Table, fixed, resolve
from grader.spec.problem_tables import (
    WORK,
    BenchmarkTable,
    Bridge,
    Check,
    Limits,
    Memory,
    PointTable,
    RestsOn,
    Speed,
    Step,
    Targets,
    Tolerance,
    Work,
)

ROOT = Path(__file__).resolve().parents[2]
PROBLEMS = ROOT / "problems"
GIVEN = PROBLEMS / "given"  # what stubs and answers import
ALIGNED = 128  # a length that is no multiple of it is a subject of its own
_NUMBERS = ("int", "constrained-int", "float")


class ManifestError(Exception):
    """A TOML file of the set that cannot be used; the message names file, key, got and expected."""


class Problem(Table):
    """One problem as problem.toml describes it."""

    id: str
    title: str
    file: str
    entry: str
    signature: str
    oracle: str  # the function of reference.naive: the truth in fp64, and the baseline for speed
    language: Literal["pytorch", "triton"]
    returns: Annotated[ListOf[str], Field(min_length=1)]
    gradients: ListOf[str] = ()
    given: ListOf[str] = ()  # modules of the package `given` that a submission may import
    given_code: str = ""  # the hash of the stub outside of its steps: see `given_digest`
    given_code_before: ListOf[str] = ()  # of stubs of earlier releases, which still work
    bonus: bool
    points: PointTable
    rests_on: RestsOn
    steps: Annotated[ListOf[Step], Field(min_length=1)]
    limits: Limits
    tolerance: Tolerance
    base: CaseTable
    bridge: Bridge | None = None
    checks: Annotated[ListOf[Check], Field(min_length=1)]
    work: Work | None = None
    benchmarks: ListOf[BenchmarkTable] = ()
    speed: Speed
    memory: Memory | None = None

    @model_validator(mode="after")
    def _checks_depart_in_their_subject_alone(self) -> Problem:
        ids = [check.id for check in self.checks]
        if (self.work is None) != (self.points.work == 0):
            raise ValueError("work: got points without a table [work], or a table without points")
        if WORK in ids:
            raise ValueError(f"checks: got the id {WORK!r}, which is that of the count of work")
        for check in self.checks:
            where = f"checks: {check.id}"
            if ids.count(check.id) > 1:
                raise ValueError(f"{where}: got two checks of this name")
            if check.needs is not None and check.needs not in ids[: ids.index(check.id)]:
                raise ValueError(f"{where}: needs: got {check.needs!r}, expected an earlier check")
            if check.bridge and self.bridge is None:
                raise ValueError(f"{where}: bridge: got true, but there is no table [bridge]")
            view = self.of(check)
            known = (*view.returns, *view.gradients)
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
        for number, step in enumerate(self.steps, start=1):
            unknown = [name for name in step.turns_green if name not in (*ids, WORK)]
            if unknown:
                expected = f"expected some of {', '.join((*ids, WORK))}"
                raise ValueError(f"steps: {number}: turns_green: got {unknown[0]!r}, {expected}")
        for component in RestsOn.model_fields:
            self._rests_on_checks(component)
        return self

    def _rests_on_checks(self, component: str) -> None:
        named = getattr(self.rests_on, component)
        own = [check.id for check in self.checks if not check.bridge]
        unknown = next((id for id in named if id not in own), None)
        if unknown is not None:
            expected = f"expected some of {', '.join(own)}"
            raise ValueError(f"rests_on: {component}: got {unknown!r}, {expected}")
        if bool(named) != bool(self.points_of(component)):
            got = "no check for a component with points" if not named else "checks, but no points"
            raise ValueError(f"rests_on: {component}: got {got}")

    def of(self, check: Check) -> Problem:
        """Return the problem as `check` sees it: with the entry point that it calls."""
        if not check.bridge or self.bridge is None:
            return self
        own = {name: getattr(self.bridge, name) for name in Bridge.model_fields}
        return self.model_copy(update=own | {"gradients": ()})

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors that the entry point needs."""
        parameters = self.signature.partition("(")[2].partition(")")[0].partition("*")[0]
        return tuple(name.strip() for name in parameters.split(",") if name.strip())

    @property
    def total_points(self) -> int:
        return sum(self.points_of(name) for name in PointTable.model_fields)

    def points_of(self, component: str) -> int:
        return getattr(self.points, component)

    def possible_on(self, device: str, *, quick: bool = False) -> int:
        """Return the points that a grading on `device` can give; `quick` measures nothing."""
        measured = bool(self.benchmarks_on(device)) and not quick
        left_out = () if measured else ("speed", "memory")
        return self.total_points - sum(map(self.points_of, left_out))

    @property
    def uses_triton(self) -> bool:
        return self.language == "triton"

    @property
    def folder(self) -> Path:
        return PROBLEMS / self.id

    def check(self, check_id: str) -> Check:
        """Return the check called `check_id`."""
        for check in (*self.checks, self.counted):
            if check is not None and check.id == check_id:
                return check
        known = ", ".join(check.id for check in self.checks)
        raise ManifestError(f"{self.id}: got no check {check_id!r} in problem.toml, only {known}")

    def judged(self, check: Check) -> tuple[str, ...]:
        """Outputs that `check` judges: by default the first returned, or dq, dk and dv."""
        if check.bridge:
            return check.outputs or self.of(check).returns
        return check.outputs or self.gradients[:3] or self.returns[:1]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The first output, and dq, dk and dv where there are gradients."""
        return (*self.returns[:1], *self.gradients[:3])

    def cases(self, check: Check, seed: str) -> dict[int, Case]:
        """Cases of `check` by their number, sizes drawn from `seed`."""
        view, cases = self.of(check), dict[int, Case]()
        for table in check.cases:
            for dtype in table.dtypes or view.base.dtypes or ("fp32",):
                # Draws depend on the run's seed and on nothing that the submission can choose.
                place = f"{seed}/{self.id}/{check.id}/{len(cases)}"
                given = view.base.given | table.given
                given |= {"gpu": True} if dtype == "bf16" else {}
                cases[len(cases)] = resolve(given, dtype, place, exact=check.exact)
        return cases

    def asks_ieee(self, case: Case) -> bool:
        """Whether TF32 is too coarse for the fp32 numbers of a case."""
        return case.dtype == "fp32" and (case.exact or self.tolerance.fp32 == "ieee")

    @property
    def counted(self) -> Check | None:
        """The calls in which work is counted, as a check that is none of `checks`."""
        if self.work is None:
            return None
        cases = tuple(c.model_copy(update={"dtypes": ("fp32",)}) for c in self.work.cases)
        return Check(id=WORK, weight=1.0, varies=(), cases=cases, outputs=self.outputs)

    def work_cases(self, seed: str) -> tuple[Case, ...]:
        """The calls in which work is counted, sizes drawn from `seed`."""
        return tuple(self.cases(self.counted, seed).values()) if self.counted else ()

    def first_step_behind(self, checks: Collection[str]) -> tuple[int, str] | None:
        """Return the first step that turns one of `checks` green, and that check; None if none."""
        for number, step in enumerate(self.steps, start=1):
            for check in step.turns_green:
                if check in checks:
                    return number, check
        return None

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
            fixed(table, without=("device",)) for table in self.benchmarks if table.device == device
        )

    def memory_cases(self, device: str) -> tuple[Case, Case] | None:
        """The two calls whose memory is measured on `device`; None where none is."""
        table = getattr(self.memory, device) if self.memory else None
        if table is None:
            return None
        case = fixed(table.case)
        short, long = (dataclasses.replace(case, seqlen_q=n, seqlen_k=n) for n in table.lengths)
        return short, long


def _departs_only_in(check: Check, table: CaseTable) -> None:
    for key, value in table.given.items():
        if key in (*check.varies, "values", "gpu") or table.invalid is not None:
            continue
        lengths = value.choices if isinstance(value, Draw) else (value,)
        if key in ("seqlen", "rows", "cols") and not any(n % ALIGNED for n in lengths):
            continue
        drawn = isinstance(value, Draw)
        got = value.model_dump(by_alias=True, exclude_defaults=True) if drawn else value
        varies = ", ".join(check.varies) or "nothing"
        raise ValueError(
            f"checks: {check.id}: cases: {key}: got {got}, but the check varies {varies}; "
            f"expected {key} in `varies` too, or the {key} of [base]"
        )


def problem_ids() -> tuple[str, ...]:
    return tuple(sorted(p.parent.name for p in PROBLEMS.glob("p[0-9][0-9]/problem.toml")))


def examples(*wanted: str) -> str:
    """Return those of `wanted` that this release has, else an early problem."""
    here = problem_ids()
    return ",".join([id for id in wanted if id in here] or here[:2][-1:])


def problems_named(text: str | None, option: str = "--only") -> tuple[str, ...]:
    """Read a list of problems; p4, P04 and 4 are p04, and blanks serve as well as commas.

    Raises:
        ManifestError: it names no problem, or an unknown one.
    """
    known = problem_ids()
    if text is None:
        return known
    wanted = []
    for part in text.replace(",", " ").split():
        number = re.fullmatch(r"[pP]?0*(\d{1,2})", part)
        wanted.append(f"p{number[1]:0>2}" if number else part)
    unknown = [part for part in wanted if part not in known]
    if unknown or not wanted:
        raise ManifestError(
            f"{option}: got {', '.join(unknown) or 'nothing'}, expected some of {', '.join(known)}"
        )
    return tuple(p for p in known if p in wanted)


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
        raise ManifestError(f"{path}: {explained(error)}") from None
    if problem.id != path.parent.name:
        expected = f"expected the folder's name {path.parent.name!r}"
        raise ManifestError(f"{path}: id: got {problem.id!r}, {expected}")
    return problem


def explained(error: ValidationError) -> str:
    """Return the first error as key, got, expected."""
    errors = error.errors(include_url=False)
    # A table in the place of a number is a faulty Draw: that it is no number says nothing.
    numbers = [e for e in errors if e["type"] in ("int_type", "float_type")]
    drawn = [e for e in numbers if isinstance(e["input"], dict)]
    first = next(e for e in errors if e not in drawn)
    # pydantic's paths hold alternatives of a type, tables with brackets: no keys of the file.
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
