"""What a kernel is translated into: steps over an environment, and what they share in a launch.

An environment is a list with the array of each value at its number; element 0 has the numbers of
its programs. All of them are active: where programs diverge, the environment is split.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from grader.kernel.machine.arrays import Tensor
from grader.kernel.machine.tensors import Memories
from grader.kernel.machine.ttir import (
    AtPlace,
    Block,
    Module,
    NotMeasured,
    Operation,
    Place,
    operations,
)

Env = list[Any]
Run = Callable[[Env], None]
MAX_GRID = (2**31 - 1, 65535, 65535)  # programs along each axis, on any GPU


class Stopped(AtPlace):
    """A launch exceeded its limit of steps or seconds."""


class BadGrid(ValueError):
    """A launch asks for a number of programs along an axis that no GPU takes."""


def check_grid(grid: tuple[int, int, int]) -> None:
    for axis, (size, most) in enumerate(zip(grid, MAX_GRID, strict=True)):
        if not 0 <= size <= most:
            text = f"axis {axis} of the grid has {size} programs, a GPU takes 0 to {most}"
            raise BadGrid(text)


class Failed(NotMeasured):
    """The machine itself failed to translate or run a kernel, which may be right or wrong."""

    def __init__(self, error: Exception) -> None:
        text = " ".join(str(error).split())[:200]
        super().__init__(f"the kernel could not be run: {type(error).__name__}: {text}")


class Asserted(AtPlace, AssertionError):
    """A tl.device_assert found its condition false."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of one launch; `seconds` are CPU time.

    `elements`, of the widest tile, and `value_bytes` are sums over programs that run at once.
    """

    steps: int = 20_000_000
    seconds: float = 60.0
    elements: int = 1 << 19
    value_bytes: int = 1 << 30


@dataclasses.dataclass(eq=False)
class State:
    """One launch while it runs; `observe` gets its events.

    With `tf32`, fp32 dots truncate their operands to TF32 where the kernel lets a GPU do so. With
    `lenient`, a load without `other` returns 0 in masked lanes, and lanes outside their tensor
    count as masked. `exact` is the call's object in exact mode. `wraps` gets the place where an
    offset of 32 bits first wraps around, in a program that was translated for it.
    """

    grid: tuple[int, int, int]
    memories: Memories
    limits: Limits
    observe: Callable[[Any], None] | None = None
    tf32: bool = False
    lenient: bool = False
    exact: Any = None
    wraps: list[Place] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._steps = self.limits.steps
        self._end = time.process_time() + self.limits.seconds

    def take(self, steps: int, place: Place | None = None) -> None:
        """Subtract steps that are about to run from the limit.

        Raises:
            Stopped: the launch exceeds its limit of steps or seconds.
        """
        self._steps -= steps
        if self._steps < 0:
            raise Stopped(f"{self.limits.steps:,} steps of a program", place)
        if time.process_time() > self._end:
            raise Stopped(f"{self.limits.seconds:.3g} s of computing", place)


@dataclasses.dataclass(frozen=True)
class Body:
    """A translated block: its operations, each with its step, and `last`, its terminator."""

    steps: list[tuple[Operation, Run]]
    last: Operation | None = None

    @property
    def yields(self) -> tuple[int, ...]:
        return self.last.operands if self.last else ()

    def run(self, env: Env) -> list[Tensor]:
        """Run the steps in order; return the values that the terminator passes on."""
        for _, run in self.steps:
            run(env)
        return [env[value] for value in self.yields]


class Translation:
    """What the translators of operations share: the module, its bodies, and the launch.

    `constants` are the arrays of values known before a launch, `state` is that of the launch. The
    number of a value's note is `distance` above the value's, 0 in a module without notes.
    `by_blocks` says that the kernel has block pointers or descriptors. `pure` are operations whose
    result depends on their operands alone.
    """

    state: State
    pure: frozenset[str] = frozenset()
    distance = 0
    by_blocks = False

    def __init__(self, module: Module) -> None:
        self.module = module
        self.constants: dict[int, Tensor] = {}
        self.sites: dict[Operation, Any] = {}  # of exact mode

    def body(self, block: Block) -> Body:
        raise NotImplementedError

    def call(self, function: str, env: Env) -> list[Tensor]:
        raise NotImplementedError

    def fresh(self) -> Env:
        """Return an environment with nothing in it but constants."""
        env: Env = [None] * len(self.module.types)
        for value, array in self.constants.items():
            env[value] = array
        return env

    def live(self, *regions: list[Block]) -> list[int]:
        """Return 0 and the values, but for constants, that regions use and do not define."""
        blocks = [block for region in regions for block in region]
        inside = list(operations(blocks))
        blocks += [block for op in inside for region in op.regions for block in region]
        used = {value for op in inside for value in op.uses}
        defined = {value for op in inside for value in op.results}
        defined.update(value for block in blocks for value in block.arguments)
        return [0, *sorted(used - defined - self.constants.keys())]


def cut(env: Env, values: Iterable[int], programs: Any) -> Env:
    """Return an environment of some of the programs, in which `values` are cut to these."""
    part = env.copy()
    for value in values:
        array = env[value]
        if array is not None and array.shape[0] > 1:
            part[value] = array[programs]
    return part


def cut_arrays(arrays: Sequence[Tensor], programs: Any) -> list[Tensor]:
    return [x[programs] if x is not None and x.shape[0] > 1 else x for x in arrays]
