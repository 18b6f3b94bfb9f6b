"""What observers of a launch get, in the order in which it happens."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from grader.kernel.machine.arrays import Tensor
from grader.kernel.machine.tensors import Memory
from grader.kernel.machine.ttir import Operation, Type

LOAD, STORE, ATOMIC = "load", "store", "atomic"


@dataclasses.dataclass(frozen=True)
class Launched:
    """A launch begins."""

    name: str
    grid: tuple[int, int, int]
    memories: tuple[Memory, ...]

    @property
    def programs(self) -> int:
        return math.prod(self.grid)


@dataclasses.dataclass(frozen=True)
class Access:
    """Programs load, store or update elements of one tensor, all of them inside it.

    There is none of a tensor that the kernel does not store to.

    `index` and `value` have a place for each active lane, `programs` says whose it is.
    """

    kind: str
    op: Operation
    memory: Memory
    programs: Tensor
    index: Tensor
    value: Tensor


@dataclasses.dataclass(frozen=True)
class Wrapped:
    """An offset of 32 bits wrapped around; `wide` is what came out in 64."""

    op: Operation
    wide: Tensor
    programs: Tensor


@dataclasses.dataclass(frozen=True)
class RoundEnded:
    """A round of a loop is over; `values` are those of the student's variables, by their names.

    Of each there are its array, its type and its note; `carried` are the names that go on into the
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
    """An operation has computed; what an observer returns becomes the note of its results.

    `operands` and `results` are tiles of all programs, `notes` are those of the operands, `types`
    those of operands and results. `makers` are the operations that made the operands, None of what
    a loop or a branch handed on; `loops` are those around it, the innermost first. Accesses to
    memory are events of this kind too. `used` says whether the kernel has a use for a result.
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
    """A launch or an operator is over: what lies in its `targets` may be made of its `sources`."""

    sources: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]


Event = Launched | Access | Wrapped | RoundEnded | Multiplied | Computed | Flowed
