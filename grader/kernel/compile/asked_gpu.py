"""Answers what a file asks about its GPU where kernels run on the machine. In a worker.

Files for a GPU ask for its device, capability and multiprocessors, make it current, wait for it,
and assert that tensors lie on it. Without one each of these is an error of PyTorch's or Triton's,
and a right answer would end there. Tensors stay on the CPU, say so of their device, and are where
kernels need them: that is what `is_cuda` is asked for. One that is asked for on "cuda" is made
there too. `torch.cuda.is_available()` stays true to the facts.
"""

from __future__ import annotations

import torch

from grader.kernel.compile.absent_gpu import Driver, Memory, pretend_cuda
from grader.kernel.compile.chips import CHIPS

# Of torch.cuda, what the source policy opens and what fails or misleads without a GPU.
_ASKED = (
    *("current_device", "current_stream", "device", "device_of", "synchronize"),
    *("get_device_capability", "get_device_name", "get_device_properties", "is_bf16_supported"),
    *("max_memory_allocated", "memory_allocated"),
)


class CpuDriver(Driver):
    """That of a GPU whose tensors lie in the CPU's memory."""

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def install() -> None:
    """Answer as the older of the chips that kernels are compiled for, from now on."""
    from triton.runtime import driver

    chip = CHIPS[min(CHIPS)]
    driver.set_active(CpuDriver(chip))
    pretend_cuda(chip, only=_ASKED)
    torch.Tensor.is_cuda = property(lambda this: True)
    Memory(remembers=False).install()
