"""dQ in Gluon for compute capability 9.0.

A consumer, one warpgroup, holds ROWS queries and their dO, and goes over the keys that the forward
kernel visits, in its order; per step three products: Q K^T, dO V^T, dS K. The exponentials run
under the second, and all of a consumer's arithmetic under the other one's products.
Grid: any number of programs; program i takes the tiles of work i, i + programs, ...
Memory traffic: Q, dO, dQ once; K and V once per tile of work.
Limits: those of the forward kernel.
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
from benchmarks.limits.schedule import ROWS, first_key, hide, part_of, place, plan_walk


class QueryTensors(NamedTuple):
    """Descriptors of blocks (1, 1, ROWS or BLOCK_N, HEAD_DIM); pointers to lse and delta, fp32."""

    q: tma.tensor_descriptor
    k: tma.tensor_descriptor
    v: tma.tensor_descriptor
    dout: tma.tensor_descriptor
    dq: tma.tensor_descriptor
    lse: gl.tensor
    delta: gl.tensor


class QueryShared(NamedTuple):
    """Tiles in shared memory, and barriers; dQ leaves from where the queries were."""

    q: gl.shared_memory_descriptor
    dout: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    kv_full: gl.shared_memory_descriptor
    kv_empty: gl.shared_memory_descriptor


@gluon.jit
def _producer(tensors, s, sizes, o: gl.constexpr):
    """Load queries and dO once, then the tiles of keys and values from right to left."""
    number = 0
    work = 0
    for tile in range(gl.program_id(0), sizes.num_tiles, gl.num_programs(0)):
        batch, q_head, query_start = place(tile, sizes, o)
        walk = plan_walk(query_start, sizes, o)
        for i in gl.static_range(o.CONSUMERS):
            mbarrier.wait(s.q_empty.index(i), work & 1 ^ 1)
            head, start = part_of(q_head, query_start, i, o)
            load_rows(tensors.q, batch, head, start, s.q.index(i), s.q_full.index(i))
            load_rows(tensors.dout, batch, head, start, s.dout.index(i), s.q_full.index(i))
        kv_head = q_head // sizes.group_size
        for step in range(0, walk.steps):
            stage = (number + step) % o.STAGES
            full = s.kv_full.index(stage)
            mbarrier.wait(s.kv_empty.index(stage), (number + step) // o.STAGES & 1 ^ 1)
            start = first_key(step, walk, o)
            load_rows(tensors.k, batch, kv_head, start, s.k.index(stage), full)
            load_rows(tensors.v, batch, kv_head, start, s.v.index(stage), full)
        number += walk.steps
        work += 1  # noqa: SIM113 (Triton has no enumerate)


@gluon.jit
def _fold(
    begin, end, dq, q, dout, lse, delta, query_start, walk, number, s, sizes,
    S: gl.constexpr, A: gl.constexpr, IS_MASKED: gl.constexpr, o: gl.constexpr,
):  # fmt: skip
    """Add the steps from begin to end to dQ."""
    dtype: gl.constexpr = s.k.dtype
    for step in range(begin, end):
        now, after = number + step, number + step + 1
        stage = now % o.STAGES
        k = s.k.index(stage).reshape([o.BLOCK_N, o.HEAD_DIM])
        v = s.v.index(stage).reshape([o.BLOCK_N, o.HEAD_DIM])
        nothing = gl.zeros([ROWS, o.BLOCK_N], gl.float32, S)
        scores = warpgroup_mma(q, k.permute((1, 0)), nothing, use_acc=False, is_async=True)
        dp = warpgroup_mma(dout, v.permute((1, 0)), nothing, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(1, deps=(scores,))
        p = gl.exp2(scores * sizes.scale_log2 - lse[:, None])  # (ROWS, BLOCK_N)
        if IS_MASKED:
            queries = query_start + gl.arange(0, ROWS, layout=gl.SliceLayout(1, S))
            p = hide(p, 0.0, queries, first_key(step, walk, o), sizes, S, o)
        # As in the forward kernel: this wait keeps the next one from moving up.
        mbarrier.wait(
            s.kv_full.index(after % o.STAGES), after // o.STAGES & 1, pred=step + 1 < walk.steps
        )
        dp = warpgroup_mma_wait(0, deps=(dp,))
        ds = gl.convert_layout((p * (dp - delta[:, None])).to(dtype), gl.DotOperandLayout(0, A, 2))
        dq = warpgroup_mma(ds, k, dq, is_async=True)
        dq, ds = warpgroup_mma_wait(0, deps=(dq, ds))
        mbarrier.arrive(s.kv_empty.index(stage), count=1)
    return dq


@gluon.jit
def _consumer(tensors, s, sizes, INDEX: gl.constexpr, o: gl.constexpr):
    """Compute dQ of ROWS queries in each tile of work."""
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, o.BLOCK_N, 16])  # scores
    A: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, o.HEAD_DIM, 16])  # dQ
    dtype: gl.constexpr = s.k.dtype
    q_tile = s.q.index(INDEX)
    q = q_tile.reshape([ROWS, o.HEAD_DIM])
    dout = s.dout.index(INDEX).reshape([ROWS, o.HEAD_DIM])
    number = 0
    work = 0
    for tile in range(gl.program_id(0), sizes.num_tiles, gl.num_programs(0)):
        batch, q_head, start = place(tile, sizes, o)
        walk = plan_walk(start, sizes, o)
        head, query_start = part_of(q_head, start, INDEX, o)
        queries = query_start + gl.arange(0, ROWS, layout=gl.SliceLayout(1, S))
        first = gl.cast(batch * sizes.num_q_heads + head, gl.int64) * sizes.seqlen_q
        is_query = queries < sizes.seqlen_q
        # An infinite lse past the end makes all weights 0 there.
        lse = gl.load(tensors.lse + first + queries, mask=is_query, other=float("inf"))
        lse = lse * 1.4426950408889634
        delta = gl.load(tensors.delta + first + queries, mask=is_query, other=0.0)
        dq = gl.zeros([ROWS, o.HEAD_DIM], gl.float32, A)
        mbarrier.wait(s.q_full.index(INDEX), work & 1)
        mbarrier.wait(s.kv_full.index(number % o.STAGES), number // o.STAGES & 1)
        plain_begin, plain_end = 0, walk.steps
        if o.IS_CAUSAL:
            plain_begin = walk.plain_begin
            dq = _fold(
                0, plain_begin, dq, q, dout, lse, delta, query_start, walk, number, s, sizes,
                S, A, True, o,
            )  # fmt: skip
        if o.HAS_WINDOW:
            plain_end = walk.plain_end
        dq = _fold(
            plain_begin, plain_end, dq, q, dout, lse, delta, query_start, walk, number, s, sizes,
            S, A, False, o,
        )  # fmt: skip
        if o.HAS_WINDOW:
            dq = _fold(
                plain_end, walk.steps, dq, q, dout, lse, delta, query_start, walk, number, s, sizes,
                S, A, True, o,
            )  # fmt: skip
        number += walk.steps
        q.store((dq * sizes.scale).to(dtype))
        fence_async_shared()
        store_tile(tensors.dq, [batch, head, query_start, 0], q_tile)
        tma.store_wait(0)
        mbarrier.arrive(s.q_empty.index(INDEX), count=1)
        work += 1  # noqa: SIM113 (Triton has no enumerate)


@gluon.jit
def dq_kernel(q, k, v, dout, dq, lse, delta, sizes, o: gl.constexpr):
    """Set up shared memory, then part into two consumers and a producer.

    Args: as in QueryTensors; sizes: Sizes; o: Options.
    """
    tensors = QueryTensors(q, k, v, dout, dq, lse, delta)
    s = QueryShared(
        allocate_tiles(q, o.CONSUMERS), allocate_tiles(dout, o.CONSUMERS),
        allocate_tiles(k, o.STAGES), allocate_tiles(v, o.STAGES),
        allocate_barriers(o.CONSUMERS, 2), allocate_barriers(o.CONSUMERS, 1),
        allocate_barriers(o.STAGES, 2), allocate_barriers(o.STAGES, o.CONSUMERS),
    )  # fmt: skip
    gl.warp_specialize([
        (_consumer, (tensors, s, sizes, 0, o)),
        (_consumer, (tensors, s, sizes, 1, o)),
        (_producer, (tensors, s, sizes, o)),
    ], [4, 1], [o.CONSUMER_REGISTERS, o.PRODUCER_REGISTERS])  # fmt: skip
