"""Notes reads of tensors into Python without an operator, such as .tolist(). In a worker.

The module replaces the methods themselves before a submission can name them. A PyTorch mode would
miss reads: it is off while a function that it intercepted runs the code of an argument's class, and
code that entered a mode earlier can remove the latest one.

The repr of a tensor has no values, in any call, so that it does not reveal which call is noted.
PyTorch writes a repr with all modes off, and asks the tensor, whose class may be the submission's.
Only print() shows values, to a person.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable
from typing import Any

import torch

# Methods that hand all values of a tensor to Python; on a CPU they run no operator.
_WHOLE = ("__array__", "__dlpack__", "apply_", "map2_", "map_", "numpy", "tolist")
_numpy = torch.Tensor.numpy
_numel = torch.Tensor.numel  # even if a submission replaces the method
_noting: list[Callable[[int, str], None]] = []  # at most one
_revealing: list[Callable[[torch.Tensor], None]] = []  # at most one
_printing: list[Callable[[tuple[Any, ...], dict[str, Any]], bool]] = []  # at most one
_installed = threading.Event()


def as_numpy(tensor: torch.Tensor) -> Any:
    """Return a tensor's values for the judge itself, uncounted.

    A mode that a file has left on, as `torch.set_default_device` does, would look the method up by
    its name, and so call the counted one.
    """
    with torch._C.DisableTorchFunction():
        return _numpy(tensor)


def install() -> None:
    """Replace the methods in this process, once."""
    if _installed.is_set():
        return
    _installed.set()
    builtins.print = _showing(builtins.print)
    for name in _WHOLE:
        setattr(torch.Tensor, name, _counted(getattr(torch.Tensor, name), name))
    torch.Tensor.__repr__ = _without_values(torch.Tensor.__repr__)
    torch.Tensor.tensor_split = _counted_places(torch.Tensor.tensor_split)
    torch.tensor_split = _counted_places(torch.tensor_split)
    torch.UntypedStorage.__getitem__ = _counted_bytes(torch.UntypedStorage.__getitem__)


def note(reads: Callable[[int, str], None] | None) -> None:
    """Call `reads` with the number of elements and the method of each later read; None stops it."""
    _noting[:] = [reads] if reads else []


def reveal_by(reveal: Callable[[torch.Tensor], None]) -> None:
    """Call `reveal` with each tensor before its values are read, from now on."""
    _revealing[:] = [reveal]


def _reveal(tensor: Any) -> None:
    with torch._C.DisableTorchFunction():
        for reveal in _revealing:
            reveal(tensor)


def tell(elements: int, how: str) -> None:
    """Report that Python reads so many elements of a tensor, and how."""
    for reads in _noting:
        reads(elements, how)


def _elements(tensor: Any) -> int:
    with torch._C.DisableTorchFunctionSubclass():
        return _numel(tensor)


def _counted(method: Any, name: str) -> Any:
    def read(this: Any, *args: Any, **kwargs: Any) -> Any:
        tell(_elements(this), f".{name}()")
        _reveal(this)
        with torch._C.DisableTorchFunction():  # which would count it once more
            return method(this, *args, **kwargs)

    return read


def _without_values(method: Any) -> Any:
    def text(this: Any, **kwargs: Any) -> str:
        with torch._C.DisableTorchFunctionSubclass():
            size, dtype = tuple(torch.Tensor.size(this)), torch.Tensor.dtype.__get__(this)
        return f"tensor(..., size={size}, dtype={dtype})"

    return text


def print_by(write: Callable[[tuple[Any, ...], dict[str, Any]], bool]) -> None:
    """Call `write` with the arguments of each later print() of a tensor.

    `write` returns whether it has written them.
    """
    _printing[:] = [write]


def text_of(tensor: torch.Tensor) -> str:
    """Return a tensor with its values, as print() shows it."""
    plain = tensor.detach().cpu()
    values = as_numpy(plain.float() if plain.is_floating_point() else plain)
    return repr(values).replace("array(", "tensor(", 1)


def _showing(write: Any) -> Any:
    def print(*values: Any, **options: Any) -> None:
        if options.get("file") is None and any(type(v) is torch.Tensor for v in values):
            if any(elsewhere(values, options) for elsewhere in _printing):
                return
            values = tuple(text_of(v) if type(v) is torch.Tensor else v for v in values)
        write(*values, **options)

    return print


def _counted_places(split: Any) -> Any:
    def tensor_split(*args: Any, **kwargs: Any) -> Any:
        for where in (*args[1:], *kwargs.values()):
            if isinstance(where, torch.Tensor):
                tell(_elements(where), "tensor_split at the values of a tensor")
                _reveal(where)
        return split(*args, **kwargs)

    return tensor_split


def _counted_bytes(get: Any) -> Any:
    def byte(this: Any, *args: Any) -> Any:
        if _revealing:
            _reveal(torch.empty(0, dtype=torch.uint8).set_(this))
        value = get(this, *args)
        if isinstance(value, int):
            tell(1, "the bytes of a storage")
        return value

    return byte
