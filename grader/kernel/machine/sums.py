"""Sums that a kernel rounds to 16 bits on their way: accumulators, reductions, what lies in memory.

Read from its text, for every size of input at once. A number that is rounded once, as the weights
are before their product and a result before it is stored, is no such sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from grader.kernel.machine.flow import operations, reached
from grader.kernel.machine.ttir import Module, Operation, Place

_HALF = ("f16", "bf16")
_ADDING = ("arith.addf", "arith.subf")
# What a sum remains one in: of these all operands go on, of others those by number.
_KEEPING = {*_ADDING, "arith.mulf", "arith.divf", "arith.extf", "arith.truncf", "tt.splat"}
_KEEPING |= {"tt.broadcast", "tt.expand_dims", "tt.trans", "tt.reshape", "tt.addptr"}
_BY_NUMBER = {"tt.dot": (2,), "arith.select": (1, 2)}


def rounded_sums(module: Module) -> tuple[Place, ...]:
    """Return the places at which sums are rounded to 16 bits, in the order of the text."""
    if not any(type.element in _HALF or type.pointee in _HALF for type in module.types[1:]):
        return ()
    return tuple(dict.fromkeys(op.place for op in _Sums(module).rounded()))


class _Sums:
    def __init__(self, module: Module) -> None:
        self._module = module
        self._all = [op for blocks in module.functions.values() for op in operations(blocks)]
        self._made: dict[int, list[int]] = {}
        for op in self._all:
            self._follow(op)
        self._adds = [op for op in self._all if op.name in (*_ADDING, "tt.dot")]

    def _follow(self, op: Operation) -> None:
        if op.name in _KEEPING:
            self._made.setdefault(op.results[0], []).extend(op.operands)
        for number in _BY_NUMBER.get(op.name, ()):
            self._made.setdefault(op.results[0], []).append(op.operands[number])
        if op.name == "scf.if":
            for region in op.regions:
                self._join(op.results, region[0].last.operands if region[0].last else ())
        if op.name == "scf.for":
            body = op.regions[0][0]
            self._join(body.arguments[1:], op.operands[3:])
            self._join(op.results, op.operands[3:])
            self._join(op.results, body.last.operands if body.last else ())

    def _join(self, values: Iterable[int], others: Iterable[int]) -> None:
        for value, other in zip(values, others, strict=False):
            self._made.setdefault(value, []).append(other)

    def rounded(self) -> Iterator[Operation]:
        """Yield the operations that round a sum."""
        half = [op for op in self._all if op.results and self._is_half(op.results[0])]
        for op in self._all:
            if op.name == "tt.reduce" and self._is_half(op.operands[0]):
                if any(inner.name in _ADDING for inner in operations(op.regions[0])):
                    yield op
            elif op.name == "tt.atomic_rmw" and "fadd" in op.words:
                if self._module.type(op.operands[0]).pointee in _HALF:
                    yield op
            elif op.name == "tt.store" and self._module.type(op.operands[0]).pointee in _HALF:
                if self._adds_to_memory(op):
                    yield op
            elif op.name == "scf.for":
                yield from self._rounded_in(op, half)

    def _rounded_in(self, loop: Operation, half: list[Operation]) -> Iterator[Operation]:
        """Yield what rounds a value that a loop carries, and adds to in each round."""
        body = loop.regions[0][0]
        for argument, last in zip(
            body.arguments[1:], body.last.operands if body.last else (), strict=False
        ):
            after = reached([last], self._made)
            between = [op for op in half if self._is_between(op, after, argument)]
            if between and any(self._is_between(op, after, argument) for op in self._adds):
                yield between[0]

    def _is_between(self, op: Operation, after: set[int], first: int) -> bool:
        made = self._made.get(op.results[0], [])
        return op.results[0] in after and first in reached(list(made), self._made)

    def _adds_to_memory(self, store: Operation) -> bool:
        """Whether a store adds to what was loaded through the same parameter."""
        pointers = reached([store.operands[0]], self._made)
        sums = [
            op for op in self._adds if op.results[0] in reached([store.operands[1]], self._made)
        ]
        loads = {op.results[0]: op for op in self._all if op.name == "tt.load"}
        added = {value for op in sums for value in reached(list(op.operands), self._made)}
        parameters = set(self._module.functions[self._module.entry][0].arguments)
        return any(
            pointers & parameters & reached([loads[value].operands[0]], self._made)
            for value in added & loads.keys()
        )

    def _is_half(self, value: int) -> bool:
        return self._module.type(value).element in _HALF
