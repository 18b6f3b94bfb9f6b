"""Calls library kernels, with the inputs in the layout that each needs."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.shapes import Shape

Tensors = dict[str, torch.Tensor]


class Unavailable(Exception):
    """A contender cannot run here; the message is the reason."""


def row_sum(compiled: bool) -> Callable[..., torch.Tensor]:
    """Return `(x * w).sum(-1)`, compiled into one kernel."""

    def weighted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * w).sum(-1)

    if compiled:
        return torch.compile(weighted, dynamic=False)
    return lambda x, w: weighted(x.double(), w.double()).to(x.dtype)


def textbook(shape: Shape) -> dict[str, Any]:
    """Return softmax(q k^T) v as in a textbook, all in the dtype of the inputs, without lse."""
    if shape.sink_logits:
        raise Unavailable("a textbook has no sink logits")
    group = shape.num_q_heads // shape.num_kv_heads

    @functools.cache  # like the baseline's
    def hidden(device: torch.device) -> torch.Tensor:
        positions = torch.arange(shape.seqlen, device=device)
        seen = _mask(shape.window_size, shape.num_sink_tokens)
        return ~seen(0, 0, positions[:, None], positions)

    def call(t: Tensors) -> torch.Tensor:
        q, k, v = (t[name] for name in ("q", "k", "v"))
        if group > 1:
            k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        scores = q @ k.mT * shape.head_dim**-0.5
        if shape.is_causal:
            scores = scores.masked_fill(hidden(q.device), -math.inf)
        return torch.softmax(scores, -1) @ v

    return {"call": call}


def sdpa(shape: Shape, backend: str) -> dict[str, Any]:
    """Return scaled dot product attention by a backend: FLASH_ATTENTION (FA2), CUDNN_ATTENTION."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    wanted = getattr(SDPBackend, backend)
    grouped = {"enable_gqa": True} if shape.num_q_heads != shape.num_kv_heads else {}

    def call(t: Tensors) -> torch.Tensor:
        with sdpa_kernel(wanted):
            return F.scaled_dot_product_attention(
                t["q"], t["k"], t["v"], is_causal=shape.is_causal, **grouped
            )

    return {"call": call}


def _mask(window_size: int | None, num_sink_tokens: int) -> Callable[..., torch.Tensor]:
    def causal(b, h, query, key):
        return key <= query

    # Comparing with query - window_size, a vector, makes no seqlen x seqlen tensor of integers.
    def window(b, h, query, key):
        return (key <= query) & (key > query - window_size)

    def sinks(b, h, query, key):
        return (key <= query) & ((key > query - window_size) | (key < num_sink_tokens))

    if window_size is None:
        return causal
    return sinks if num_sink_tokens else window


def flex(shape: Shape, device: str, compiled: bool, *, tuned: bool = False) -> dict[str, Any]:
    """Return compiled FlexAttention; its BlockMask is made here, outside the timing.

    With `tuned` Inductor times its own candidate tiles before the first call.
    """
    from torch.nn.attention import flex_attention as flex

    if compiled:
        _set_up_compiler()
    block_mask = None
    if shape.is_causal:
        make = flex.create_block_mask
        if shape.seqlen > 32768:
            make = torch.compile(make)
        mask = _mask(shape.window_size, shape.num_sink_tokens)
        block_mask = make(mask, None, None, shape.seqlen, shape.seqlen, device=device)
    options = {"enable_gqa": shape.num_q_heads != shape.num_kv_heads}

    def with_lse(q, k, v, block_mask):
        if hasattr(flex, "AuxRequest"):
            aux = flex.AuxRequest(lse=True)
            out, found = flex.flex_attention(
                q, k, v, block_mask=block_mask, return_aux=aux, **options
            )
            return out, found.lse
        return flex.flex_attention(q, k, v, block_mask=block_mask, return_lse=True, **options)

    # One more term in the denominator scales a row by exp(lse) / (exp(lse) + exp(sink)).
    def rescale(out, lse, sink_logits):
        weight = torch.sigmoid(lse - sink_logits.float()[None, :, None])
        return (out.float() * weight[..., None]).to(out.dtype)

    def plain(q, k, v, block_mask):
        return flex.flex_attention(q, k, v, block_mask=block_mask, **options)

    def with_sink_logits(q, k, v, sink_logits, block_mask):
        return rescale(*with_lse(q, k, v, block_mask), sink_logits)

    function = with_sink_logits if shape.sink_logits else plain
    if compiled:
        mode = "max-autotune-no-cudagraphs" if tuned else None
        function = torch.compile(function, dynamic=False, fullgraph=True, mode=mode)
    names = ("q", "k", "v", "sink_logits") if shape.sink_logits else ("q", "k", "v")
    return {"call": lambda t: function(*(t[name] for name in names), block_mask)}


def _set_up_compiler() -> None:
    """Reset Dynamo, so that new shapes are no recompilations; allow retain_graph=True."""
    import torch._dynamo
    import torch._functorch.config

    torch._dynamo.reset()
    # retain_graph=True, which times the backward pass alone, excludes donated buffers.
    torch._functorch.config.donated_buffer = False


def varlen(shape: Shape, device: str) -> dict[str, Any]:
    """Return FA2 on packed sequences, which supports windows; the packing is not timed."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise Unavailable(f"torch {torch.__version__} has no varlen_attn") from error
    parameters = inspect.signature(varlen_attn).parameters
    if "window_size" not in parameters:
        raise Unavailable(f"varlen_attn of torch {torch.__version__} takes no window_size")
    options: dict[str, Any] = {"window_size": (shape.window_size - 1, 0)}
    if "scale" in parameters:
        options["scale"] = 1.0 / math.sqrt(shape.head_dim)
    if "enable_gqa" in parameters:
        options["enable_gqa"] = shape.num_q_heads != shape.num_kv_heads
    batch, seqlen = shape.batch, shape.seqlen
    starts = torch.arange(0, (batch + 1) * seqlen, seqlen, dtype=torch.int32, device=device)

    def prepare(t: Tensors) -> Tensors:
        return {name: x.transpose(1, 2).flatten(0, 1).contiguous() for name, x in t.items()}

    def call(t: Tensors) -> torch.Tensor:
        return varlen_attn(t["q"], t["k"], t["v"], starts, starts, seqlen, seqlen, **options)

    def restore(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.unflatten(0, (batch, seqlen)).transpose(1, 2)

    return {"call": call, "prepare": prepare, "restore": restore}


def flash_attention_4(shape: Shape) -> dict[str, Any]:
    """Return FlashAttention-4 (CuTe DSL); its layout (batch, seqlen, heads, head_dim) is not timed.

    Raises:
        Unavailable: the package is missing, too old, or does not support this dtype.
    """
    try:
        from flash_attn.cute import flash_attn_func
    except ImportError as error:
        raise Unavailable(f"pip install flash-attn-4: {error}") from error
    if "learnable_sink" not in inspect.signature(flash_attn_func).parameters:
        raise Unavailable("this flash-attn-4 takes no learnable_sink: install a newer one")
    if shape.dtype == "fp32":
        raise Unavailable("FlashAttention-4 takes fp16 and bf16, not fp32")
    # Its window counts the keys left of the query, without the query itself.
    window = (None, None) if shape.window_size is None else (shape.window_size - 1, 0)

    def transposed(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.transpose(1, 2) if tensor.ndim == 4 else tensor

    def call(t: Tensors) -> torch.Tensor:
        found = flash_attn_func(
            *(t[name] for name in "qkv"),
            causal=shape.is_causal and shape.window_size is None,
            window_size=window,
            learnable_sink=t.get("sink_logits"),
        )
        return found[0] if isinstance(found, tuple) else found

    def prepare(t: Tensors) -> Tensors:
        return {name: transposed(x).contiguous() for name, x in t.items()}

    return {"call": call, "prepare": prepare, "restore": transposed}
