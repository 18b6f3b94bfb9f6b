"""The tables of problem.toml: what each holds, and what its keys may be."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict, model_validator

from grader.spec.cases import CaseTable, Dtype, ListOf, Positive, PositiveNumber, Table

WORK = "work"  # stands for a check while work is counted

Device = Literal["cpu", "cuda"]


class Check(Table):
    """One promise of a problem: a test function, its weight, and its cases.

    The points for correctness are shared by weight, whatever the weights sum to. `varies` lists
    the keys in which its cases may depart from `[base]`; `outputs` what is judged. Where `needs`
    names another check, this one counts only if that one passes. One that `compiles` asks only that
    the kernels of its cases compile, for GPUs that may be absent. One of the `bridge` calls the
    entry point of that table.

    `judges` says what of a call is judged: its `numbers`; in a step before there are any, whether
    it makes a `launch` and outputs of the right shapes, or whether its kernels' `stores` reach
    every row of them; or how many `products` PyTorch computes.
    """

    id: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    weight: PositiveNumber
    varies: ListOf[str]
    cases: Annotated[ListOf[CaseTable], Field(min_length=1)]
    outputs: ListOf[str] = ()
    exact: bool = False
    needs: str | None = None
    compiles: bool = False
    bridge: bool = False
    judges: Literal["numbers", "launch", "stores", "products"] = "numbers"

    @property
    def test_name(self) -> str:
        return "test_" + self.id


class Step(Table):
    """One numbered step of a stub: title, about how many lines, the known mistakes made there.

    `turns_green` are the checks that pass once the steps up to this one are done, and `work` where
    it then earns all its points. `makes` are the outputs that a mistake in this step makes wrong
    while it leaves the others right; of several such steps the one with the fewest is blamed.
    `shapes` are, by name, those of what the step makes: tuples of sizes, in Python, made of names
    of integers, and of names of tensors, which stand for their shapes.
    """

    title: str
    lines: Annotated[int, Field(ge=1)]
    turns_green: ListOf[str] = ()
    causes: ListOf[str] = ()
    makes: ListOf[str] = ()
    shapes: dict[str, str] = Field(default_factory=dict)


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

    devices: dict[str, Targets] = Field(default_factory=dict)


class PointTable(Table):
    """Face value of the four components."""

    correctness: Annotated[int, Field(ge=0)]
    work: Annotated[int, Field(ge=0)]
    speed: Annotated[int, Field(ge=0)]
    memory: Annotated[int, Field(ge=0)]


class RestsOn(Table):
    """The checks that must pass before a component earns points: what its calls rest on."""

    work: ListOf[str] = ()
    speed: ListOf[str] = ()
    memory: ListOf[str] = ()


class Limits(Table):
    """Seconds: of one call, of all calls that do not come back, of all calls together."""

    call_s: PositiveNumber
    lost_s: PositiveNumber
    total_s: PositiveNumber


class Tolerance(Table):
    """Allowed error as a multiple of an honest computation's in the same dtype.

    `fp32` is the precision of fp32 that checks ask for unless they are `exact`: IEEE, or TF32, the
    default of `tl.dot`.
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


class Work(Table):
    """The calls, of `cases`, whose work is counted on the machine.

    Up to `full` times the needed work earns all points, and as much as `naive` none: every tile of
    the `square`, every tile of the `causal` triangle (where leaving out more is the lesson), or so
    many times the needed work.
    """

    naive: Literal["square", "causal"] | PositiveNumber
    full: Annotated[float, Field(ge=1.0, allow_inf_nan=False)]
    cases: Annotated[ListOf[CaseTable], Field(min_length=1)]

    @model_validator(mode="after")
    def _naive_is_more(self) -> Work:
        if isinstance(self.naive, float) and not self.naive > self.full:
            raise ValueError(f"naive: got {self.naive}, expected more than full, {self.full}")
        if any(case.rows is not None for case in self.cases) and isinstance(self.naive, str):
            raise ValueError(f"naive: got {self.naive!r}, expected a number: rows have no tiles")
        return self


class Bridge(Table):
    """A second entry point, the first step of a problem, with oracle and plain case of its own."""

    entry: str
    signature: str
    oracle: str
    language: Literal["pytorch", "triton"]
    returns: Annotated[ListOf[str], Field(min_length=1)]
    base: CaseTable
    step: int = 1
