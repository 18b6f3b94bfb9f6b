"""Loads, stores and atomic operations, which check every active lane against its tensor's bounds.

All programs access memory at once. Where lanes of one store meet, the last one wins; lanes of one
atomic operation that meet run one after the other, in the order of programs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from grader.kernel.machine import events
from grader.kernel.machine.arrays import (
    Tensor,
    arange,
    cast,
    dtype_of,
    ends,
    filled,
    left_out,
    numbers,
    ones,
    unsigned,
    whole,
    zeros,
)
from grader.kernel.machine.outside import out_of_bounds
from grader.kernel.machine.steps import Env, Run, State, Translation
from grader.kernel.machine.tensors import MIDDLE, SHIFT, Memory
from grader.kernel.machine.ttir import Operation, Type

_READ, _WRITE, _ATOMIC = "read", "write", "atomic update"
_HINTS = {"evictionPolicy", "cacheModifier", "cachePolicy", "isVolatile", "operandSegmentSizes"}
Part = tuple[Memory, Tensor, Tensor | None]


class Accesses:
    """Finds the elements that one operation of a kernel accesses, and reports accesses."""

    def __init__(self, op: Operation, translation: Translation, what: str, mask: int | None):
        self.op = op
        self.pointers = op.operands[0]
        self.mask = mask
        self.is_masked = mask is not None
        self.type = translation.module.type(op.operands[0])
        self.width = self.type.width
        self._translation = translation
        self._what = what

    @property
    def state(self) -> State:
        return self._translation.state

    def parts(self, env: Env) -> list[Part]:
        """Return the tensors that active lanes access, each with offsets in it and a mask.

        All offsets are inside the tensor, those of masked lanes included.

        Raises:
            OutOfBounds: an active lane is outside its tensor.
        """
        memories, pointers = self.state.memories, env[self.pointers]
        mask = env[self.mask] if self.mask is not None else None
        if mask is not None and bool(mask.all()):
            mask = None
        low, high = ends(pointers)
        memory = memories.get(low >> SHIFT)
        if memory is not None and high >> SHIFT == memory.number:
            base, size = memory.base, memory.size(self.width)
            if low >= base and high < base + size:
                return [(memory, pointers - base, mask)]
            if mask is not None and size:
                safe = torch.where(mask, pointers, base)
                low, high = ends(safe)
                if low >= base and high < base + size:
                    return [(memory, safe - base, mask)]
        active = pointers
        if mask is not None:
            pairs = torch.broadcast_tensors(pointers, mask)
            active = pairs[0][pairs[1]]
        found = numbers(torch.unique(active >> SHIFT))
        parts = (self._part(memories.get(n), n, pointers, mask, env) for n in found)
        return [part for part in parts if part is not None]

    def _part(
        self, memory: Memory | None, number: int, pointers: Tensor, mask: Tensor | None, env: Env
    ) -> Part | None:
        here = pointers >> SHIFT == number
        if mask is not None:
            here = here & mask
        size = memory.size(self.width) if memory else 0
        offsets = pointers - (number << SHIFT) - MIDDLE
        outside = here & ((offsets < 0) | (offsets >= size))
        is_lenient = self.state.lenient
        if not is_lenient and (memory is None or bool(outside.any())):
            lanes = offsets, here, outside if memory else here
            what = {"does": self._what, "is_masked": self.is_masked}
            raise out_of_bounds(self.op, self._translation, env, memory, lanes, **what)
        if memory is None or (is_lenient and not size):
            return None
        here = here & ~outside
        return memory, torch.where(here, offsets, 0), here

    def tell(self, kind: str, env: Env, part: Part, value: Tensor) -> None:
        """Report an access to the launch's observers."""
        observe = self.state.observe
        memory, index, mask = part
        if observe is None or not memory.may_change:
            return
        shape = (env[0].shape[0], *self.type.shape)
        programs = env[0].reshape((-1, *(1,) * len(self.type.shape)))
        whole = (array.expand(shape) for array in (programs, index, value))
        if mask is None:
            arrays = [array.reshape(-1) for array in whole]
        else:
            lanes = mask.expand(shape)
            arrays = [array[lanes] for array in whole]
        observe(events.Access(kind, self.op, memory, *arrays))


def load(op: Operation, translation: Translation) -> Run:
    """Translate a tt.load."""
    op.check(_HINTS)
    (result,) = op.results
    type = translation.module.type(result)
    mask = op.operands[1] if len(op.operands) > 1 else None
    other = op.operands[2] if len(op.operands) > 2 else None
    nothing, zero, dtype = left_out(type), filled(type, 0), dtype_of(type)
    accesses = Accesses(op, translation, _READ, mask)
    site = translation.sites.get(op)

    def run(env: Env) -> None:
        parts = accesses.parts(env)
        value = zero if accesses.state.lenient else nothing
        value = env[other] if other is not None else value
        for part in parts:
            memory, index, here = part
            memory.is_read = True
            loaded = torch.take(memory.as_dtype(dtype), index)
            if site:
                loaded = accesses.state.exact.loaded(site, memory, loaded)
            value = loaded if here is None else torch.where(here, loaded, value)
            accesses.tell(events.LOAD, env, part, loaded)
        env[result] = value

    return run


def store(op: Operation, translation: Translation) -> Run:
    """Translate a tt.store."""
    op.check(_HINTS)
    value, *masks = op.operands[1:]
    mask = masks[0] if masks else None
    dtype = dtype_of(translation.module.type(value))
    accesses = Accesses(op, translation, _WRITE, mask)
    shape = accesses.type.shape

    def run(env: Env) -> None:
        for part in accesses.parts(env):
            memory, index, here = part
            memory.is_updated |= memory.is_read
            programs = max(x.shape[0] for x in (index, env[value], here) if x is not None)
            index, stored = whole(index, shape, programs), whole(env[value], shape, programs)
            if here is not None:
                here = whole(here, shape, programs)
                index, stored = index[here], stored[here]
            memory.as_dtype(dtype)[index] = stored
            accesses.tell(events.STORE, env, part, env[value])

    return run


_UPDATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "fadd": torch.add,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "max": torch.maximum,
    "min": torch.minimum,
    "exch": lambda old, new: new,
    "umax": unsigned(np.maximum),
    "umin": unsigned(np.minimum),
}


def atomic_rmw(op: Operation, translation: Translation) -> Run:
    """Translate a tt.atomic_rmw; its result is the old value."""
    op.check(())
    kind = op.words[0] if op.words else ""
    if kind not in _UPDATES:
        raise op.unmodelled(kind)
    update = _UPDATES[kind]
    value, *masks = op.operands[1:]
    adds = kind in ("add", "fadd") and op.results[0] not in translation.module.used
    return _atomic(op, translation, masks[0] if masks else None, (value,), update, adds=adds)


def atomic_cas(op: Operation, translation: Translation) -> Run:
    """Translate a tt.atomic_cas."""
    op.check(())
    _, compared, value = op.operands

    def update(old: Tensor, expected: Tensor, new: Tensor) -> Tensor:
        if old.is_floating_point():  # a GPU compares bits
            kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[old.itemsize]
            return torch.where(old.view(kind) == expected.contiguous().view(kind), new, old)
        return torch.where(old == expected, new, old)

    return _atomic(op, translation, None, (compared, value), update, adds=False)


def _atomic(
    op: Operation,
    translation: Translation,
    mask: int | None,
    values: tuple[int, ...],
    update: Callable[..., Tensor],
    *,
    adds: bool,
) -> Run:
    (result,) = op.results
    type = translation.module.type(result)
    dtype, shape = dtype_of(type), type.shape
    accesses = Accesses(op, translation, _ATOMIC, mask)
    accesses.is_masked &= mask not in translation.constants  # a constant mask may be Triton's own
    site = translation.sites.get(op)
    nothing, everywhere = filled(type, 0), filled(Type(shape, "i1"), True)

    def run(env: Env) -> None:
        programs = env[0].shape[0]
        given = [whole(env[value], shape, programs) for value in values]
        before = whole(nothing, shape, programs)
        for part in accesses.parts(env):
            memory, index, here = part
            memory.is_updated = True
            index = whole(index, shape, programs)
            chosen = whole(everywhere if here is None else here, shape, programs)
            flat, places = memory.as_dtype(dtype), index[chosen]
            taken = [value[chosen] for value in given]
            if adds:
                flat.index_put_((places,), taken[0], accumulate=True)
            else:
                old = _one_behind_the_other(flat, places, taken, update)
                before = before.clone().masked_scatter_(chosen, old)
            if site:
                flat[places] = accesses.state.exact.settled(site, flat[places])
            accesses.tell(events.ATOMIC, env, part, given[-1])
        env[result] = before

    return run


def _one_behind_the_other(
    flat: Tensor, places: Tensor, values: list[Tensor], update: Callable[..., Tensor]
) -> Tensor:
    """Update places, equal ones one after the other; return the value before each update."""
    old = zeros(places.shape, dtype=flat.dtype)
    order = torch.argsort(places, stable=True)
    ordered = places[order]
    starts = ones(len(ordered), dtype=torch.bool)
    starts[1:] = ordered[1:] != ordered[:-1]
    count = arange(len(ordered))
    turn = count - torch.cummax(torch.where(starts, count, 0), 0)[0] if len(ordered) else count
    for number in range(int(turn.max()) + 1 if len(ordered) else 0):
        now = order[turn == number]
        old[now] = flat[places[now]]
        flat[places[now]] = update(old[now], *(value[now] for value in values))
    return old


def _converted(op: Operation, translation: Translation, pointer: int, method: str) -> Run:
    (operand,), (result,) = op.operands, op.results
    width = translation.module.type(pointer).width
    dtype = dtype_of(translation.module.type(result))

    def run(env: Env) -> None:
        convert = getattr(translation.state.memories, method)
        env[result] = cast(convert(cast(env[operand], torch.int64), width), dtype)

    return run


STEPS: dict[str, Callable[[Operation, Translation], Run]] = {
    "tt.load": load,
    "tt.store": store,
    "tt.atomic_rmw": atomic_rmw,
    "tt.atomic_cas": atomic_cas,
    "tt.ptr_to_int": lambda op, t: _converted(op, t, op.operands[0], "addresses"),
    "tt.int_to_ptr": lambda op, t: _converted(op, t, op.results[0], "pointers"),
}
