"""The events of a launch, which observers get in the order in which they happen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from grader.kernel.machine.arrays import Tensor
from grader.kernel.machine.tensors import Memory
from grader.kernel.machine.ttir import Operation, Type

LOAD, STORE, ATOMIC = "load", "store", "atomic"


@dataclasses.dataclass(frozen=True)
class Launched:
    """A launch begins; `numbers` are the whole numbers among its arguments, by name."""

    name: str
    grid: tuple[int, int, int]
    memories: tuple[Memory, ...]
    numbers: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def programs(self) -> int:
        return math.prod(self.grid)


@dataclasses.dataclass(frozen=True)
class Access:
    """Programs load, store or update elements of one tensor, all of them inside it.

    Only a tensor that the kernel may store to has these events. `index` and `value` have an element
    for each active lane, `programs` the number of the lane's program.
    """

    kind: str
    op: Operation
    memory: Memory
    programs: Tensor
    index: Tensor
    value: Tensor


@dataclasses.dataclass(frozen=True)
class RoundEnded:
    """A round of a loop is over; `values` are those of the student's variables, by their names.

    Each value is an array, its type and its note; the loop carries the names in `carried` into the
    next round.
    """

    op: Operation
    programs: Tensor
    values: dict[str, tuple[Tensor, Type, Any]]
    carried: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Multiplied:
    """A dot is about to multiply `left` and `right`."""

    op: Operation
    programs: Tensor
    left: Tensor
    right: Tensor


@dataclasses.dataclass(frozen=True)
class Computed:
    """An operation has run; what an observer returns becomes the note of its results.

    `operands` and `results` are tiles of all programs, `notes` belong to the operands, `types` to
    operands and results. `makers` are the operations that made the operands, None for an argument
    of a block; `loops` are the loops around the operation, the innermost first. `used` says whether
    the kernel uses a result. Accesses to memory are events of this kind, too.
    """

    op: Operation
    programs: Tensor
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    notes: tuple[Any, ...]
    types: tuple[Type, ...]
    makers: tuple[Operation | None, ...]
    loops: tuple[Operation, ...]
    used: bool = True


@dataclasses.dataclass(frozen=True)
class Flowed:
    """A launch or an operator is over: its `targets` may hold results of its `sources`.

    `line` is that of an operator in the submission, 0 for a launch.
    """

    sources: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]
    line: int = 0


Event = Launched | Access | RoundEnded | Multiplied | Computed | Flowed
