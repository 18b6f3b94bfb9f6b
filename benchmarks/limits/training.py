"""Attention that can be trained, for tensors that have no `launch.obstacle`."""

from __future__ import annotations

import importlib
import math
from types import ModuleType
from typing import Any

import torch
import triton
from torch.autograd.function import once_differentiable

from benchmarks.limits import launch
from given.arguments import positive_scale
from given.backward import row_delta
from given.launch import section_size

_KEYS = 128  # of a tile of work, and of a tile that dQ visits
_CONSUMERS = 2
_QUERY_STAGES = 3  # tiles of queries and dO in shared memory, for dK and dV
_KEY_STAGES = 2  # tiles of keys and values in shared memory, for dQ
_REGISTERS = (240, 24)  # of a thread of a consumer, and of the producer


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    is_causal: bool = True,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Return out of attention, differentiable; arguments as for `launch.attention`."""
    scale = 1.0 / math.sqrt(q.shape[3]) if softmax_scale is None else softmax_scale
    q, scale = positive_scale(q, scale)
    return _Attention.apply(q, k, v, is_causal, scale)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        is_causal: bool,
        scale: float,
    ) -> torch.Tensor:
        out, lse = launch.attention(q, k, v, is_causal=is_causal, softmax_scale=scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.is_causal, ctx.scale = is_causal, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple:
        q, k, v, out, lse = ctx.saved_tensors
        found = gradients(q, k, v, out, lse, dout, is_causal=ctx.is_causal, scale=ctx.scale)
        return *found, None, None


def gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    dout: torch.Tensor,
    *,
    is_causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return dq, dk, dv, dense, shape and dtype of q, k, v.

    Args:
        q, k, v, is_causal: as for `launch.attention`.
        out, lse: what it returned for them; dout: the gradient of out, any strides.
        scale: the softmax_scale, above 0.
    """
    if not launch.loads_by_tma(dout):
        dout = dout.contiguous()
    delta = row_delta(out, dout)
    keys, queries = kernels()
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    sizes, options = plan_keys(q, k, is_causal=is_causal, scale=scale)
    tiles = [launch.descriptor(x, launch.ROWS) for x in (q, k, v, dout, dk, dv)]
    keys.dkdv_kernel[(sizes.num_tiles,)](*tiles, lse, delta, sizes, options, num_warps=4)
    sizes, options = plan_queries(q, k, is_causal=is_causal, scale=scale)
    rows = (launch.ROWS, _KEYS, _KEYS, launch.ROWS, launch.ROWS)
    tiles = [launch.descriptor(x, n) for x, n in zip((q, k, v, dout, dq), rows, strict=True)]
    queries.dq_kernel[(sizes.num_tiles,)](*tiles, lse, delta, sizes, options, num_warps=4)
    return dq, dk, dv


def kernels() -> tuple[ModuleType, ModuleType]:
    """Return the modules of the kernels of dK and dV and of dQ, which import Gluon."""
    names = ("backward_keys", "backward_queries")
    keys, queries = (importlib.import_module(f"benchmarks.limits.{name}") for name in names)
    return keys, queries


def plan_keys(
    q: torch.Tensor, k: torch.Tensor, *, is_causal: bool, scale: float
) -> tuple[Any, Any]:
    """Return KeySizes and KeyOptions of the kernel of dK and dV."""
    (batch, num_q_heads, seqlen_q, head_dim), (_, num_kv_heads, seqlen_k, _) = q.shape, k.shape
    group_size, tiles = num_q_heads // num_kv_heads, triton.cdiv(seqlen_k, _KEYS)
    group_bytes = 2 * group_size * seqlen_q * head_dim * q.element_size()
    section = section_size(batch * num_kv_heads, group_bytes, tiles)
    keys, _ = kernels()
    sizes = keys.KeySizes(
        seqlen_q, seqlen_k, num_q_heads, num_kv_heads, group_size, section, tiles,
        batch * num_kv_heads * tiles, scale, scale * math.log2(math.e),
    )  # fmt: skip
    options = (head_dim, _QUERY_STAGES, _CONSUMERS, is_causal, *_REGISTERS)
    return sizes, keys.KeyOptions(*map(keys.gl.constexpr, options))


def plan_queries(
    q: torch.Tensor, k: torch.Tensor, *, is_causal: bool, scale: float
) -> tuple[Any, Any]:
    """Return QuerySizes and QueryOptions of the kernel of dQ."""
    (batch, num_q_heads, seqlen_q, head_dim), (_, num_kv_heads, seqlen_k, _) = q.shape, k.shape
    group_size, tiles = num_q_heads // num_kv_heads, triton.cdiv(seqlen_q, launch.ROWS * _CONSUMERS)
    head_bytes = 2 * seqlen_k * head_dim * k.element_size()
    section = group_size * section_size(batch * num_kv_heads, head_bytes, group_size * tiles)
    _, queries = kernels()
    sizes = queries.QuerySizes(
        seqlen_q, seqlen_k, num_q_heads, group_size, section, tiles,
        batch * num_q_heads * tiles, scale, scale * math.log2(math.e),
    )  # fmt: skip
    options = (_KEYS, head_dim, _KEY_STAGES, _CONSUMERS, is_causal, *_REGISTERS)
    return sizes, queries.QueryOptions(*map(queries.gl.constexpr, options))
