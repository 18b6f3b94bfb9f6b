"""Whether a loop uses what it computed in an earlier round."""

from __future__ import annotations

from grader.kernel.machine import events
from grader.kernel.machine.notes import ASKING
from grader.kernel.machine.ttir import Block, Operation

_HANDING_ON = ("scf.yield", "scf.condition")


class Uses:
    """What each loop uses, by its operation."""

    def __init__(self) -> None:
        self._known: dict[Operation, set[int]] = {}

    def is_replaced(self, event: events.Computed) -> bool:
        """Whether nothing in the loop takes up a result, which the next round's then replaces."""
        if not event.loops:
            return False
        loop, (result,) = event.loops[0], event.op.results
        arguments, last = loop.regions[0][0].arguments, loop.regions[-1][0].last
        handed = last.operands if last and last.name in _HANDING_ON else ()
        if loop not in self._known:
            self._known[loop] = set()
            for region in loop.regions:
                _add(region, self._known[loop])
        first = len(arguments) - len(handed)  # the index of a `for` is the first of its arguments
        carried = {arguments[first + n] for n, value in enumerate(handed) if value == result}
        if len(loop.regions) > 1:  # a `while` hands its arguments from the condition to the body
            condition, body = loop.regions[0][0].last, loop.regions[1][0].arguments
            passed = zip(condition.operands[1:], body, strict=False) if condition else ()
            carried |= {inner for value, inner in passed if value in carried}
        return bool(carried) and self._known[loop].isdisjoint({result, *carried})


def _add(blocks: list[Block], used: set[int]) -> None:
    for block in blocks:
        for op in block.operations:
            if op.name != ASKING and op.name not in _HANDING_ON:
                used.update(op.operands)
            for region in op.regions:
                _add(region, used)
