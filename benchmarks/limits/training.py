"""Attention that can be trained, for tensors that have no `launch.obstacle`.

Two parts are the plain answers' own: what pairs of a sink and a query beyond its window give to dK
and dV, which is little, and, at head_dim 64, whatever `launch.is_plain_faster` says.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from types import ModuleType
from typing import Any

import torch
import triton
from torch.autograd.function import once_differentiable

from benchmarks.inputs import load_solution
from benchmarks.limits import launch
from given.arguments import positive_scale
from given.backward import row_delta
from given.launch import section_size

_KEYS = 128  # of a tile of work of dK and dV
_CONSUMERS = 2
_QUERY_STAGES = 3  # tiles of queries and dO in shared memory, for dK and dV
_REGISTERS = (240, 24)  # of a thread of a consumer, and of the producer
# For dQ: two tiles of rows per consumer, of queries and of dO.
_QUERIES = launch.Config(block_n=128, stages=2, q_stages=2, consumers=2, persistent=False)


@dataclasses.dataclass(frozen=True)
class Rule:
    """Which keys a query sees; scale is the softmax_scale, above 0."""

    is_causal: bool
    window_size: int | None
    num_sink_tokens: int
    scale: float


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    is_causal: bool = True,
    window_size: int | None = None,
    num_sink_tokens: int = 0,
    sink_logits: torch.Tensor | None = None,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Return out of attention, differentiable; arguments as for `launch.attention`."""
    scale = 1.0 / math.sqrt(q.shape[3]) if softmax_scale is None else softmax_scale
    q, scale = positive_scale(q, scale)
    if window_size is not None:
        window_size = min(window_size, q.shape[2])
        num_sink_tokens = min(num_sink_tokens, q.shape[2] - window_size)
    rule = Rule(is_causal, window_size, num_sink_tokens, scale)
    return _Attention.apply(q, k, v, sink_logits, rule)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sink_logits: torch.Tensor | None,
        rule: Rule,
    ) -> torch.Tensor:
        out, lse = _forward(q, k, v, sink_logits, rule)
        ctx.save_for_backward(q, k, v, sink_logits, out, lse)
        ctx.rule = rule
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple:
        q, k, v, sink_logits, out, lse = ctx.saved_tensors
        if not launch.loads_by_tma(dout):
            dout = dout.contiguous()
        delta = row_delta(out, dout)
        dk, dv = key_gradients(q, k, v, dout, lse, delta, ctx.rule)
        dq = query_gradient(q, k, v, dout, lse, delta, ctx.rule)
        dsink_logits = None
        if sink_logits is not None:
            dsink_logits = _plain("p09")._sink_logits_gradient(sink_logits, lse, delta)
        return dq, dk, dv, dsink_logits, None


def _plain(problem: str) -> ModuleType:
    return load_solution(problem)[0]


def _forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sink_logits: torch.Tensor | None,
    rule: Rule,
) -> tuple[torch.Tensor, torch.Tensor]:
    if launch.is_plain_faster(q, rule.is_causal):
        window_size = rule.window_size or q.shape[2]
        if rule.window_size is None and sink_logits is None:
            return _plain("p08").gqa_forward(q, k, v, rule.scale)
        options = (window_size, rule.num_sink_tokens, rule.scale)
        return _plain("p09")._forward(q, k, v, sink_logits, *options)
    return launch.attention(
        q, k, v, is_causal=rule.is_causal, window_size=rule.window_size,
        num_sink_tokens=rule.num_sink_tokens, sink_logits=sink_logits, softmax_scale=rule.scale,
    )  # fmt: skip


def key_gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    rule: Rule,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return dk, dv, dense, shape and dtype of k, v.

    Args:
        q, k, v: as for `launch.attention`; dout: shape of q, `launch.loads_by_tma`.
        lse, delta: (batch, num_q_heads, seqlen_q), fp32, dense.
    """
    sinks = (lse, lse)  # not read
    if rule.window_size is not None:
        options = (rule.window_size, rule.num_sink_tokens, rule.scale)
        sinks = _plain("p09")._sink_dkdv(q, k, v, dout, lse, delta, *options)
    dk = torch.empty_like(k, memory_format=torch.contiguous_format)
    dv = torch.empty_like(v, memory_format=torch.contiguous_format)
    sizes, options = plan_keys(q, k, rule)
    tiles = [launch.descriptor(x, launch.ROWS) for x in (q, k, v, dout, dk, dv)]
    keys, _ = kernels()
    keys.dkdv_kernel[(sizes.num_tiles,)](*tiles, lse, delta, *sinks, sizes, options, num_warps=4)
    return dk, dv


def query_gradient(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    rule: Rule,
) -> torch.Tensor:
    """Return dq, dense, shape and dtype of q; arguments as for `key_gradients`."""
    if launch.is_plain_faster(q, rule.is_causal):
        if rule.window_size is None:
            return _plain("p08")._launch_dq(q, k, v, dout, lse, delta, rule.scale)
        options = (rule.window_size, rule.num_sink_tokens, rule.scale)
        return _plain("p09")._dq(q, k, v, dout, lse, delta, *options)
    dq = torch.empty_like(q, memory_format=torch.contiguous_format)
    sizes, options = plan_queries(q, k, rule)
    rows = (launch.ROWS, _QUERIES.block_n, _QUERIES.block_n, launch.ROWS, launch.ROWS)
    tiles = [launch.descriptor(x, n) for x, n in zip((q, k, v, dout, dq), rows, strict=True)]
    _, queries = kernels()
    queries.dq_kernel[(sizes.num_tiles,)](*tiles, lse, delta, sizes, options, num_warps=4)
    return dq


def kernels() -> tuple[ModuleType, ModuleType]:
    """Return the modules of the kernels of dK and dV and of dQ, which import Gluon."""
    names = ("backward_keys", "backward_queries")
    keys, queries = (importlib.import_module(f"benchmarks.limits.{name}") for name in names)
    return keys, queries


def plan_keys(q: torch.Tensor, k: torch.Tensor, rule: Rule) -> tuple[Any, Any]:
    """Return KeySizes and KeyOptions of the kernel of dK and dV."""
    (batch, num_q_heads, seqlen_q, head_dim), (_, num_kv_heads, seqlen_k, _) = q.shape, k.shape
    group_size, tiles = num_q_heads // num_kv_heads, triton.cdiv(seqlen_k, _KEYS)
    group_bytes = 2 * group_size * seqlen_q * head_dim * q.element_size()
    section = section_size(batch * num_kv_heads, group_bytes, tiles)
    keys, _ = kernels()
    sizes = keys.KeySizes(
        seqlen_q, seqlen_k, num_q_heads, num_kv_heads, group_size, section, tiles,
        batch * num_kv_heads * tiles, rule.window_size or 0, rule.num_sink_tokens,
        rule.scale, rule.scale * math.log2(math.e),
    )  # fmt: skip
    in_registers = head_dim == 64  # more registers are not there
    has_window = rule.window_size is not None
    options = (head_dim, _QUERY_STAGES, _CONSUMERS, rule.is_causal, has_window, in_registers)
    return sizes, keys.KeyOptions(*map(keys.gl.constexpr, (*options, *_REGISTERS)))


def plan_queries(q: torch.Tensor, k: torch.Tensor, rule: Rule) -> tuple[Any, Any]:
    """Return Sizes and Options of the kernel of dQ."""
    return launch.plan(
        q, k, _QUERIES, is_causal=rule.is_causal, window_size=rule.window_size,
        num_sink_tokens=rule.num_sink_tokens, scale=rule.scale,
    )  # fmt: skip
