"""Launches the forward kernel here: says when it can run, and chooses its configuration."""

from __future__ import annotations

import dataclasses
import importlib
import math
from types import ModuleType
from typing import Any

import torch
import triton

from given.arguments import positive_scale
from given.launch import l2_group_size

ROWS = 64  # queries per consumer
_SHARED_BYTES = 227 * 1024  # the most for a program on compute capability 9.0


@dataclasses.dataclass(frozen=True)
class Config:
    """How the forward kernel is compiled and launched.

    Args:
        block_n: keys of a tile: 64 or 128.
        stages: tiles of keys, and of values, in shared memory.
        q_stages: tiles of queries per consumer; with 2 the next tile loads during this one.
        consumers: warpgroups that compute, 2 to 4, with 64 queries each.
        by_heads: whether consumers compute the same queries of neighbouring heads of a group, and
            not neighbouring queries of one head.
        ping_pong: whether consumers issue their products in turns.
        persistent: whether to launch one program per multiprocessor, and not per tile of work.
        consumer_registers, producer_registers: per thread; consumer 0 gets the remaining ones.
    """

    block_n: int = 128
    stages: int = 2
    q_stages: int = 2
    consumers: int = 2
    by_heads: bool = False
    ping_pong: bool = True
    persistent: bool = True
    consumer_registers: int = 240
    producer_registers: int = 24


def config_for(
    q: torch.Tensor, k: torch.Tensor, *, is_causal: bool, window_size: int | None
) -> Config:
    """Return the configuration for a call, which was the fastest on an H200."""
    group_size, head_dim = q.shape[1] // k.shape[1], q.shape[3]
    # Two heads with 64 queries compute fewer hidden pairs than one head with 128.
    by_heads = is_causal and group_size % 2 == 0
    if window_size is not None:
        block_n = 64 if window_size < 512 else 128
        return Config(block_n, by_heads=by_heads)
    if head_dim == 64 and not is_causal:
        return Config(consumers=3, consumer_registers=160, producer_registers=32)
    # Causal tiles of work differ in length. If they are long and few, the hardware's scheduler
    # balances them better than a fixed order.
    persistent = not is_causal or by_heads or k.shape[2] <= 2048
    return Config(by_heads=by_heads, persistent=persistent)


def is_plain_faster(q: torch.Tensor, is_causal: bool) -> bool:
    """Whether the plain answer's forward kernel is faster than the one here.

    Measured on an H200 at head_dim 64; README.md has the figures.
    """
    return q.shape[3] == 64 and is_causal


def obstacle(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str | None:
    """Return why the kernels here cannot compute attention of these tensors, or None."""
    if not q.is_cuda:
        return "no GPU"
    if torch.cuda.get_device_capability(q.device) != (9, 0):
        return "compute capability is not 9.0"
    if q.dtype not in (torch.float16, torch.bfloat16):
        return "fp32"
    if q.shape[3] not in (64, 128):
        return f"head_dim {q.shape[3]}"
    if q.shape[2] == 1 or k.shape[2] == 1:
        return "length 1"
    if not all(loads_by_tma(tensor) for tensor in (q, k, v)):
        return "rows not at multiples of 16 bytes"
    return no_gluon()


def no_gluon() -> str | None:
    """Return why this Triton cannot compile the kernels here, or None."""
    try:
        kernels()
    except (ImportError, AttributeError, TypeError):
        return f"Triton {triton.__version__} has another Gluon"
    return None


def kernels() -> tuple[ModuleType, ModuleType]:
    """Return the modules of the schedule and of the forward kernel, which import Gluon.

    Raises:
        ImportError, AttributeError, TypeError: this Triton has no or another Gluon.
    """
    names = ("schedule", "forward")
    schedule, forward = (importlib.import_module(f"benchmarks.limits.{name}") for name in names)
    return schedule, forward


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    is_causal: bool,
    window_size: int | None = None,
    num_sink_tokens: int = 0,
    sink_logits: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention with the kernel here, for tensors without an `obstacle`.

    Args:
        q: (batch, num_q_heads, seqlen_q, head_dim), fp16 or bf16, head_dim 64 or 128.
        k, v: (batch, num_kv_heads, seqlen_k, head_dim), dtype of q; num_kv_heads divides
            num_q_heads. All three on a GPU of compute capability 9.0.
        is_causal: query i sees key j only if j <= i; then seqlen_q == seqlen_k.
        window_size: keys each query sees, itself included; causal attention alone.
        num_sink_tokens: keys at the start that every later query sees, too.
        sink_logits: (num_q_heads,), any floating dtype; its exp is one more term of the sums of
            its head. None: no such term.
        softmax_scale: any finite float; default 1 / sqrt(head_dim).
        config: None for `config_for`.

    Returns:
        out: shape and dtype of q, dense.
        lse: (batch, num_q_heads, seqlen_q), fp32, natural log-sum-exp of the scaled visible scores.

    Raises:
        ValueError: the configuration does not fit these tensors.
    """
    config = config or config_for(q, k, is_causal=is_causal, window_size=window_size)
    scale = 1.0 / math.sqrt(q.shape[3]) if softmax_scale is None else softmax_scale
    q, scale = positive_scale(q, scale)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    sizes, options = plan(
        q, k, config, is_causal=is_causal, window_size=window_size,
        num_sink_tokens=num_sink_tokens, has_sink_logits=sink_logits is not None, scale=scale,
    )  # fmt: skip
    programs = sizes.num_tiles
    if config.persistent:
        count = torch.cuda.get_device_properties(q.device).multi_processor_count
        programs = min(programs, count)  # registers suffice for one per multiprocessor
    blocks = (ROWS, config.block_n, config.block_n, ROWS)
    tiles = (descriptor(x, rows) for x, rows in zip((q, k, v, out), blocks, strict=True))
    _, forward = kernels()
    logits = lse if sink_logits is None else sink_logits.float().contiguous()
    forward.attention_kernel[(programs,)](*tiles, logits, lse, sizes, options, num_warps=4)
    return out, lse


def plan(
    q: torch.Tensor,
    k: torch.Tensor,
    config: Config,
    *,
    is_causal: bool,
    window_size: int | None,
    num_sink_tokens: int,
    scale: float,
    has_sink_logits: bool = False,
) -> tuple[Any, Any]:
    """Return Sizes and Options of the forward kernel.

    Raises:
        ValueError: the tiles exceed shared memory, or the heads do not divide by the consumers.
    """
    batch, num_q_heads, seqlen_q, head_dim = q.shape
    num_kv_heads, seqlen_k = k.shape[1:3]
    group_size = num_q_heads // num_kv_heads
    heads = config.consumers if config.by_heads else 1
    if group_size % heads:
        raise ValueError(f"by_heads: got groups of {group_size} heads, expected {heads} to divide")
    tiles = config.q_stages * config.consumers * ROWS + 2 * config.stages * config.block_n
    if tiles * head_dim * 2 + 1024 > _SHARED_BYTES:
        raise ValueError(
            f"stages: got {config.stages}, {tiles * head_dim * 2} bytes of tiles, expected fewer"
            f" than {_SHARED_BYTES}"
        )
    span = ROWS * config.consumers // heads
    query_tiles = triton.cdiv(seqlen_q, span)
    section = group_size // heads
    if is_causal:  # without a mask, the query tiles of one head are consecutive
        head_bytes = 2 * seqlen_k * head_dim * k.element_size()
        section *= l2_group_size(batch * num_kv_heads, head_bytes, section * query_tiles)
    schedule, _ = kernels()
    sizes = schedule.Sizes(
        seqlen_q, seqlen_k, min(window_size or 0, seqlen_k), min(num_sink_tokens, seqlen_k),
        num_q_heads, group_size, section, query_tiles, batch * num_q_heads // heads * query_tiles,
        scale, scale * math.log2(math.e),
    )  # fmt: skip
    options = schedule.Options(
        config.block_n, head_dim, config.stages, config.q_stages, config.consumers, heads, span,
        is_causal, window_size is not None, has_sink_logits, seqlen_k % config.block_n != 0,
        config.ping_pong, config.consumer_registers, config.producer_registers,
    )  # fmt: skip
    # Sums and products of options remain constants in the kernel only if each is a constexpr.
    return sizes, type(options)(*map(schedule.gl.constexpr, options))


def loads_by_tma(tensor: torch.Tensor) -> bool:
    """Whether TMA can load a tensor of heads: its rows begin at multiples of 16 bytes."""
    strides = zip(tensor.stride()[:3], tensor.shape[:3], strict=True)
    aligned = (size == 1 or (stride > 0 and stride % 8 == 0) for stride, size in strides)
    return tensor.data_ptr() % 16 == 0 and tensor.stride(3) == 1 and all(aligned)


def descriptor(tensor: torch.Tensor, rows: int) -> Any:
    """Return the TMA descriptor for blocks of `rows` rows of one head."""
    from triton.experimental.gluon.language import NVMMASharedLayout, bfloat16, float16, float32
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    head_dim = tensor.shape[3]
    block = [1, 1, rows, head_dim]
    dtypes = {torch.bfloat16: bfloat16, torch.float16: float16, torch.float32: float32}
    dtype = dtypes[tensor.dtype]
    layout = NVMMASharedLayout.get_default_for(block, dtype)
    # The stride of a dimension of size 1 is arbitrary, but TMA needs a multiple of 16 bytes.
    shape = list(tensor.shape)
    strides = [
        stride if size > 1 else head_dim * 8
        for stride, size in zip(tensor.stride()[:3], shape[:3], strict=True)
    ]
    return TensorDescriptor(tensor, shape, [*strides, 1], block, layout)
