"""Differentiable attention with the kernels here, for tensors without a `launch.obstacle`.

Some parts come from the plain answers: the forward pass at head_dim 64 and dQ in narrow windows,
where those are faster; and, for more than 16 sinks, the sums from queries beyond their window.
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
from given.launch import l2_group_size

_KEYS = 128  # keys of a tile of work of dK and dV
_CONSUMERS = 2
# Tiles in shared memory of queries and dO, of dS (per consumer) and of dQ, for the backward kernel
# with dQ, by head_dim and whether there is a window; and below for the one without dQ.
_STAGES = {
    (64, False): (2, 3, 2),
    (64, True): (2, 3, 2),
    (128, False): (2, 3, 1),
    (128, True): (2, 2, 2),
}
_STAGES_WITHOUT_DQ = (3, 1, 1)
_PREPARED_SINKS = 16  # the most in one tile of `prepare`
_PREPARED_QUERIES = 64  # queries of a tile of `prepare`
_PROGRAMS = 1024  # about the number of programs of `prepare`
_REGISTERS = (240, 24)  # per thread, of a consumer and of the producer


@dataclasses.dataclass(frozen=True)
class Rule:
    """The keys that a query sees; scale is the softmax_scale, above 0."""

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
    """Return the differentiable output of attention; arguments as for `launch.attention`."""
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
        dq, dk, dv, delta = gradients(q, k, v, out, dout, lse, ctx.rule)
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
    out: torch.Tensor,
    dout: torch.Tensor,
    lse: torch.Tensor,
    rule: Rule,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return dq, dk, dv, dense, shape and dtype of q, k, v, and delta, as lse.

    Args:
        q, k, v: as for `launch.attention`; dout: shape of q, `launch.loads_by_tma`.
        out: dense; lse: (batch, num_q_heads, seqlen_q), fp32, dense.
    """
    with_dq = has_sums(rule)
    start = begin(q, k, v, out, dout, lse, rule, with_dq)
    sizes, options = plan(q, k, rule, with_dq)
    dk, dv = (room_for(x, options) for x in (k, v))
    tensors = (q, k, v, dout, dk, dv, start.dq if with_dq else dout)
    tiles = [launch.descriptor(x, launch.ROWS) for x in tensors]
    _, backward = kernels()
    backward.backward_kernel[(sizes.num_tiles,)](
        *tiles, lse, start.delta, start.dk, start.dv, sizes, options, num_warps=4
    )
    if with_dq:
        dq = start.dq.to(q.dtype)
    else:
        window = (rule.window_size, rule.num_sink_tokens, rule.scale)
        dq = _plain("p09")._dq(q, k, v, dout, lse, start.delta, *window)
    return dq, dk.to(k.dtype), dv.to(v.dtype), start.delta


def room_for(x: torch.Tensor, options: Any) -> torch.Tensor:
    """Return a dense tensor for the gradient of x, k or v: zeros in fp32 for sums, else as x."""
    if options.HEADS_APART:
        return torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def has_sums(rule: Rule) -> bool:
    """Whether the kernel of dK and dV computes dQ too, as sums, and not the plain answer's.

    Measured on an H200 with windows of 128, where a separate dQ is faster, 1024 and 4096.
    """
    if rule.window_size is None:
        return True
    return rule.window_size >= 1024 and rule.num_sink_tokens <= _PREPARED_SINKS


@dataclasses.dataclass(frozen=True)
class Start:
    """delta, and the initial sums of the gradients, fp32; dq has the shape of q, or is None.

    dk, dv: (batch, num_kv_heads, num_sink_tokens, head_dim), without the factor softmax_scale.
    """

    delta: torch.Tensor
    dq: torch.Tensor | None
    dk: torch.Tensor
    dv: torch.Tensor


def begin(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    dout: torch.Tensor,
    lse: torch.Tensor,
    rule: Rule,
    with_dq: bool,
) -> Start:
    """Return delta and the initial sums of the backward kernel; arguments as for `gradients`."""
    if 0 < rule.num_sink_tokens <= _PREPARED_SINKS:
        return _prepare(q, k, v, out, dout, lse, rule, with_dq)
    delta = row_delta(out, dout)
    dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device) if with_dq else None
    sinks = (lse, lse)  # not read
    if rule.num_sink_tokens:
        window = (rule.window_size, rule.num_sink_tokens, rule.scale)
        sinks = _plain("p09")._sink_dkdv(q, k, v, dout, lse, delta, *window)
    return Start(delta, dq, *sinks)


def _prepare(q, k, v, out, dout, lse, rule: Rule, with_dq: bool) -> Start:
    (batch, num_q_heads, seqlen, head_dim), num_kv_heads = q.shape, k.shape[1]
    tiles_of_head = triton.cdiv(seqlen, _PREPARED_QUERIES)
    tiles = triton.cdiv(batch * num_kv_heads * tiles_of_head, _PROGRAMS)  # of a program
    programs = triton.cdiv(tiles_of_head, tiles)
    delta = torch.empty_like(lse)
    sums = torch.empty(q.shape if with_dq else 0, dtype=torch.float32, device=q.device)
    shape = (2, programs, batch, num_kv_heads, rule.num_sink_tokens, head_dim)
    partial = torch.empty(shape, dtype=torch.float32, device=q.device)
    strides = [x.stride()[:3] for x in (q, k, v, dout)]
    prepare = importlib.import_module("benchmarks.limits.prepare")
    prepare.prepare_kernel[(batch * num_kv_heads, programs)](
        q, k, v, out, dout, lse, delta, sums, *partial, *strides,
        num_kv_heads, num_q_heads // num_kv_heads, seqlen, rule.window_size,
        rule.num_sink_tokens, tiles, rule.scale, rule.scale * math.log2(math.e),
        HEAD_DIM=head_dim, BLOCK_M=_PREPARED_QUERIES, BLOCK_N=_PREPARED_SINKS, WITH_SUMS=with_dq,
        num_warps=4,
    )  # fmt: skip
    return Start(delta, sums if with_dq else None, *partial.sum(1))


def are_heads_apart(rule: Rule, group_size: int, head_dim: int) -> bool:
    """Whether a tile of work has one query head, so that fewer sums of dQ are in use at a time.

    Measured on an H100 without a window: 5.03 and not 6.83 ms at 1,64,8,8192,128, but 5.64 and not
    5.50 ms at 2,64,8,8192,64, whose sums are half as large.
    """
    return rule.window_size is None and group_size > 1 and head_dim == 128


def kernels() -> tuple[ModuleType, ModuleType]:
    """Return the modules of the schedule and of the backward kernel, which import Gluon."""
    names = ("backward_schedule", "backward")
    schedule, backward = (importlib.import_module(f"benchmarks.limits.{name}") for name in names)
    return schedule, backward


def plan(q: torch.Tensor, k: torch.Tensor, rule: Rule, with_dq: bool) -> tuple[Any, Any]:
    """Return Sizes and Options of the backward kernel."""
    (batch, num_q_heads, seqlen_q, head_dim), (_, num_kv_heads, seqlen_k, _) = q.shape, k.shape
    group_size, tiles = num_q_heads // num_kv_heads, triton.cdiv(seqlen_k, _KEYS)
    has_window = rule.window_size is not None
    heads_apart = with_dq and are_heads_apart(rule, group_size, head_dim)
    heads = 1 if heads_apart else group_size  # per tile of work
    works = batch * num_q_heads // heads
    section = l2_group_size(works, 2 * heads * seqlen_q * head_dim * q.element_size(), tiles)
    schedule, _ = kernels()
    sizes = schedule.Sizes(
        seqlen_q, seqlen_k, num_q_heads, num_kv_heads, group_size, section, tiles, works * tiles,
        rule.window_size or 0, rule.num_sink_tokens, rule.scale, rule.scale * math.log2(math.e),
    )  # fmt: skip
    in_registers = head_dim == 64  # head_dim 128 would need too many
    stages, *dq_stages = _STAGES[head_dim, has_window] if with_dq else _STAGES_WITHOUT_DQ
    options = (
        head_dim, stages, _CONSUMERS, rule.is_causal, has_window, in_registers, with_dq,
        heads_apart, *dq_stages,
    )  # fmt: skip
    return sizes, schedule.Options(*map(schedule.gl.constexpr, (*options, *_REGISTERS)))
