"""Where a kernel's values come from, as its text tells: offsets of pointers, pointers of stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grader.kernel.machine import elementwise
from grader.kernel.machine.ttir import Module, Operation, operations

_MAKING_OFFSETS = {name for name in elementwise.NAMES if name.startswith("arith.")}
_MAKING_OFFSETS |= {"tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans", "tt.reshape"}
STORES = ("tt.store", "tt.atomic_rmw", "tt.atomic_cas")
_FROM_ANYWHERE = ("tt.load", "tt.int_to_ptr")


def reached(wanted: list[int], made: dict[int, list[int]]) -> set[int]:
    """Return the values from which those that are wanted are made, and these."""
    found: set[int] = set()
    while wanted:
        value = wanted.pop()
        if value not in found:
            found.add(value)
            wanted += made.get(value, ())
    return found


def handed(op: Operation) -> Iterator[tuple[int, int]]:
    """Yield the values that a loop or a branch gives, each with one that it may have come from."""
    pairs: list[tuple[Sequence[int], Sequence[int]]] = []
    lasts = [region[0].last.operands if region[0].last else () for region in op.regions]
    if op.name == "scf.if":
        pairs = [(op.results, last) for last in lasts]
    elif op.name == "scf.for":
        carried = op.regions[0][0].arguments[1:]
        pairs = [(to, given) for to in (carried, op.results) for given in (op.operands[3:], *lasts)]
    elif op.name == "scf.while":
        before, body = (region[0].arguments for region in op.regions)
        pairs = [(before, op.operands), (before, lasts[1])]
        pairs += [(body, lasts[0][1:]), (op.results, lasts[0][1:])]
    for values, others in pairs:
        yield from zip(values, others, strict=False)


def offsets(module: Module) -> frozenset[int]:
    """Return the values of 32 bits that offsets of pointers are made of, through loops too."""
    made: dict[int, list[int]] = {}
    wanted: list[int] = []
    for op in module.operations:
        if op.name == "tt.addptr":
            wanted.append(op.operands[1])
        if op.name in _MAKING_OFFSETS:
            made.setdefault(op.results[0], []).extend(op.operands)
        for value, other in handed(op):
            made.setdefault(value, []).append(other)
    found = reached(wanted, made)
    return frozenset(value for value in found if module.type(value).element == "i32")


def stored_to(module: Module) -> frozenset[int]:
    """Return the parameters of the kernel through which it may store; too many rather than few.

    What loops, branches and calls hand on is taken for all that any of them is handed.
    """
    entry = module.functions[module.entry][0].arguments
    handed, wanted, made = -1, [], {-1: []}

    def pointers(values: tuple[int, ...]) -> list[int]:
        return [value for value in values if value > 0 and module.type(value).pointee]

    for name, blocks in module.functions.items():
        for number, block in enumerate(blocks):
            if number or name != module.entry:
                made.update((value, [handed]) for value in pointers(block.arguments))
        for op in operations(blocks):
            if op.name in STORES:
                wanted.append(op.operands[0])
            inner = [block for region in op.regions for block in region]
            is_plain = not inner and op.name != "tt.call"
            if not is_plain or not op.results:  # an end hands on, too
                made[handed] += pointers(op.uses)
            for block in inner:
                made.update((value, [handed]) for value in pointers(block.arguments))
            for value in pointers(op.results):
                if op.name in _FROM_ANYWHERE:
                    return frozenset(entry)
                made[value] = pointers(op.operands) if is_plain else [handed]
    return frozenset(reached(wanted, made) & set(entry))
