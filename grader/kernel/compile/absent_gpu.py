"""Makes a process believe that it has a GPU, and answers what a submission asks about it.

To compile kernels, `install` pretends that there is a whole GPU. Every tensor claims to lie on it,
but lies in the CPU's memory, so that PyTorch computes as usual, forward and backward, with real
values. Only tensors that the submission makes without naming a device count as the CPU's: a kernel
cannot reach those. Triton asks a driver for device and target.

To run kernels on the machine, `answer` only answers questions: submissions ask for the GPU's
device, capability and multiprocessors, make it current, wait for it, and assert that tensors lie on
it. Tensors stay on the CPU and name it as their device, but `is_cuda` is true, because they are
where kernels need them. `torch.cuda.is_available()` tells the truth.

A process of its own calls one of them once, before it imports the submission. FakeTensorMode and
tensor subclasses with a CUDA device need a CUDA build of torch for a backward pass (torch 2.13:
"PyTorch is not linked with support for cuda devices" ends the process), and FakeTensorMode has no
values.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack as _modes
from torch.utils._device import DeviceContext

from grader.kernel.compile.chips import CHIPS, MAX_THREADS, Chip

_DEVICE = torch.device("cuda", 0)
_MAX_REMEMBERED = 256
_MULTIPROCESSORS = 14  # of a 1g.5gb slice of an A100
# Names of torch.cuda that the source policy allows, and that fail or mislead without a GPU.
_ASKED = (
    *("current_device", "current_stream", "device", "device_of", "synchronize"),
    *("get_device_capability", "get_device_name", "get_device_properties", "is_bf16_supported"),
    *("max_memory_allocated", "memory_allocated"),
)
_KINDS = ("empty", "full", "ones", "zeros")
_FACTORIES = (
    *("empty", "empty_strided", "zeros", "ones", "full", "eye", "tensor", "scalar_tensor"),
    *("arange", "linspace", "logspace", "rand", "randn", "randint", "randperm"),
)
_ALIKE = ("as_tensor", "asarray", "rand_like", "randn_like", *(f"{kind}_like" for kind in _KINDS))
_METHODS = ("new_tensor", "new_empty_strided", *(f"new_{kind}" for kind in _KINDS))


class Memory:
    """Makes, in the CPU's memory, the tensors that a submission asks for on a GPU.

    With `remembers`, those made without naming a GPU count as the CPU's, and empty ones are 0: no
    kernel runs that would fill them, and a file may stop at a NaN that it finds there.
    """

    def __init__(self, *, remembers: bool) -> None:
        self._remembers = remembers
        # By address; a held storage cannot give its address to another.
        self._on_cpu: dict[int, Any] = {}

    def install(self, put: Callable[[Any, str, Any], None] = setattr) -> None:
        """Replace the functions that make and move tensors."""
        places = [(torch, name) for name in (*_FACTORIES, *_ALIKE)]
        for place, name in (*places, *((torch.Tensor, name) for name in _METHODS)):
            put(place, name, self._made(getattr(place, name), name))
        put(torch.Tensor, "to", self._moving(torch.Tensor.to))
        put(torch.Tensor, "cuda", lambda this, *_, **__: self._moved(this))

    def _made(self, make: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(make)
        def made(*args: Any, **kwargs: Any) -> Any:
            if isinstance(kwargs.get("device"), int):
                kwargs["device"] = _DEVICE
            values = (*args, *kwargs.values())
            result = _called(make, *args, **kwargs)
            if self._remembers:
                if "empty" in name:
                    result.detach().zero_()
                named = any(_is_gpu(v) or isinstance(v, torch.Tensor) for v in values)
                contexts = [m.device for m in _modes() if isinstance(m, DeviceContext)]
                if name in _FACTORIES and not named and not any(map(_is_gpu, contexts[-1:])):
                    self._remember(result)
            return result

        return made

    def _moving(self, move: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(move)
        def to(this: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            values = (*args, *kwargs.values())
            result = _called(move, this, *args, **kwargs)
            like = [value for value in values if isinstance(value, torch.Tensor)]  # x.to(other)
            if any(map(_is_gpu, values)) or (like and not self.is_on_cpu(like[0])):
                return self._moved(result)
            return result

        return to

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone() if self.is_on_cpu(tensor) else tensor

    def is_on_cpu(self, tensor: torch.Tensor) -> bool:
        """Whether the submission made this tensor, or what it is a view of, on the CPU."""
        if not self._on_cpu or tensor.is_meta or tensor.layout is not torch.strided:
            return False
        return tensor.untyped_storage().data_ptr() in self._on_cpu

    def _remember(self, tensor: torch.Tensor) -> None:
        if tensor.numel():
            storage = tensor.untyped_storage()
            self._on_cpu[storage.data_ptr()] = storage
            if len(self._on_cpu) > _MAX_REMEMBERED:
                del self._on_cpu[next(iter(self._on_cpu))]


def install(chip: Chip, bench: Callable[..., list[float]] | None = None) -> Memory:
    """Pretend that `chip` is there; return the memory, which knows the tensors that are the CPU's.

    `bench` is called with a launch that the autotuner would time, and returns milliseconds.
    """
    from triton.runtime import driver

    driver.set_active(Driver(chip, bench))
    pretend_cuda(chip)
    for name, value in {"is_cuda": True, "is_cpu": False, "device": _DEVICE}.items():
        setattr(torch.Tensor, name, property(lambda this, value=value: value))
    torch.Tensor.get_device = lambda this: 0
    memory = Memory(remembers=True)
    memory.install()
    return memory


def answer() -> None:
    """Answer questions about a GPU as a slice of the oldest chip that kernels are compiled for.

    It has so few multiprocessors that a kernel with a program on each gives it several tiles.
    """
    from triton.runtime import driver

    chip = dataclasses.replace(CHIPS[min(CHIPS)], multiprocessors=_MULTIPROCESSORS)
    driver.set_active(Driver(chip, tensors=torch.device("cpu")))
    pretend_cuda(chip, only=_ASKED)
    torch.Tensor.is_cuda = property(lambda this: True)
    Memory(remembers=False).install()


class Driver:
    """What Triton 3.6 to 3.9 ask of a GPU's driver when another compiler replaces its own.

    `tensors` is the device on which tensors say that they lie.
    """

    def __init__(
        self,
        chip: Chip,
        bench: Callable[..., list[float]] | None = None,
        tensors: torch.device = _DEVICE,
    ) -> None:
        self._chip = chip
        self.utils = self
        self.get_active_torch_device = lambda: tensors
        self.get_benchmarker = lambda: bench

    get_current_device = get_current_stream = staticmethod(lambda *_: 0)
    set_current_device = clear_cache = staticmethod(lambda *_: None)

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget(*self._chip.target)

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(1, dtype=torch.int, device=_DEVICE)

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": self._chip.program_shared_bytes,
            "max_num_regs": self._chip.registers,
            "multiprocessor_count": self._chip.multiprocessors,
            "warpSize": self._chip.warp,
            "sm_clock_rate": 1_700_000,
            "mem_clock_rate": 2_600_000,
            "mem_bus_width": 5120,
        }


class _Handle:
    """A CUDA stream, the context that makes it current, or an event, 1 ms from any other."""

    cuda_stream = 0
    device = _DEVICE
    device_index = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> _Handle:
        return self

    def __exit__(self, *_: object) -> None: ...

    def elapsed_time(self, end: Any) -> float:
        return 1.0

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def pretend_cuda(chip: Chip, only: Collection[str] | None = None) -> None:
    """Replace what torch.cuda says about devices, and what a launch on one needs.

    All of it, or `only` the functions and contexts of these names.
    """
    major, minor = chip.compute_capability
    properties = types.SimpleNamespace(
        name=chip.name,
        major=major,
        minor=minor,
        total_memory=chip.memory_bytes,
        multi_processor_count=chip.multiprocessors,
        max_threads_per_multi_processor=chip.threads,
        max_threads_per_block=MAX_THREADS,
        regs_per_multiprocessor=chip.registers,
        shared_memory_per_block=48 * 1024,
        shared_memory_per_block_optin=chip.program_shared_bytes,
        shared_memory_per_multiprocessor=chip.shared_bytes,
        warp_size=chip.warp,
        L2_cache_size=chip.l2_bytes,
        is_integrated=0,
        is_multi_gpu_board=0,
    )
    answers = {
        "device_count": 1,
        "get_device_capability": (major, minor),
        "get_device_name": chip.name,
        "get_device_properties": properties,
        "get_arch_list": [f"sm_{chip.capability}"],
        "mem_get_info": (chip.memory_bytes, chip.memory_bytes),
        "is_current_stream_capturing": False,
        **dict.fromkeys(("is_available", "is_initialized", "is_bf16_supported"), True),
        **dict.fromkeys(("current_device", "memory_allocated", "max_memory_allocated"), 0),
        **dict.fromkeys(("memory_reserved", "max_memory_reserved"), 0),
    }
    silent = ("init", "_lazy_init", "set_device", "synchronize", "empty_cache")
    silent += ("reset_peak_memory_stats", "_exchange_device", "_maybe_exchange_device")
    handles = ("current_stream", "default_stream", "stream", "Stream", "Event")
    handles += ("device", "device_of")
    found: dict[str, Any] = {
        name: lambda *_, value=value, **__: value
        for name, value in (answers | dict.fromkeys(silent)).items()
    }
    found |= dict.fromkeys(handles, _Handle)
    for name in found if only is None else only:
        setattr(torch.cuda, name, found[name])


def _is_gpu(value: Any) -> bool:
    if isinstance(value, str):
        return value == "cuda" or value.startswith("cuda:")
    return isinstance(value, torch.device) and value.type == "cuda"


def _called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function with the CPU's memory in the place of a GPU's."""
    return function(*map(in_memory, args), **{n: in_memory(v) for n, v in kwargs.items()})


def in_memory(value: Any) -> Any:
    """Return the CPU in the place of a GPU, any other argument as it is."""
    return torch.device("cpu") if _is_gpu(value) else value
