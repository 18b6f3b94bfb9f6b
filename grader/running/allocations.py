"""Poisons and guards the memory that a submission allocates during a checked call.

`torch.empty` and its relatives return views into larger buffers: NaN where the tensor lies, a
pattern before and behind it. An element that no kernel writes stays NaN; a write past the end
changes the pattern. Runs inside the worker; timed calls run without it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grader.running.arena import UNWRITTEN

_GUARD_BYTES = 16 * 1024
_PATTERN = 0xA5
_EMPTY = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
}


class Guarded(TorchDispatchMode):
    """While active, fresh uninitialised tensors are poisoned and stand between guard zones."""

    def __init__(self) -> None:
        super().__init__()
        self._buffers: list[tuple[torch.Tensor, int]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without it the first call of a worker imports torch._dynamo, a second or more."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _EMPTY and result.numel() and result.layout == torch.strided:
            return self._guard(result)
        return result

    def _guard(self, plain: torch.Tensor) -> torch.Tensor:
        span = sum((n - 1) * s for n, s in zip(plain.shape, plain.stride(), strict=True)) + 1
        size = span * plain.element_size()
        padded = -(-size // 512) * 512
        buffer = torch.full(
            (padded + 2 * _GUARD_BYTES,), 0xFF, dtype=torch.uint8, device=plain.device
        )
        buffer[_GUARD_BYTES : _GUARD_BYTES + size : plain.element_size()] = UNWRITTEN
        buffer[:_GUARD_BYTES] = _PATTERN
        buffer[_GUARD_BYTES + size :] = _PATTERN
        self._buffers.append((buffer, size))
        values = buffer[_GUARD_BYTES : _GUARD_BYTES + size].view(plain.dtype)
        return values.as_strided(plain.shape, plain.stride())

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
