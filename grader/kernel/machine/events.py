"""What observers of a launch are told, in the order in which it happens."""

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
        """How many programs run."""
        return math.prod(self.grid)


@dataclasses.dataclass(frozen=True)
class Access:
    """Programs load, store or update elements of one tensor, all of them inside it.

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
class Round:
    """Round number `number` of a loop begins; `carried` are its values, by the student's names."""

    op: Operation
    number: int
    programs: Tensor
    carried: dict[str, Tensor]


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

    `operands` and `results` are whole tiles of all programs, `notes` are those of the operands, and
    `types` are of the operands and the results, `makers` the operations that made the operands, None
    of what a loop or a branch handed on. Accesses to memory are told in this way too.
    """

    op: Operation
    programs: Tensor
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    notes: tuple[Any, ...]
    types: tuple[Type, ...]
    makers: tuple[Operation | None, ...]


Event = Launched | Access | Wrapped | Round | Multiplied | Computed
