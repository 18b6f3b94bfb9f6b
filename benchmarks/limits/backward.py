"""dQ, dK and dV in Gluon for compute capability 9.0, but for pairs outside the window: sinks.

A consumer, one warpgroup, holds ROWS keys and their values, and goes over the queries of its head
group that see them. Scores and weights are transposed, (keys, queries), so that they multiply from
registers; per step four products: K Q^T, V dO^T, P^T dO, dS^T Q. The exponentials run under the
second, dS under the third, and all of a consumer's arithmetic under the other one's products.
The fifth product, dS K, is a third warpgroup's. It finds dS of both consumers in shared memory, and
adds what they give dQ to sums in global memory, by atomics: the last bits differ between calls.
Grid: any number of programs; program i takes the tiles of work i, i + programs, ...
Memory traffic: K, V, dK, dV once; Q, dO and the fp32 sums of dQ once per tile of work.
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

from benchmarks.limits.rings import (
    add_tile,
    allocate_barriers,
    allocate_tiles,
    load_rows,
    store_tile,
)
from benchmarks.limits.schedule import ROWS


class KeyOptions(NamedTuple):
    """What the kernel is compiled for."""

    HEAD_DIM: int
    STAGES: int  # tiles of queries, with dO, lse and delta, in shared memory
    CONSUMERS: int
    IS_CAUSAL: bool
    HAS_WINDOW: bool
    IN_REGISTERS: bool  # keys and values: products read half as much shared memory
    WITH_DQ: bool
    DS_STAGES: int  # tiles of dS in shared memory, per consumer
    DQ_STAGES: int  # tiles of dQ there, fp32
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
    window_size: gl.tensor
    num_sink_tokens: gl.tensor  # keys whose sums do not begin at 0
    scale: gl.tensor
    scale_log2: gl.tensor


class KeyTensors(NamedTuple):
    """Descriptors of blocks (1, 1, ROWS, HEAD_DIM); pointers, fp32, dense.

    sums: of dQ, fp32, zeros at first.
    sink_dk, sink_dv: (batch, num_kv_heads, num_sink_tokens, HEAD_DIM), where the sums begin.
    """

    q: tma.tensor_descriptor
    k: tma.tensor_descriptor
    v: tma.tensor_descriptor
    dout: tma.tensor_descriptor
    dk: tma.tensor_descriptor
    dv: tma.tensor_descriptor
    sums: tma.tensor_descriptor
    lse: gl.tensor
    delta: gl.tensor
    sink_dk: gl.tensor
    sink_dv: gl.tensor


class KeyShared(NamedTuple):
    """Tiles in shared memory, and barriers; dK and dV leave from where K and V were."""

    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    q: gl.shared_memory_descriptor
    dout: gl.shared_memory_descriptor
    lse: gl.shared_memory_descriptor
    delta: gl.shared_memory_descriptor
    ds: gl.shared_memory_descriptor
    dq: gl.shared_memory_descriptor
    kv_full: gl.shared_memory_descriptor
    kv_empty: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    ds_full: gl.shared_memory_descriptor
    ds_empty: gl.shared_memory_descriptor
    dq_full: gl.shared_memory_descriptor
    dq_empty: gl.shared_memory_descriptor
    k_read: gl.shared_memory_descriptor


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
    end_query = sizes.seqlen_q
    if o.HAS_WINDOW:
        last_key = key_start + ROWS * o.CONSUMERS - 1
        end_query = gl.minimum(last_key + sizes.window_size, sizes.seqlen_q)
    steps = gl.cdiv(end_query - query_start, ROWS)
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
def _parts(steps, sizes, INDEX: gl.constexpr, o: gl.constexpr):
    """Return where a consumer's steps begin: on the diagonal, plain, at the window's end, beyond.

    Before and after these it sees no query; with dQ it computes zeros there, which the sums need.
    """
    begin, plain_begin, plain_end, end = 0, 0, steps, steps
    if o.IS_CAUSAL:
        plain_begin = gl.minimum(INDEX + 1, steps)
        if not o.WITH_DQ:
            begin = gl.minimum(INDEX, steps)
    if o.HAS_WINDOW:
        plain_end = gl.minimum(sizes.window_size // ROWS + INDEX, steps)
        plain_end = gl.maximum(plain_end, plain_begin)
        if not o.WITH_DQ:
            end = gl.minimum(gl.cdiv(sizes.window_size + ROWS * (INDEX + 1) - 1, ROWS), steps)
    return begin, plain_begin, plain_end, end


@gluon.jit
def _skip(begin, end, number, s, o: gl.constexpr):
    """Pass the steps from begin to end."""
    for step in range(begin, end):
        stage = (number + step) % o.STAGES
        mbarrier.wait(s.q_full.index(stage), (number + step) // o.STAGES & 1)
        mbarrier.arrive(s.q_empty.index(stage), count=1)


@gluon.jit
def _fold(
    begin, end, dk, dv, k, v, ahead, number, first, s, sizes,
    S: gl.constexpr, A: gl.constexpr, IS_MASKED: gl.constexpr, INDEX: gl.constexpr,
    o: gl.constexpr,
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
            distance = columns + (ahead + step * ROWS) - rows
            visible = distance >= 0
            if o.HAS_WINDOW:
                visible = visible & (distance < sizes.window_size)
            p = gl.where(visible, p, 0.0)
        weights = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, A, 2))
        dv = warpgroup_mma(weights, dout, dv, is_async=True)
        # dP was issued before the product of dV, which alone may still be under way.
        dp = warpgroup_mma_wait(1, deps=(dp,))
        delta = s.delta.index(stage).load(gl.SliceLayout(0, S))
        rounded = (p * (dp - delta[None, :])).to(dtype)
        ds = gl.convert_layout(rounded, gl.DotOperandLayout(0, A, 2))
        dk = warpgroup_mma(ds, q, dk, is_async=True)
        if o.WITH_DQ:
            ds_stage = (number + step) % o.DS_STAGES
            mbarrier.wait(s.ds_empty.index(ds_stage), (number + step) // o.DS_STAGES & 1 ^ 1)
            s.ds.index(ds_stage * o.CONSUMERS + INDEX).store(rounded)
            fence_async_shared()
            mbarrier.arrive(s.ds_full.index(ds_stage * o.CONSUMERS + INDEX), count=1)
        dk, dv, weights, ds = warpgroup_mma_wait(0, deps=(dk, dv, weights, ds))
        mbarrier.arrive(s.q_empty.index(stage), count=1)
        if o.WITH_DQ:
            before = number + step - 1
            if (before >= first) & (before % o.CONSUMERS == INDEX):
                _give_dq(before, s, o)
    return dk, dv


@gluon.jit
def _give_dq(number, s, o: gl.constexpr):
    """Leave what the keys of this tile of work give dQ in a step for `_add_dq`."""
    D: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, o.HEAD_DIM, 16])
    stage = number % o.DS_STAGES
    phase = number // o.DS_STAGES & 1
    dq = gl.zeros([ROWS, o.HEAD_DIM], gl.float32, D)
    for i in gl.static_range(o.CONSUMERS):
        mbarrier.wait(s.ds_full.index(stage * o.CONSUMERS + i), phase)
        ds = s.ds.index(stage * o.CONSUMERS + i).permute((1, 0))
        k = s.k.index(i).reshape([ROWS, o.HEAD_DIM])
        dq = warpgroup_mma(ds, k, dq, use_acc=i > 0, is_async=True)
    dq = warpgroup_mma_wait(0, deps=(dq,))
    mbarrier.arrive(s.ds_empty.index(stage), count=1)
    buffer = number % o.DQ_STAGES
    mbarrier.wait(s.dq_empty.index(buffer), number // o.DQ_STAGES & 1 ^ 1)
    s.dq.index(buffer).reshape([ROWS, o.HEAD_DIM]).store(dq)
    fence_async_shared()
    mbarrier.arrive(s.dq_full.index(buffer), count=1)


@gluon.jit
def _begin(tensors, batch, kv_head, key_start, sizes, A: gl.constexpr, o: gl.constexpr):
    """Return where dK and dV of ROWS keys begin: what pairs outside the window give the sinks."""
    rows = key_start + gl.arange(0, ROWS, layout=gl.SliceLayout(1, A))[:, None]
    columns = gl.arange(0, o.HEAD_DIM, layout=gl.SliceLayout(0, A))[None, :]
    first = gl.cast(batch * sizes.num_kv_heads + kv_head, gl.int64) * sizes.num_sink_tokens
    at = (first + rows) * o.HEAD_DIM + columns
    is_sink = (rows < sizes.num_sink_tokens) & (columns >= 0)
    dk = gl.load(tensors.sink_dk + at, mask=is_sink, other=0.0)
    return dk, gl.load(tensors.sink_dv + at, mask=is_sink, other=0.0)


@gluon.jit
def _consumer(tensors, s, sizes, INDEX: gl.constexpr, o: gl.constexpr):
    """Compute dK and dV of ROWS keys in each tile of work."""
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])  # scores
    A: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, o.HEAD_DIM, 16])  # dK, dV
    dtype: gl.constexpr = s.k.dtype
    k_tile, v_tile = s.k.index(INDEX), s.v.index(INDEX)
    k_rows = k_tile.reshape([ROWS, o.HEAD_DIM])
    v_rows = v_tile.reshape([ROWS, o.HEAD_DIM])
    number = 0
    work = 0
    for tile in range(gl.program_id(0), sizes.num_tiles, gl.num_programs(0)):
        batch, kv_head, key_start, query_start, steps = _place(tile, sizes, o)
        key_start += INDEX * ROWS
        dk = gl.zeros([ROWS, o.HEAD_DIM], gl.float32, A)
        dv = gl.zeros([ROWS, o.HEAD_DIM], gl.float32, A)
        if o.HAS_WINDOW:
            dk, dv = _begin(tensors, batch, kv_head, key_start, sizes, A, o)
        for i in gl.static_range(o.CONSUMERS):
            mbarrier.wait(s.kv_full.index(i), work & 1)
        k, v = k_rows, v_rows
        if o.IN_REGISTERS:
            k = k_rows.load(gl.DotOperandLayout(0, S, 2))
            v = v_rows.load(gl.DotOperandLayout(0, S, 2))
        first = number
        begin, plain_begin, plain_end, end = _parts(steps, sizes, INDEX, o)
        ahead = query_start - key_start
        for _ in range(0, sizes.group_size):
            _skip(0, begin, number, s, o)
            if o.IS_CAUSAL:
                dk, dv = _fold(
                    begin, plain_begin, dk, dv, k, v, ahead, number, first, s, sizes, S, A,
                    True, INDEX, o,
                )  # fmt: skip
            dk, dv = _fold(
                plain_begin, plain_end, dk, dv, k, v, ahead, number, first, s, sizes, S, A,
                False, INDEX, o,
            )  # fmt: skip
            if o.HAS_WINDOW:
                dk, dv = _fold(
                    plain_end, end, dk, dv, k, v, ahead, number, first, s, sizes, S, A,
                    True, INDEX, o,
                )  # fmt: skip
            _skip(end, steps, number, s, o)
            number += steps
        if o.WITH_DQ:
            if (number - 1) % o.CONSUMERS == INDEX:
                _give_dq(number - 1, s, o)
            mbarrier.arrive(s.k_read, count=1)
        v_rows.store(dv.to(dtype))
        if o.WITH_DQ:
            mbarrier.wait(s.k_read, work & 1)
        k_rows.store((dk * sizes.scale).to(dtype))
        fence_async_shared()
        store_tile(tensors.dk, [batch, kv_head, key_start, 0], k_tile)
        store_tile(tensors.dv, [batch, kv_head, key_start, 0], v_tile)
        tma.store_wait(0)
        mbarrier.arrive(s.kv_empty.index(INDEX), count=1)
        work += 1  # noqa: SIM113 (Triton has no enumerate)


@gluon.jit
def _add_dq(tensors, s, sizes, o: gl.constexpr):
    """Add the tiles of `_give_dq` to global memory."""
    number = 0
    for tile in range(gl.program_id(0), sizes.num_tiles, gl.num_programs(0)):
        batch, kv_head, key_start, query_start, steps = _place(tile, sizes, o)
        for step in range(0, sizes.group_size * steps):
            buffer = (number + step) % o.DQ_STAGES
            mbarrier.wait(s.dq_full.index(buffer), (number + step) // o.DQ_STAGES & 1)
            head = kv_head * sizes.group_size + step // steps
            start = query_start + step % steps * ROWS
            add_tile(tensors.sums, [batch, head, start, 0], s.dq.index(buffer))
            tma.store_wait(0)
            mbarrier.arrive(s.dq_empty.index(buffer), count=1)
        number += sizes.group_size * steps


@gluon.jit
def backward_kernel(
    q, k, v, dout, dk, dv, sums, lse, delta, sink_dk, sink_dv, sizes, o: gl.constexpr
):  # fmt: skip
    """Set up shared memory, then part into two consumers, a producer and `_add_dq`.

    Args: as in KeyTensors; sizes: KeySizes; o: KeyOptions.
    """
    tensors = KeyTensors(q, k, v, dout, dk, dv, sums, lse, delta, sink_dk, sink_dv)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    DS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, ROWS], k.dtype)
    q_tiles = allocate_tiles(q, o.STAGES)
    ds_tiles, dq_tiles = q_tiles, q_tiles  # not used
    if o.WITH_DQ:
        ds_tiles = gl.allocate_shared_memory(k.dtype, [o.DS_STAGES * o.CONSUMERS, ROWS, ROWS], DS)
        dq_tiles = allocate_tiles(sums, o.DQ_STAGES)
    s = KeyShared(
        allocate_tiles(k, o.CONSUMERS), allocate_tiles(v, o.CONSUMERS),
        q_tiles, allocate_tiles(dout, o.STAGES),
        gl.allocate_shared_memory(gl.float32, [o.STAGES, ROWS], PLAIN),
        gl.allocate_shared_memory(gl.float32, [o.STAGES, ROWS], PLAIN),
        ds_tiles, dq_tiles,
        allocate_barriers(o.CONSUMERS, 2), allocate_barriers(o.CONSUMERS, 1),
        allocate_barriers(o.STAGES, 3), allocate_barriers(o.STAGES, o.CONSUMERS),
        allocate_barriers(o.DS_STAGES * o.CONSUMERS, 1), allocate_barriers(o.DS_STAGES, 1),
        allocate_barriers(o.DQ_STAGES, 1), allocate_barriers(o.DQ_STAGES, 1),
        allocate_barriers(1, o.CONSUMERS).index(0),
    )  # fmt: skip
    if o.WITH_DQ:
        gl.warp_specialize([
            (_consumer, (tensors, s, sizes, 0, o)),
            (_consumer, (tensors, s, sizes, 1, o)),
            (_producer, (tensors, s, sizes, o)),
            (_add_dq, (tensors, s, sizes, o)),
        ], [4, 1, 1], [o.CONSUMER_REGISTERS, o.PRODUCER_REGISTERS, o.PRODUCER_REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (_consumer, (tensors, s, sizes, 0, o)),
            (_consumer, (tensors, s, sizes, 1, o)),
            (_producer, (tensors, s, sizes, o)),
        ], [4, 1], [o.CONSUMER_REGISTERS, o.PRODUCER_REGISTERS])  # fmt: skip
