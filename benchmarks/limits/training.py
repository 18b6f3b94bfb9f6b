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
_QUERY_STAGES = 2  # tiles of queries and dO in shared memory, for dK and dV
_REGISTERS = (240, 24)  # of a thread of a consumer, and of the producer
_DS_STAGES = 3  # tiles of dS there, per consumer
_DQ_STAGES = 1  # tiles of dQ there, fp32


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
        dq, dk, dv = gradients(q, k, v, dout, lse, delta, ctx.rule)
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


def gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    rule: Rule,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return dq, dk, dv, dense, shape and dtype of q, k, v.

    Args:
        q, k, v: as for `launch.attention`; dout: shape of q, `launch.loads_by_tma`.
        lse, delta: (batch, num_q_heads, seqlen_q), fp32, dense.
    """
    sinks = (lse, lse)  # not read
    if rule.window_size is not None:
        options = (rule.window_size, rule.num_sink_tokens, rule.scale)
        sinks = _plain("p09")._sink_dkdv(q, k, v, dout, lse, delta, *options)
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    tensors = (q, k, v, dout, lse, delta)
    with_dq = not is_dq_faster_apart(q, rule)
    if with_dq:
        sums = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    else:
        dq = sums = _plain_dq(*tensors, rule)
    sizes, options = plan(q, k, rule, with_dq)
    tiles = [launch.descriptor(x, launch.ROWS) for x in (q, k, v, dout, dk, dv, sums)]
    backward, finish = kernels()
    backward.backward_kernel[(sizes.num_tiles,)](
        *tiles, lse, delta, *sinks, sizes, options, num_warps=4
    )
    if with_dq:
        finish_dq(finish, sums, *tensors, dq, rule)
    return dq, dk, dv


def is_dq_faster_apart(q: torch.Tensor, rule: Rule) -> bool:
    """Whether dQ by a kernel of its own was faster than by sums. Measured on an H200."""
    return rule.window_size is not None and rule.window_size < 1024


def _plain_dq(q, k, v, dout, lse, delta, rule: Rule) -> torch.Tensor:
    if rule.window_size is None:
        return _plain("p08")._launch_dq(q, k, v, dout, lse, delta, rule.scale)
    options = (rule.window_size, rule.num_sink_tokens, rule.scale)
    return _plain("p09")._dq(q, k, v, dout, lse, delta, *options)


def finish_dq(finish, sums, q, k, v, dout, lse, delta, dq, rule):
    """Store in dq what the sums make, with the sinks' part beyond the window."""
    (batch, num_q_heads, seqlen_q, head_dim), num_kv_heads = q.shape, k.shape[1]
    strides = [x.stride()[:3] for x in (q, k, v, dout)]
    finish.finish_dq_kernel[(batch * num_q_heads, triton.cdiv(seqlen_q, launch.ROWS))](
        sums, q, k, v, dout, lse, delta, dq, *strides,
        num_q_heads, num_q_heads // num_kv_heads, seqlen_q, rule.window_size or 0,
        rule.num_sink_tokens, rule.scale, rule.scale * math.log2(math.e),
        HEAD_DIM=head_dim, BLOCK_M=launch.ROWS, BLOCK_N=16,
        HAS_SINKS=rule.num_sink_tokens > 0, num_warps=4,
    )  # fmt: skip


def kernels() -> tuple[ModuleType, ModuleType]:
    """Return the modules of the backward kernel, which imports Gluon, and of what follows it."""
    names = ("backward", "finish")
    backward, finish = (importlib.import_module(f"benchmarks.limits.{name}") for name in names)
    return backward, finish


def plan(q: torch.Tensor, k: torch.Tensor, rule: Rule, with_dq: bool) -> tuple[Any, Any]:
    """Return KeySizes and KeyOptions of the backward kernel."""
    (batch, num_q_heads, seqlen_q, head_dim), (_, num_kv_heads, seqlen_k, _) = q.shape, k.shape
    group_size, tiles = num_q_heads // num_kv_heads, triton.cdiv(seqlen_k, _KEYS)
    group_bytes = 2 * group_size * seqlen_q * head_dim * q.element_size()
    section = section_size(batch * num_kv_heads, group_bytes, tiles)
    backward, _ = kernels()
    sizes = backward.KeySizes(
        seqlen_q, seqlen_k, num_q_heads, num_kv_heads, group_size, section, tiles,
        batch * num_kv_heads * tiles, rule.window_size or 0, rule.num_sink_tokens,
        rule.scale, rule.scale * math.log2(math.e),
    )  # fmt: skip
    in_registers = head_dim == 64  # more registers are not there
    has_window = rule.window_size is not None
    options = (
        head_dim, _QUERY_STAGES, _CONSUMERS, rule.is_causal, has_window, in_registers, with_dq,
        _DS_STAGES, _DQ_STAGES,
    )  # fmt: skip
    return sizes, backward.KeyOptions(*map(backward.gl.constexpr, (*options, *_REGISTERS)))
