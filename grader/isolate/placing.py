"""Where the inputs and outputs of a call lie in the shared memory, and with which strides."""

from __future__ import annotations

import torch

from grader.base.dtypes import DTYPE_NAMES, TORCH_DTYPES
from grader.isolate.arena import Layout, LayoutBuilder, View, dense_strides
from grader.spec.cases import Case
from grader.spec.inputs import Inputs

_PADDING = {"q": 16, "k": 32, "v": 48}  # all different: nobody's strides serve for another


def place(case: Case, inputs: Inputs, outputs: tuple[str, ...], *, wide: bool = False) -> Layout:
    """Reserve memory for every input, with the strides of the case's layout, and for `outputs`.

    These are fp64 where they are `wide`. A gradient of an input that the case does not have is left
    out.
    """
    builder = LayoutBuilder()
    named = dict(inputs.tensors)
    if case.layout == "packed_qkv" and "q" in named:
        _place_packed(builder, case, named)
    for name, tensor in named.items():
        layout = case.layout if name in ("q", "k", "v", "x") else "dense"
        if name in ("x", "w") and case.layout == "every_other":
            layout = "every_other" if name == "w" else "dense"
        if name == "sink_logits" and case.layout != "dense":
            layout = "every_other"
        if case.mutate == f"{name}_strided":
            layout = "strided_last_dim"
        _place(builder, name, tensor, layout)
    if inputs.dout is not None:
        _place(builder, "dout", inputs.dout, case.dout_layout)
    present = [n for n in outputs if n in ("y", "lse", "out") or n[1:] in inputs.tensors]
    made = [_output(name, inputs) for name in present]
    return builder.finish([(n, "fp64" if wide else dtype, size) for n, dtype, size in made])


def _place(builder: LayoutBuilder, name: str, tensor: torch.Tensor, layout: str) -> None:
    size, dtype = tuple(tensor.shape), DTYPE_NAMES[tensor.dtype]
    if layout == "bshd":
        batch, heads, seqlen, head_dim = size
        stride = (seqlen * heads * head_dim, head_dim, heads * head_dim, 1)
        elements = tensor.numel()
    elif layout == "padded":  # a slice of a tensor with a wider last dimension
        wide = dense_strides((*size[:-1], size[-1] + _PADDING.get(name, 16)))
        stride, elements = wide, wide[0] * size[0]
    elif layout == "strided_last_dim":
        wide = dense_strides((*size[:-1], 2 * size[-1]))
        stride, elements = (*wide[:-1], 2), wide[0] * size[0]
    elif layout == "every_other":
        stride, elements = (2,), 2 * tensor.numel()
    elif layout == "transposed":
        stride, elements = (1, size[0]), tensor.numel()
    elif layout == "expanded":
        batch, heads, seqlen, head_dim = size
        stride, elements = (heads * head_dim, head_dim, 0, 1), batch * heads * head_dim
    elif layout == "one_number":  # as autograd passes it on from out.sum()
        stride, elements = (0,) * len(size), 1
    else:
        stride, elements = dense_strides(size), tensor.numel()
    start = builder.region(dtype, elements)
    builder.add_input(View(name, dtype, size, stride, start))


def _place_packed(builder: LayoutBuilder, case: Case, named: dict[str, torch.Tensor]) -> None:
    """Place q, k, v as slices of one (batch, seqlen, num_q_heads + 2 num_kv_heads, head_dim)."""
    if case.seqlen_q != case.seqlen_k:
        raise ValueError("layout: packed_qkv needs seqlen_q == seqlen_k")
    heads = case.num_q_heads + 2 * case.num_kv_heads
    row = heads * case.head_dim
    dtype = case.dtype
    start = builder.region(dtype, case.batch * case.seqlen_q * row)
    head = 0
    for name in ("q", "k", "v"):
        tensor = named.pop(name)
        offset = start + head * case.head_dim * TORCH_DTYPES[dtype].itemsize
        stride = (case.seqlen_q * row, case.head_dim, row, 1)
        builder.add_input(View(name, dtype, tuple(tensor.shape), stride, offset))
        head += tensor.shape[1]


def _output(name: str, inputs: Inputs) -> tuple[str, str, tuple[int, ...]]:
    """Return name, dtype and size of an output of the entry point or of a gradient."""
    tensors = inputs.tensors
    if name == "y":
        source, size = tensors["x"], tuple(tensors["x"].shape[:1])
    elif name == "lse":
        size = tensors["q"].shape[:3] if "q" in tensors else tensors["x"].shape[:1]
        return name, "fp32", tuple(size)
    elif name == "out":
        source, size = tensors["q"], tuple(tensors["q"].shape)
    else:
        source, size = tensors[name[1:]], tuple(tensors[name[1:]].shape)
    return name, DTYPE_NAMES[source.dtype], size
