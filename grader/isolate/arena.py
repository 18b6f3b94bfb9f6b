"""The memory that judge and worker share: one sealed memfd a call, with guard zones.

Layout: guard, region, guard, region, ..., guard. Every byte that holds no value of an input is
0xFF, which is NaN in fp16, bf16 and fp32: a read outside a tensor poisons the result, a write
outside one changes bytes that the judge compares afterwards. Output slots start as 0xFF too.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Any, NamedTuple

import torch

from grader.base.dtypes import TORCH_DTYPES
from grader.kernel.machine.tensors import extent

GUARD_BYTES = 64 * 1024
POISON = 0xFF
# The worker puts it in place of the mark where an output has the mark of its own memory.
UNWRITTEN = range(0xE5, 0xE6)
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class View(NamedTuple):
    """A strided tensor inside an arena: `offset_bytes` is where element 0 lies."""

    name: str
    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset_bytes: int

    @property
    def extent_bytes(self) -> int:
        return extent(self.size, self.stride) * TORCH_DTYPES[self.dtype].itemsize

    def of(self, memory: torch.Tensor) -> torch.Tensor:
        """Return this view of `memory`, a 1-D uint8 tensor of the whole arena."""
        dtype = TORCH_DTYPES[self.dtype]
        flat = memory[self.offset_bytes : self.offset_bytes + self.extent_bytes].view(dtype)
        return flat.as_strided(self.size, self.stride)


class Layout(NamedTuple):
    """Where every input and output of one call lies; sent to the worker as plain data."""

    inputs: tuple[View, ...]
    outputs: tuple[View, ...]
    inputs_end: int
    total_bytes: int

    @property
    def written(self) -> tuple[View, ...]:
        """The outputs, with their offsets in memory without the inputs."""
        return tuple(
            v._replace(offset_bytes=v.offset_bytes - self.inputs_end) for v in self.outputs
        )

    @classmethod
    def of(cls, request: dict[str, Any]) -> Layout:
        """Return the layout of a request."""
        *views, inputs_end, total_bytes = request["layout"]
        inputs, outputs = (
            tuple(View(n, d, tuple(size), tuple(stride), at) for n, d, size, stride, at in some)
            for some in views
        )
        return cls(inputs, outputs, inputs_end, total_bytes)


class Call(NamedTuple):
    """The fields of each request to call the entry point: among them its layout and options."""

    layout: Layout
    kwargs: dict[str, Any]
    returns: tuple[str, ...]
    gradients: bool


def dense_strides(size: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor of `size`."""
    strides = [1]
    for n in reversed(size[1:]):
        strides.append(strides[-1] * n)
    return tuple(reversed(strides)) if size else ()


class Arena:
    """A sealed memfd of fixed size, mapped as a 1-D uint8 tensor, `memory`."""

    def __init__(self, total_bytes: int) -> None:
        self.fd = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, total_bytes)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
        self.memory = attached(self.fd, total_bytes)

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the descriptor; the mapping stays until the last tensor on it is gone."""
        os.close(self.fd)


def attached(fd: int, total_bytes: int) -> torch.Tensor:
    """Return the memory of another process's arena, mapped for as long as there are tensors."""
    return torch.frombuffer(mmap.mmap(fd, total_bytes), dtype=torch.uint8)
