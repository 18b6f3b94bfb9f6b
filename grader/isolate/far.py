"""Places inputs so far apart that 32 bits do not hold an offset. In a worker.

The memory between them is asked for and never touched: it takes addresses alone.
"""

from __future__ import annotations

import contextlib
import mmap

import torch

from grader.kernel.machine.ttir import NotMeasured

STRIDE = 2**30  # elements from one row, or batch entry, to the next: the third is 2**31 away
_ENTRIES, _ITEMSIZE, _ROOM = 3, 2, 2**26
_NORESERVE = 0x4000  # of Linux; Python 3.12 has no name for it


class NoRoom(NotMeasured):
    """The system reserves no addresses without memory behind them."""


def reserve() -> torch.Tensor | None:
    """Return addresses for 16-bit tensors of three entries; they take no memory until written.

    None where the system gives none: it may promise no more memory than it has.
    """
    size = (_ENTRIES - 1) * STRIDE * _ITEMSIZE + _ROOM
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    with contextlib.suppress(OSError):
        return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=torch.uint8)
    return None


def spread(
    region: torch.Tensor | None, tensors: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return tensors, with those that have three entries of 16 bits copied `STRIDE` apart.

    Args:
        region: from `reserve`.
        tensors: by name, (3, ...) or of another size, which stay where they are.

    Raises:
        NoRoom: there is no region.
    """
    if region is None:
        raise NoRoom("this system has no 4 GiB of addresses to spare")
    found, start = dict(tensors), 0
    for name, tensor in tensors.items():
        if tensor.dim() < 2 or tensor.shape[0] != _ENTRIES or tensor.element_size() != _ITEMSIZE:
            continue
        steps = (STRIDE, *tensor.contiguous().stride()[1:])
        own = region.view(tensor.dtype)[start:].as_strided(tensor.shape, steps)
        found[name] = own.copy_(tensor)
        start += tensor.numel()
    return found
