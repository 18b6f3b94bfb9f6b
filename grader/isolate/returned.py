"""Calls an entry point in a worker, names its outputs, and refuses those of a wrong kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from grader.isolate import arena
from grader.kernel.compile import faults


def of_call(entry: Callable[..., Any], tensors: dict, request: dict[str, Any]) -> dict:
    """Return the outputs of a call on `tensors`, by name, and with `gradients` these too.

    Raises:
        BadReturn: what came back cannot be named, or has no gradient.
    """
    if not request["gradients"]:
        with torch.no_grad():
            returned = entry(**tensors, **request["kwargs"])
        return _named(returned, request["returns"])
    tensors = dict(tensors)
    dout = tensors.pop("dout")
    for name, tensor in tensors.items():
        tensors[name] = tensor.detach().requires_grad_(True)
    results = _named(entry(**tensors, **request["kwargs"]), request["returns"])
    out = results["out"]
    if not isinstance(out, torch.Tensor) or not out.requires_grad:
        raise faults.BadReturn("out is not differentiable: it does not require a gradient")
    if out.shape != dout.shape:
        raise faults.BadReturn(f"out: got shape {tuple(out.shape)}, expected {tuple(dout.shape)}")
    gradients = torch.autograd.grad(out, list(tensors.values()), dout, allow_unused=True)
    return results | {f"d{n}": g for n, g in zip(tensors, gradients, strict=True)}


def check(results: dict, layout: arena.Layout, returns: list[str], device: str) -> None:
    """Refuse a judged output that is no tensor of the right shape, dtype and device.

    Raises:
        BadReturn: the first output that is not as `layout` has it.
    """
    for view in layout.outputs:
        value = results.get(view.name)
        wanted = arena.TORCH_DTYPES[view.dtype]
        if view.name not in results:
            expected = f"expected a tuple ({', '.join(returns)})"
            raise faults.BadReturn(f"{view.name}: got no such value, {expected}")
        if not isinstance(value, torch.Tensor):
            raise faults.BadReturn(f"{view.name}: got {_kind(value)}, expected a tensor")
        if value.layout != torch.strided:
            raise faults.BadReturn(f"{view.name}: got {value.layout}, expected a dense tensor")
        if tuple(value.shape) != view.size:
            got = tuple(value.shape)
            raise faults.BadReturn(f"{view.name}: got shape {got}, expected {view.size}")
        if value.dtype != wanted and wanted is not torch.float64:
            raise faults.BadReturn(f"{view.name}: got dtype {value.dtype}, expected {wanted}")
        if value.device.type != device:
            raise faults.BadReturn(f"{view.name}: got device {value.device}, expected {device}")
        if view.name in ("out", "lse", "y") and not value.is_contiguous():
            raise faults.BadReturn(
                f"{view.name}: got strides {value.stride()}, expected a dense tensor with"
                f" strides {view.stride}"
            )


def _named(returned: Any, names: list[str]) -> dict:
    """Name what the entry point returned; a lone tensor is the first of several outputs."""
    if isinstance(returned, torch.Tensor):
        return {names[0]: returned}
    if not isinstance(returned, (tuple, list)):
        expected = f"a tuple ({', '.join(names)})" if len(names) > 1 else "a tensor"
        raise faults.BadReturn(f"return value: got {_kind(returned)}, expected {expected}")
    if not 1 <= len(returned) <= len(names):
        raise faults.BadReturn(
            f"return value: got {len(returned)} values, expected ({', '.join(names)})"
        )
    return dict(zip(names, returned, strict=False))


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__
