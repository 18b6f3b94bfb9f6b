"""Where the inputs and outputs of a call lie in the shared memory, and with which strides."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from grader.base.dtypes import DTYPE_NAMES, TORCH_DTYPES
from grader.isolate.arena import GUARD_BYTES, Layout, View, dense_strides
from grader.kernel.machine.tensors import extent
from grader.spec.cases import Case
from grader.spec.inputs import Inputs

_PADDING = {"q": 16, "k": 32, "v": 48}  # all different: no tensor's strides fit another


def place(case: Case, inputs: Inputs, outputs: tuple[str, ...], *, wide: bool = False) -> Layout:
    """Reserve memory for every input, with the strides of the case's layout, and for `outputs`.

    These are fp64 where they are `wide`. A gradient of an input that the case does not have is left
    out. Each region lies between two guard zones.
    """
    named, views, end = dict(inputs.tensors), list[View](), GUARD_BYTES

    def reserve(dtype: str, elements: int) -> int:
        """Return the offset in bytes of a new region."""
        nonlocal end
        start, size = end, elements * TORCH_DTYPES[dtype].itemsize
        end += -(-size // 512) * 512 + GUARD_BYTES
        return start

    if case.layout == "packed_qkv" and "q" in named:
        packed = {name: named.pop(name) for name in ("q", "k", "v")}
        start = reserve(case.dtype, sum(tensor.numel() for tensor in packed.values()))
        views += _slices(case, packed, start)
    layouts = {name: _layout(case, name) for name in named}
    if inputs.dout is not None:
        named["dout"], layouts["dout"] = inputs.dout, case.dout_layout
    for name, tensor in named.items():
        size, dtype = tuple(tensor.shape), DTYPE_NAMES[tensor.dtype]
        stride = _stride(name, size, layouts[name])
        views.append(View(name, dtype, size, stride, reserve(dtype, extent(size, stride))))
    inputs_end, results = end, list[View]()
    for name in outputs:
        if name in ("y", "lse", "out") or name[1:] in inputs.tensors:
            dtype, size = _output(name, inputs.tensors)
            dtype = "fp64" if wide else dtype
            start = reserve(dtype, math.prod(size))
            results.append(View(name, dtype, size, dense_strides(size), start))
    return Layout(tuple(views), tuple(results), inputs_end, end)


def _layout(case: Case, name: str) -> str:
    """Return the layout of an input other than the upstream gradient of an entry point's result."""
    if case.mutate == f"{name}_strided":
        return "strided_last_dim"
    if name == "sink_logits":
        return "dense" if case.layout == "dense" else "every_other"
    if name in ("x", "w") and case.layout == "every_other":
        return "every_other" if name == "w" else "dense"
    return case.layout if name in ("q", "k", "v", "x") else "dense"


def _stride(name: str, size: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Return the strides of an input; a layout that is none of these is dense."""
    match layout:
        case "bshd":
            _, heads, seqlen, head_dim = size
            return (seqlen * heads * head_dim, head_dim, heads * head_dim, 1)
        case "padded":  # a slice of a tensor with a wider last dimension
            return dense_strides((*size[:-1], size[-1] + _PADDING.get(name, 16)))
        case "strided_last_dim":
            return (*dense_strides((*size[:-1], 2 * size[-1]))[:-1], 2)
        case "every_other":
            return (2,)
        case "transposed":
            return (1, size[0])
        case "expanded":
            _, heads, _, head_dim = size
            return (heads * head_dim, head_dim, 0, 1)
        case "one_number":  # as autograd passes it on from out.sum()
            return (0,) * len(size)
    return dense_strides(size)


def _slices(case: Case, packed: dict[str, torch.Tensor], start: int) -> Iterator[View]:
    """Place q, k, v as slices of one (batch, seqlen, num_q_heads + 2 num_kv_heads, head_dim)."""
    if case.seqlen_q != case.seqlen_k:
        raise ValueError("layout: packed_qkv needs seqlen_q == seqlen_k")
    row = (case.num_q_heads + 2 * case.num_kv_heads) * case.head_dim
    stride = (case.seqlen_q * row, case.head_dim, row, 1)
    for name, tensor in packed.items():
        yield View(name, case.dtype, tuple(tensor.shape), stride, start)
        start += tensor.shape[1] * case.head_dim * TORCH_DTYPES[case.dtype].itemsize


def _output(name: str, tensors: dict[str, torch.Tensor]) -> tuple[str, tuple[int, ...]]:
    """Return dtype and size of an output of the entry point or of a gradient."""
    first, rows = (tensors["x"], 1) if "x" in tensors else (tensors["q"], 3)
    if name == "lse":
        return "fp32", tuple(first.shape[:rows])
    if name in ("y", "out"):
        return DTYPE_NAMES[first.dtype], tuple(first.shape[:1] if name == "y" else first.shape)
    source = tensors[name[1:]]
    return DTYPE_NAMES[source.dtype], tuple(source.shape)
