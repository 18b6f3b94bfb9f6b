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
            for handed in (op.operands[3:], body.last.operands if body.last else ()):
                self._join(body.arguments[1:], handed)
                self._join(op.results, handed)
        if op.name == "scf.while":
            condition, body = op.regions[0][0], op.regions[1][0]
            handed = condition.last.operands[1:] if condition.last else ()
            self._join(condition.arguments, op.operands)
            self._join(condition.arguments, body.last.operands if body.last else ())
            self._join(body.arguments, handed)
            self._join(op.results, handed)

    def _join(self, values: Iterable[int], others: Iterable[int]) -> None:
        for value, other in zip(values, others, strict=False):
            self._made.setdefault(value, []).append(other)

    def rounded(self) -> Iterator[Operation]:
        """Yield the operations that round a sum."""
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
            elif op.results and self._is_half(op.results[0]) and self._is_added_to_again(op):
                yield op

    def _is_added_to_again(self, op: Operation) -> bool:
        """Whether an operation adds to what is rounded, that added to it before: in a loop.

        In a loop that is written out it is another one at its place; three terms of one line are no
        such loop, and between them no number is cast.
        """
        before = reached([op.results[0]], self._made)
        earlier = [add for add in self._adds if add.results[0] in before]
        places = {add.place for add in earlier} if op.name == "arith.truncf" else set()
        return any(
            (add in earlier or add.place in places)
            and op.results[0] in reached(self._added(add), self._made)
            for add in self._adds
        )

    def _added(self, add: Operation) -> list[int]:
        return list(self._made.get(add.results[0], ()))

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
