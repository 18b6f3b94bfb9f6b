"""dK and dV of causal or full attention in Gluon for compute capability 9.0.

A consumer, one warpgroup, holds ROWS keys and their values, and goes over the queries of its head
group that see them. Scores and weights are transposed, (keys, queries), so that they multiply from
registers; per step four products: K Q^T, V dO^T, P^T dO, dS^T Q. The exponentials run under the
second, dS under the third, and all of a consumer's arithmetic under the other one's products.
Grid: any number of programs; program i takes the tiles of work i, i + programs, ...
Memory traffic: K, V, dK, dV once; Q and dO once per tile of work.
Limits: those of the forward kernel; BLOCK_M = ROWS.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from benchmarks.limits.rings import allocate_barriers, allocate_tiles, load_rows, store_tile
from benchmarks.limits.schedule import ROWS


class KeyOptions(NamedTuple):
    """What the kernel is compiled for."""

    HEAD_DIM: int
    STAGES: int  # tiles of queries, with dO, lse and delta, in shared memory
    CONSUMERS: int
    IS_CAUSAL: bool
    CONSUMER_REGISTERS: int
    PRODUCER_REGISTERS: int


class KeySizes(NamedTuple):
    """What the kernel is launched with."""

    seqlen_q: gl.tensor
    seqlen_k: gl.tensor
    num_q_heads: gl.tensor
    num_kv_heads: gl.tensor
    group_size: gl.tensor
    section: gl.tensor  # heads of keys that run together
    num_key_tiles: gl.tensor  # tiles of CONSUMERS * ROWS keys
    num_tiles: gl.tensor  # tiles of work
    scale: gl.tensor
    scale_log2: gl.tensor


class KeyTensors(NamedTuple):
    """Descriptors of blocks (1, 1, ROWS, HEAD_DIM); pointers to lse and delta, fp32, dense."""

    q: tma.tensor_descriptor
    k: tma.tensor_descriptor
    v: tma.tensor_descriptor
    dout: tma.tensor_descriptor
    dk: tma.tensor_descriptor
    dv: tma.tensor_descriptor
    lse: gl.tensor
    delta: gl.tensor


class KeyShared(NamedTuple):
    """Tiles in shared memory, and barriers; dK and dV leave from where K and V were."""

    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    q: gl.shared_memory_descriptor
    dout: gl.shared_memory_descriptor
    lse: gl.shared_memory_descriptor
    delta: gl.shared_memory_descriptor
    kv_full: gl.shared_memory_descriptor
    kv_empty: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor


@gluon.jit
def _place(tile, sizes, o: gl.constexpr):
    """Return batch, head of keys, first key, first query, and steps per query head of a tile."""
    rest = tile // sizes.section
    kv_head = rest // sizes.num_key_tiles * sizes.section + tile % sizes.section
    # The first keys have most queries: longest first.
    key_start = rest % sizes.num_key_tiles * (ROWS * o.CONSUMERS)
    query_start = 0
    if o.IS_CAUSAL:
        query_start = key_start  # ROWS divides it
    steps = gl.cdiv(sizes.seqlen_q - query_start, ROWS)
    return (
        kv_head // sizes.num_kv_heads,
        kv_head % sizes.num_kv_heads,
        key_start,
        query_start,
        steps,
    )


@gluon.jit
def _producer(tensors, s, sizes, o: gl.constexpr):
    """Load keys and values once, then queries, dO, lse and delta of each head of the group."""
    lanes: gl.constexpr = gl.BlockedLayout([2], [32], [1], [0])
    number = 0
    work = 0
    for tile in range(gl.program_id(0), sizes.num_tiles, gl.num_programs(0)):
        batch, kv_head, key_start, query_start, steps = _place(tile, sizes, o)
        for i in gl.static_range(o.CONSUMERS):
            mbarrier.wait(s.kv_empty.index(i), work & 1 ^ 1)
            start = key_start + i * ROWS
            load_rows(tensors.k, batch, kv_head, start, s.k.index(i), s.kv_full.index(i))
            load_rows(tensors.v, batch, kv_head, start, s.v.index(i), s.kv_full.index(i))
        for step in range(0, sizes.group_size * steps):
            stage = (number + step) % o.STAGES
            full = s.q_full.index(stage)
            mbarrier.wait(s.q_empty.index(stage), (number + step) // o.STAGES & 1 ^ 1)
            head = kv_head * sizes.group_size + step // steps
            start = query_start + step % steps * ROWS
            load_rows(tensors.q, batch, head, start, s.q.index(stage), full)
            load_rows(tensors.dout, batch, head, start, s.dout.index(stage), full)
            queries = start + gl.arange(0, ROWS, layout=lanes)
            first = gl.cast(batch * sizes.num_q_heads + head, gl.int64) * sizes.seqlen_q
            is_query = queries < sizes.seqlen_q
            # An infinite lse past the end makes all weights 0 there.
            lse = gl.load(tensors.lse + first + queries, mask=is_query, other=float("inf"))
            delta = gl.load(tensors.delta + first + queries, mask=is_query, other=0.0)
            s.lse.index(stage).store(lse * 1.4426950408889634)
            s.delta.index(stage).store(delta)
            mbarrier.arrive(full, count=1)
        number += sizes.group_size * steps
        work += 1  # noqa: SIM113 (Triton has no enumerate)


@gluon.jit
def _fold(
    begin, end, dk, dv, k, v, ahead, number, s, sizes,
    S: gl.constexpr, A: gl.constexpr, IS_MASKED: gl.constexpr, o: gl.constexpr,
):  # fmt: skip
    """Add the steps from begin to end to dK and dV.

    ahead: the query of column 0 in step 0, less the key of row 0.
    """
    dtype: gl.constexpr = s.k.dtype
    for step in range(begin, end):
        stage = (number + step) % o.STAGES
        mbarrier.wait(s.q_full.index(stage), (number + step) // o.STAGES & 1)
        q = s.q.index(stage).reshape([ROWS, o.HEAD_DIM])
        dout = s.dout.index(stage).reshape([ROWS, o.HEAD_DIM])
        nothing = gl.zeros([ROWS, ROWS], gl.float32, S)
        scores = warpgroup_mma(k, q.permute((1, 0)), nothing, use_acc=False, is_async=True)
        dp = warpgroup_mma(v, dout.permute((1, 0)), nothing, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(1, deps=(scores,))
        lse = s.lse.index(stage).load(gl.SliceLayout(0, S))
        p = gl.exp2(scores * sizes.scale_log2 - lse[None, :])  # (keys, queries)
        if IS_MASKED:
            rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, S))[:, None]
            columns = gl.arange(0, ROWS, layout=gl.SliceLayout(0, S))[None, :]
            p = gl.where(rows <= columns + (ahead + step * ROWS), p, 0.0)
        weights = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, A, 2))
        dv = warpgroup_mma(weights, dout, dv, is_async=True)
        # dP was issued before the product of dV, which alone may still be under way.
        dp = warpgroup_mma_wait(1, deps=(dp,))
        delta = s.delta.index(stage).load(gl.SliceLayout(0, S))
        ds = gl.convert_layout((p * (dp - delta[None, :])).to(dtype), gl.DotOperandLayout(0, A, 2))
        dk = warpgroup_mma(ds, q, dk, is_async=True)
        dk, dv, weights, ds = warpgroup_mma_wait(0, deps=(dk, dv, weights, ds))
        mbarrier.arrive(s.q_empty.index(stage), count=1)
    return dk, dv


@gluon.jit
def _consumer(tensors, s, sizes, INDEX: gl.constexpr, o: gl.constexpr):
    """Compute dK and dV of ROWS keys in each tile of work."""
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])  # scores
    A: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, o.HEAD_DIM, 16])  # dK, dV
    dtype: gl.constexpr = s.k.dtype
    k_tile, v_tile = s.k.index(INDEX), s.v.index(INDEX)
    k = k_tile.reshape([ROWS, o.HEAD_DIM])
    v = v_tile.reshape([ROWS, o.HEAD_DIM])
    number = 0
    work = 0
    for tile in range(gl.program_id(0), sizes.num_tiles, gl.num_programs(0)):
        batch, kv_head, key_start, query_start, steps = _place(tile, sizes, o)
        key_start += INDEX * ROWS
        dk = gl.zeros([ROWS, o.HEAD_DIM], gl.float32, A)
        dv = gl.zeros([ROWS, o.HEAD_DIM], gl.float32, A)
        mbarrier.wait(s.kv_full.index(INDEX), work & 1)
        for _ in range(0, sizes.group_size):
            plain = 0
            if o.IS_CAUSAL:  # the first steps of a head meet the diagonal
                plain = gl.minimum(steps, o.CONSUMERS)
                dk, dv = _fold(
                    0, plain, dk, dv, k, v, query_start - key_start, number, s, sizes,
                    S, A, True, o,
                )  # fmt: skip
            dk, dv = _fold(
                plain, steps, dk, dv, k, v, 0, number, s, sizes, S, A, False, o
            )  # fmt: skip
            number += steps
        k.store((dk * sizes.scale).to(dtype))
        v.store(dv.to(dtype))
        fence_async_shared()
        store_tile(tensors.dk, [batch, kv_head, key_start, 0], k_tile)
        store_tile(tensors.dv, [batch, kv_head, key_start, 0], v_tile)
        tma.store_wait(0)
        mbarrier.arrive(s.kv_empty.index(INDEX), count=1)
        work += 1  # noqa: SIM113 (Triton has no enumerate)


@gluon.jit
def dkdv_kernel(q, k, v, dout, dk, dv, lse, delta, sizes, o: gl.constexpr):
    """Set up shared memory, then part into two consumers and a producer.

    Args: as in KeyTensors; sizes: KeySizes; o: KeyOptions.
    """
    tensors = KeyTensors(q, k, v, dout, dk, dv, lse, delta)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    s = KeyShared(
        allocate_tiles(k, o.CONSUMERS), allocate_tiles(v, o.CONSUMERS),
        allocate_tiles(q, o.STAGES), allocate_tiles(dout, o.STAGES),
        gl.allocate_shared_memory(gl.float32, [o.STAGES, ROWS], PLAIN),
        gl.allocate_shared_memory(gl.float32, [o.STAGES, ROWS], PLAIN),
        allocate_barriers(o.CONSUMERS, 2), allocate_barriers(o.CONSUMERS, 1),
        allocate_barriers(o.STAGES, 3), allocate_barriers(o.STAGES, o.CONSUMERS),
    )  # fmt: skip
    gl.warp_specialize([
        (_consumer, (tensors, s, sizes, 0, o)),
        (_consumer, (tensors, s, sizes, 1, o)),
        (_producer, (tensors, s, sizes, o)),
    ], [4, 1], [o.CONSUMER_REGISTERS, o.PRODUCER_REGISTERS])  # fmt: skip
