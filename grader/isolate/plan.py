"""A plan: what the host code of a call asks for, as text that holds no code.

The worker that runs a submission writes it, on tensors without data (planning.py); another, which
runs nothing of the submission's, carries it out on the data (executing.py). It is JSON:

- `inputs`, `outputs`: a tensor for each name; no `outputs` where the host code did not end.
- `storages`: of each number the address and the bytes, as the writer has them; `alive`: those of
  earlier plans that are still in use.
- `kernels`: by number, those of no plan before: name, TTIR, whether it has block pointers, line.
- `steps`, in order, each with the lines of the file that led to it: ["op", lines, name, overload,
  args, kwargs, results], an operator of PyTorch that is no view; ["launch", lines, kernel, grid,
  arguments]; ["constant", lines, storage, bytes], values that Python made; ["print", lines, parts,
  separator, end]; ["values", lines, tensor], a question. With `asks` the last step is one, or an
  operator whose result follows from values.

A tensor is a part of a storage, by offset, sizes and strides in elements.
"""

from __future__ import annotations

import json
import mmap
from typing import Any

import torch

from grader.kernel.machine.ttir import BadText, NotMeasured

MAX_BYTES = 64 * 2**20
MAX_STEPS = 50_000
FILE = "<the submission>"  # stands for its path, which is another in each worker
_HEAD = 8  # bytes, which say how many follow
_KINDS = {
    "dtype": torch.dtype,
    "memory_format": torch.memory_format,
    "layout": torch.layout,
}
_SIMPLE = (bool, int, float, str)


def write(memory: mmap.mmap, plan: dict[str, Any]) -> None:
    """Put a plan into memory of `MAX_BYTES`.

    Raises:
        NotMeasured: it is too long.
    """
    text = json.dumps(plan, separators=(",", ":")).encode()
    if len(text) > MAX_BYTES - _HEAD:
        most = f"at most {MAX_BYTES >> 20} MiB are carried out"
        raise NotMeasured(f"what this call launches takes {len(text) >> 20} MiB of text; {most}")
    memory[: _HEAD + len(text)] = len(text).to_bytes(_HEAD, "little") + text


def is_written(memory: torch.Tensor) -> bool:
    """Whether a plan was put into memory that was zero before."""
    return bool(memory[:_HEAD].any())


def read(memory: mmap.mmap) -> dict[str, Any]:
    """Return the plan in memory that `write` has filled.

    Raises:
        BadText: there is none.
    """
    size = int.from_bytes(memory[:_HEAD], "little")
    if not 0 < size <= MAX_BYTES - _HEAD:
        raise BadText("no plan")
    try:
        plan = json.loads(memory[_HEAD : _HEAD + size])
    except (ValueError, RecursionError) as error:
        raise BadText(f"a plan that is no JSON: {error}") from None
    if not isinstance(plan, dict):
        raise BadText("a plan that is no object")
    return plan


def plain(value: Any) -> Any:
    """Encode for JSON an argument of an operator that is no tensor.

    Raises:
        NotMeasured: it is of a type that has no code.
    """
    if value is None or type(value) in _SIMPLE:
        return value
    if isinstance(value, torch.device):
        return {"device": None}
    if type(value) is complex:
        return {"complex": [value.real, value.imag]}
    for name, kind in _KINDS.items():
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    raise NotMeasured(f"PyTorch is given a {type(value).__name__} here")


def value_of(code: Any) -> Any:
    """Decode what `plain` has encoded; any device becomes the CPU."""
    if code is None or isinstance(code, _SIMPLE):
        return code
    ((name, text),) = code.items()
    if name == "device":
        return torch.device("cpu")
    if name == "complex":
        return complex(*text)
    value = getattr(torch, text)
    if not isinstance(value, _KINDS[name]):
        raise BadText(f"a {name} of a plan: got {text!r}")
    return value
