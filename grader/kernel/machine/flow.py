"""The data flow of a kernel's text: what pointer offsets are made of, where stores may go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from grader.kernel.machine import elementwise, kinds
from grader.kernel.machine.ttir import Module, Operation, operations

_MAKING_OFFSETS = {name for name in elementwise.NAMES if name.startswith("arith.")}
_MAKING_OFFSETS |= {"tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans", "tt.reshape"}
_FROM_ANYWHERE = ("tt.load", "tt.int_to_ptr")


def reached(wanted: list[int], made: dict[int, list[int]]) -> set[int]:
    """Return the wanted values, and all values that they are made of."""
    found: set[int] = set()
    while wanted:
        value = wanted.pop()
        if value not in found:
            found.add(value)
            wanted += made.get(value, ())
    return found


def handed(op: Operation) -> Iterator[tuple[int, int]]:
    """Yield each value that a loop or a branch passes on, with one that it may come from."""
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


def all_handed(module: Module) -> Iterator[tuple[int, int]]:
    """Yield what `handed` does for a whole module, and what jumps, calls and returns pass on."""
    for blocks in module.functions.values():
        labels = {block.label: block.arguments for block in blocks}
        for op in operations(blocks):
            yield from handed(op)
            for label, values in op.targets:
                yield from zip(labels[label], values, strict=False)
            called = module.functions.get(op.text, []) if op.name == "tt.call" else []
            for block in called[:1]:
                yield from zip(block.arguments, op.operands, strict=False)
            for last in (block.last for block in called):
                if last is not None and last.name == "tt.return":
                    yield from zip(op.results, last.operands, strict=False)


def made_of(module: Module, computes: Callable[[Operation], bool]) -> dict[int, list[int]]:
    """Map each value to its sources, by operations that `computes` accepts and by control flow."""
    made: dict[int, list[int]] = {}
    for op in module.operations:
        for result in op.results if computes(op) else ():
            made.setdefault(result, []).extend(op.operands)
    for value, other in all_handed(module):
        made.setdefault(value, []).append(other)
    return made


def offsets(module: Module) -> frozenset[int]:
    """Return the 32-bit values that pointer offsets are made of, through loops too."""
    wanted = [op.operands[1] for op in module.operations if op.name == "tt.addptr"]
    found = reached(wanted, made_of(module, lambda op: op.name in _MAKING_OFFSETS))
    return frozenset(value for value in found if module.type(value).element == "i32")


def stored_to(module: Module) -> frozenset[int]:
    """Return the kernel's parameters through which it may store, too many rather than too few.

    Control flow passes each pointer to one place, so that a pointer that the kernel only loads
    through stays apart from one that it stores through, even if one loop moves both.
    """
    entry = module.functions[module.entry][0].arguments
    every = list(module.operations)
    for op in every:
        # A pointer may come out of memory, or of a reduction.
        anywhere = (op.regions and not op.name.startswith("scf.")) or op.name in _FROM_ANYWHERE
        if anywhere and any(module.type(value).pointee for value in op.results):
            return frozenset(entry)
    made = made_of(module, lambda op: not op.regions and op.name != "tt.call")
    pointers = {value: others for value, others in made.items() if module.type(value).pointee}
    wanted = [op.operands[0] for op in every if op.name in kinds.STORES]
    return frozenset(reached(wanted, pointers) & set(entry))
