"""GPU memory of the judge's that a worker maps: an allocation of its own, passed by descriptor.

CUDA's legacy IPC handles share the whole allocation that a tensor lies in, and do not cross PID
namespaces; memory made by cuMemCreate and exported as a file descriptor has neither flaw. (CUDA
Driver API, 6.14 Virtual Memory Management.) `cuda.bindings` comes with torch for CUDA.
"""

from __future__ import annotations

import os
from typing import Any

import torch


class DeviceMemoryFault(Exception):
    """The driver refuses, or there is no `cuda.bindings`; says which call and why."""


class _Mapped:
    """Device memory as torch.as_tensor takes it; unmapped when the process ends."""

    def __init__(self, pointer: int, size: int, of: torch.Tensor | None = None) -> None:
        self.of = of  # keeps that memory alive
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
        }


def allocate(size: int) -> tuple[torch.Tensor, int]:
    """Allocate `size` bytes on the current GPU, rounded up; return them and their descriptor.

    Raises:
        DeviceMemoryFault: not here.
    """
    driver = _driver()
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location = _location(driver)
    descriptor = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    properties.requestedHandleTypes = descriptor
    least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    step = _checked(driver, "cuMemGetAllocationGranularity", properties, least)
    size = -(-size // step) * step
    handle = _checked(driver, "cuMemCreate", size, properties, 0)
    fd = int(_checked(driver, "cuMemExportToShareableHandle", handle, descriptor, 0))
    os.set_inheritable(fd, False)
    return _mapped(driver, handle, size), fd


def attach(fd: int, size: int) -> torch.Tensor:
    """Map memory that another process allocated; `size` is the length of its tensor.

    Raises:
        DeviceMemoryFault: not here.
    """
    driver = _driver()
    descriptor = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    handle = _checked(driver, "cuMemImportFromShareableHandle", fd, descriptor)
    return _mapped(driver, handle, size)


def mapped(pointer: int, size: int, *, of: torch.Tensor) -> torch.Tensor:
    """Return `size` bytes at an address in the memory `of` a tensor, in a storage of their own."""
    return torch.as_tensor(_Mapped(pointer, size, of), device="cuda")


def forget_persisting_lines() -> None:
    """Let L2 evict again the lines that a kernel asked it to keep.

    A GPU before 8.0 keeps none: that its driver refuses does not matter.
    """
    _driver().cuCtxResetPersistingL2Cache()


def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceMemoryFault(f"no cuda.bindings: {error}") from None
    torch.cuda.init()
    torch.cuda.synchronize()  # there is a current context from here on
    return driver


def _location(driver: Any) -> Any:
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = torch.cuda.current_device()
    return location


def _mapped(driver: Any, handle: Any, size: int) -> torch.Tensor:
    pointer = _checked(driver, "cuMemAddressReserve", size, 0, 0, 0)
    _checked(driver, "cuMemMap", pointer, size, 0, handle, 0)
    access = driver.CUmemAccessDesc()
    access.location = _location(driver)
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    _checked(driver, "cuMemSetAccess", pointer, size, [access], 1)
    return torch.as_tensor(_Mapped(int(pointer), size), device="cuda")


def _checked(driver: Any, name: str, *arguments: Any) -> Any:
    """Call a function of the driver; return what it returns beside its status."""
    status, *values = getattr(driver, name)(*arguments)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise DeviceMemoryFault(f"{name}: {status.name}")
    return values[0] if values else None
