"""Reads problem.toml, the only place for a problem's title, points, steps, cases and targets."""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grader.model import COMPONENTS
from grader.validate import keys, one_of, positive, typed, whole

ROOT = Path(__file__).resolve().parent.parent
PROBLEMS = ROOT / "problems"
DTYPES = ("fp32", "fp16", "bf16")
OPTIONS = (
    "is_causal",
    "softmax_scale",
    "window_size",
    "num_sink_tokens",
    "tile_q",
    "tile_k",
)
LAYOUTS = ("dense", "packed_qkv", "bshd", "padded", "transposed", "expanded")
VALUES = ("normal", "offset", "peaked", "needle", "large")
_SIZES = ("batch", "num_q_heads", "num_kv_heads", "seqlen", "seqlen_q", "seqlen_k", "head_dim")
_SIZES += ("rows", "cols")
_KINDS = ("layout", "dout_layout", "values", "sink_logits", "sink_logits_values")
_REQUIRED = (
    *("id", "title", "file", "entry", "signature", "returns", "bonus", "idea"),
    *("points", "steps", "limits", "tolerance", "checks", "speed"),
)


class ManifestError(Exception):
    """A problem.toml that cannot be used; the message names file, key, got and expected."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One set of inputs for one check: sizes, dtype, layout, kind of values and options."""

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
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword options that are passed to the entry point."""
        return dict(self.options)

    def __str__(self) -> str:
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
            size.append("sink_logits")
        size.append(self.dtype)
        defaults = (("layout", "dense"), ("dout_layout", "dense"), ("values", "normal"))
        for name, default in defaults:
            if getattr(self, name) != default:
                size.append(f"{name}={getattr(self, name)}")
        if self.invalid:
            size.append(f"invalid={self.mutate or self.invalid}")
        return " ".join(size)


@dataclasses.dataclass(frozen=True)
class Check:
    """One promise of a problem: a test function, its weight, its step and its cases."""

    id: str
    step: int | None
    weight: int
    cases: tuple[Case, ...]

    @property
    def test_name(self) -> str:
        """Name of the function in test_pNN.py."""
        return "test_" + self.id

    def cases_on(self, device: str, *, triton: bool) -> tuple[Case, ...]:
        """Cases that run on `device`: without a GPU, Triton problems have no bf16 cases."""
        if device == "cuda" or not triton:
            return self.cases
        return tuple(case for case in self.cases if case.dtype != "bf16")


@dataclasses.dataclass(frozen=True)
class Step:
    """One numbered step of a stub: title, about how many lines, and a short hint."""

    title: str
    lines: int
    hint: str


@dataclasses.dataclass(frozen=True)
class Targets:
    """Speed-up over naive PyTorch at which points begin (`floor`) and are full (`full`)."""

    floor: float
    full: float


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A shape for speed and memory on one kind of device."""

    device: str
    case: Case


@dataclasses.dataclass(frozen=True)
class Problem:
    """One problem as problem.toml describes it."""

    id: str
    title: str
    file: str
    entry: str
    signature: str
    returns: tuple[str, ...]
    gradients: tuple[str, ...]
    bonus: bool
    idea: str
    points: dict[str, int]
    steps: tuple[Step, ...]
    call_timeout_s: float
    tolerance_factor: float
    checks: tuple[Check, ...]
    benchmarks: tuple[Benchmark, ...]
    speed: dict[str, Targets]
    memory_lengths: dict[str, tuple[int, int]]
    memory_linear_factor: float

    @property
    def total_points(self) -> int:
        """Face value of the problem."""
        return sum(self.points.values())

    @property
    def uses_triton(self) -> bool:
        """Whether the answer is Triton kernels; p01 is PyTorch alone."""
        return self.id != "p01"

    @property
    def folder(self) -> Path:
        """The problem's folder in this repository."""
        return PROBLEMS / self.id

    def check(self, check_id: str) -> Check:
        """Return the check called `check_id`."""
        for check in self.checks:
            if check.id == check_id:
                return check
        raise ManifestError(
            f"{self.id}: no check called {check_id!r} in problem.toml; it has "
            + ", ".join(check.id for check in self.checks)
        )

    def targets(self, device_name: str) -> Targets:
        """Speed targets for a GPU model (or "cpu"), the stated default where not calibrated."""
        return self.speed.get(device_name, self.speed["default"])

    def benchmarks_on(self, device: str) -> tuple[Benchmark, ...]:
        """Shapes for `device`, the largest first."""
        return tuple(b for b in self.benchmarks if b.device == device)


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
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{path}: not valid TOML: {error}") from None
    try:
        return _problem(data, path)
    except (KeyError, TypeError, ValueError) as error:
        raise ManifestError(f"{path}: {error}") from error


def _problem(data: dict[str, Any], path: Path) -> Problem:
    keys("", data, _REQUIRED, ("gradients", "benchmarks", "memory"))
    if data["id"] != path.parent.name:
        raise ValueError(f"id: got {data['id']!r}, expected the folder's name {path.parent.name!r}")
    for name in ("title", "file", "entry", "signature", "idea"):
        typed(name, data[name], str)
    typed("bonus", data["bonus"], bool)
    keys("points", data["points"], COMPONENTS)
    keys("limits", data["limits"], ("call_timeout_s",))
    keys("tolerance", data["tolerance"], ("factor",))
    speed = dict(data["speed"])
    devices = speed.pop("devices", {})
    memory = dict(data.get("memory", {}))
    keys("memory", memory, (), ("lengths", "linear_factor", "device_lengths"))
    lengths = {"default": memory["lengths"]} if memory.get("lengths") else {}
    lengths |= memory.get("device_lengths", {})
    num_steps = len(data["steps"])
    return Problem(
        id=data["id"],
        title=data["title"],
        file=data["file"],
        entry=data["entry"],
        signature=data["signature"],
        returns=tuple(data["returns"]),
        gradients=tuple(data.get("gradients", ())),
        bonus=data["bonus"],
        idea=data["idea"],
        points={n: whole(f"points.{n}", data["points"][n], 0) for n in COMPONENTS},
        steps=tuple(_step(number, entry) for number, entry in enumerate(data["steps"], start=1)),
        call_timeout_s=positive("limits.call_timeout_s", data["limits"]["call_timeout_s"]),
        tolerance_factor=positive("tolerance.factor", data["tolerance"]["factor"]),
        checks=tuple(_check(entry, num_steps) for entry in data["checks"]),
        benchmarks=tuple(_benchmark(entry) for entry in data.get("benchmarks", ())),
        speed={
            "default": _targets("speed", speed),
            **{name: _targets(f"speed.devices.{name}", table) for name, table in devices.items()},
        },
        memory_lengths={name: _pair(f"memory lengths, {name}", v) for name, v in lengths.items()},
        memory_linear_factor=positive("memory.linear_factor", memory.get("linear_factor", 1.5)),
    )


def _step(number: int, entry: dict[str, Any]) -> Step:
    where = f"step {number}"
    keys(where, entry, ("title", "lines", "hint"))
    lines = whole(f"{where}: lines", entry["lines"], 1)
    return Step(typed("title", entry["title"], str), lines, typed("hint", entry["hint"], str))


def _targets(where: str, table: dict[str, Any]) -> Targets:
    keys(where, table, ("floor", "full"))
    targets = Targets(*(positive(f"{where}.{name}", table[name]) for name in ("floor", "full")))
    if not targets.floor < targets.full:
        raise ValueError(f"{where}.full: got {targets.full}, expected more than {targets.floor}")
    return targets


def _pair(where: str, values: Any) -> tuple[int, int]:
    if not isinstance(values, list) or len(values) != 2:
        raise ValueError(f"{where}: got {values!r}, expected two lengths")
    return whole(where, values[0], 1), whole(where, values[1], 1)


def _check(entry: dict[str, Any], num_steps: int) -> Check:
    where = f"check {entry.get('id', '?')}"
    keys(where, entry, ("id", "weight", "cases"), ("step",))
    step = entry.get("step")
    if step is not None and not 1 <= step <= num_steps:
        raise ValueError(f"{where}: step: got {step}, expected 1 to {num_steps}")
    weight = whole(f"{where}: weight", entry["weight"], 1)
    try:
        cases = tuple(case for table in entry["cases"] for case in expand_cases(table))
    except ValueError as error:
        raise ValueError(f"{where}: cases: {error}") from None
    if not cases:
        raise ValueError(f"{where}: cases: got none, expected at least one")
    return Check(id=entry["id"], step=step, weight=weight, cases=cases)


def _benchmark(entry: dict[str, Any]) -> Benchmark:
    table = dict(entry)
    device = table.pop("device", "cuda")
    one_of("benchmarks: device", device, ("cuda", "cpu"))
    if "dtype" not in table:
        raise ValueError("benchmarks: got no dtype, expected one")
    table["dtypes"] = [table.pop("dtype")]
    try:
        (case,) = expand_cases(table)
    except ValueError as error:
        raise ValueError(f"benchmarks: {error}") from None
    return Benchmark(device=device, case=case)


def expand_cases(table: dict[str, Any]) -> Iterator[Case]:
    """Yield one `Case` for each dtype of a case table of problem.toml."""
    known = (*_SIZES, *_KINDS, *OPTIONS, "dtypes", "invalid", "mutate")
    keys("", table, (), known)
    table = dict(table)
    dtypes = table.pop("dtypes", ["fp32"])
    smallest = 0 if "invalid" in table else 1  # an empty tensor is an argument to refuse
    for name in _SIZES:
        if name in table:
            whole(name, table[name], smallest)
    options = tuple((name, table.pop(name)) for name in OPTIONS if name in table)
    seqlen = table.pop("seqlen", None)
    if seqlen is not None:
        table["seqlen_q"] = table["seqlen_k"] = seqlen
    table.setdefault("num_kv_heads", table.get("num_q_heads", 1))
    one_of("layout", table.get("layout", "dense"), LAYOUTS)
    one_of("dout_layout", table.get("dout_layout", "dense"), LAYOUTS)
    one_of("values", table.get("values", "normal"), VALUES)
    for dtype in dtypes:
        one_of("dtypes", dtype, DTYPES)
        yield Case(dtype=dtype, options=options, **table)
