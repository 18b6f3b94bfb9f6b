"""Notes: what an observer knows of a value beyond its numbers, stored beside the value.

`annotate` changes a module before its translation. Behind each operation that an observer may want
to see it inserts another one, which asks the observer for notes of the results; loops and branches
then pass on the notes of the values that they pass on. So a note follows its value, and the machine
splits and merges it with the value's programs. The note is None where nothing is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grader.kernel.machine import events, kinds
from grader.kernel.machine.arrays import Tensor
from grader.kernel.machine.steps import Env, Run, Translation
from grader.kernel.machine.ttir import Block, Module, Operation, Type

ASKING = "machine.note"
NOTE = Type((), "i1")  # compared by identity
_OF_INTEGERS = ("tt.dot", "arith.muli", "tt.mulhiui")  # products are seen of integers too
_SEEN = (*kinds.ACCESSES, *_OF_INTEGERS, *kinds.COMBINING)


def together(notes: Sequence[Any], counts: Sequence[int], place: Tensor) -> Any:
    """Merge the notes of parts, which have `counts` programs each, into one.

    `place` has each program's position in the parts, one behind the other. The method of this name
    of the first note merges them all; any note may be None.
    """
    first = next((note for note in notes if note is not None), None)
    return None if first is None else first.together(notes, counts, place)


class Asking(Operation):
    """Asks the observer for notes of the results of operation `of`."""

    of: Operation
    makers: tuple[Operation | None, ...]
    loops: tuple[Operation, ...]
    noted: tuple[int, ...]  # the values whose notes stand for the operands
    used: bool


def annotate(module: Module) -> int:
    """Annotate a module; return the distance from the number of a value to that of its note."""
    distance = len(module.types)
    used = module.used
    followed = {v for v, type in enumerate(module.types) if type.is_float and not type.pointee}

    makers: dict[int, Operation] = {}

    def notes(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(value + distance for value in values if value in followed)

    def compared(value: int, maker: Operation | None) -> int:
        """Return the first operand of a comparison, which has a note; else the value itself."""
        return maker.operands[0] if maker and maker.name == "arith.cmpf" else value

    def visit(blocks: list[Block], loops: tuple[Operation, ...] = ()) -> None:
        for number, block in enumerate(blocks):
            if block.label and number:
                block.arguments += notes(block.arguments)
            operations = block.operations
            block.operations = []
            for op in operations:
                block.operations.append(op)
                makers.update(dict.fromkeys(op.results, op))
                op.targets = tuple((t, (*values, *notes(values))) for t, values in op.targets)
                if op.name in kinds.CONTROL:
                    for region in op.regions:
                        first = region[0]
                        first.arguments += notes(first.arguments)
                        visit(region, (op, *loops) if op.name in kinds.LOOPS else loops)
                    op.results += notes(op.results)
                if op.name in (*kinds.CONTROL, *kinds.PASSING):
                    # Bounds of a loop and conditions are no floats, and add no notes.
                    op.operands += notes(op.operands)
                elif op.name in _SEEN or any(value in followed for value in op.results):
                    asking = Asking(ASKING, notes(op.results), (), op.place)
                    asking.of, asking.loops = op, loops
                    asking.used = not used.isdisjoint(op.results)
                    asking.makers = tuple(map(makers.get, op.operands))
                    asking.noted = tuple(map(compared, op.operands, asking.makers))
                    asking.operands = (*op.operands, *op.results, *notes(asking.noted))
                    block.operations.append(asking)

    for blocks in module.functions.values():
        visit(blocks)
    module.types += [NOTE] * distance
    module.names += [""] * distance
    return distance


def translate(op: Operation, translation: Translation) -> Run:
    """Translate an operation that `annotate` inserted."""
    assert isinstance(op, Asking)
    operands, results, distance = op.of.operands, op.of.results, translation.distance
    types = tuple(translation.module.types[value] for value in (*operands, *results))

    def run(env: Env) -> None:
        observe = translation.state.observe
        if observe is None:
            return
        note = observe(
            events.Computed(
                op.of,
                env[0],
                tuple(env[value] for value in operands),
                tuple(env[value] for value in results),
                tuple(env[value + distance] for value in op.noted),
                types,
                op.makers,
                op.loops,
                op.used,
            )
        )
        for value in op.results:
            env[value] = note

    return run
