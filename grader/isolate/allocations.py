"""Poisons and guards the memory that a submission allocates during a checked call.

`torch.empty` and its relatives return views into larger buffers: NaN where the tensor lies, a
pattern before and behind it. An element that no kernel writes stays NaN; a write past the end
changes the pattern. The NaN of each allocation has a mark, which tells an output that was not
written from one computed from other unwritten memory. Runs in the worker, but not in timed calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from grader.isolate.arena import UNWRITTEN
from grader.kernel.dispatch import DispatchMode
from grader.kernel.machine.tensors import extent
from grader.kernel.marks import MARKS, marked

_GUARD_BYTES = 16 * 1024
_PATTERN = 0xA5
EMPTY = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
}


# Operators in place whose result depends on what was in the tensor.
_UPDATES = {
    *("add_", "sub_", "mul_", "div_", "addcmul_", "addcdiv_", "addmm_", "addbmm_", "baddbmm_"),
    *("index_add_", "scatter_add_", "scatter_reduce_", "exp_", "exp2_", "log_", "neg_", "pow_"),
}


class Guarded(DispatchMode):
    """While active, fresh uninitialised tensors are poisoned and stand between guard zones."""

    def __init__(self) -> None:
        super().__init__()
        self._buffers: list[tuple[torch.Tensor, int]] = []
        self._marks: dict[int, int] = {}  # by the address of a buffer
        self._updated: list[int] = []  # addresses of buffers

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(getattr(func, "overloadpacket", None), "__name__", "") in _UPDATES:
            self._updated.append(_span(args[0]).start)
        if func in EMPTY and result.numel() and result.layout == torch.strided:
            # One on the meta device has a shape and no memory: nothing is written to it.
            return result if result.is_meta else self._guard(result)
        return result

    def _guard(self, plain: torch.Tensor) -> torch.Tensor:
        size = extent(plain.shape, plain.stride()) * plain.element_size()
        padded = -(-size // 512) * 512
        buffer = torch.full(
            (padded + 2 * _GUARD_BYTES,), 0xFF, dtype=torch.uint8, device=plain.device
        )
        mark = MARKS[len(self._buffers) % len(MARKS)]
        buffer[_GUARD_BYTES : _GUARD_BYTES + size : plain.element_size()] = mark
        self._marks[_span(buffer).start] = mark
        buffer[:_GUARD_BYTES] = _PATTERN
        buffer[_GUARD_BYTES + size :] = _PATTERN
        self._buffers.append((buffer, size))
        values = buffer[_GUARD_BYTES : _GUARD_BYTES + size].view(plain.dtype)
        return values.as_strided(plain.shape, plain.stride())

    def settle(self, result: torch.Tensor, values: torch.Tensor, updated: Iterable[int]) -> None:
        """Put UNWRITTEN into `values`, a copy of `result`, where it has the mark of its own memory.

        Nothing is put where one of the addresses `updated` lies in that memory: a kernel has stored
        there what it computed from it, so that elements that were written may have the mark. Nor
        does anything happen where several allocations have the same mark.
        """
        memory = _span(result)
        mark = self._marks.get(memory.start)
        if mark is None or not values.numel() or list(self._marks.values()).count(mark) > 1:
            return
        if any(address in memory for address in (*updated, *self._updated)):
            return
        raw = values.view(-1).view(torch.uint8).view(values.numel(), values.element_size())
        raw[marked(values, range(mark, mark + 1)).view(-1), 0] = UNWRITTEN[0]

    def broken(self) -> str:
        """Return what was written outside an allocation, or an empty string."""
        for buffer, size in self._buffers:
            before = buffer[:_GUARD_BYTES]
            behind = buffer[_GUARD_BYTES + size :]
            for place, zone in (("before the start", before), ("past the end", behind)):
                changed = int((zone != _PATTERN).sum())
                if changed:
                    return f"{changed} bytes written {place} of a tensor of {size} bytes"
        return ""


def _span(tensor: torch.Tensor) -> range:
    """Return the addresses of the memory that a tensor lies in."""
    storage = torch.Tensor.untyped_storage(tensor)
    return range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())
