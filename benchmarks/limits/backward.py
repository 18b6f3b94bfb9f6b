"""dQ, dK and dV in Gluon for compute capability 9.0, except for sinks outside the window.

A consumer, one warpgroup, holds ROWS keys and their values, and loops over the queries of its head
group that see them. Scores and weights are transposed, (keys, queries), so that they multiply from
registers. A step has four products: K Q^T, V dO^T, P^T dO, dS^T Q. The exponentials overlap with
the second, dS with the third, and all of a consumer's arithmetic with the other one's products.
The fifth product, dS K, reads dS of both consumers from shared memory, a step later; they compute
it in turns. A warp adds it to sums in global memory by TMA, in no fixed order, so that the last
bits of dQ differ between calls. With HEADS_APART dK and dV of a head are added likewise, and the
heads of a group need not run together. Without dQ the last product is left out.
Grid: any number of programs; program i computes the tiles of work i, i + programs, ...
Memory traffic: K, V, dK, dV once; Q, dO and the sums of dQ once per tile of work.
Limits: those of the forward kernel; BLOCK_M = ROWS.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from benchmarks.limits.backward_schedule import (
    Shared,
    Tensors,
    find_queries,
    place,
    plan_parts,
    query_tile,
)
from benchmarks.limits.rings import (
    add_tile,
    allocate_barriers,
    allocate_tiles,
    load_rows,
    store_tile,
)
from benchmarks.limits.schedule import ROWS


@gluon.jit
def _producer(tensors, s, sizes, o: gl.constexpr):
    """Load keys and values of each tile of work, then queries, dO, lse and delta of its steps."""
    lanes: gl.constexpr = gl.BlockedLayout([2], [32], [1], [0])
    number = 0
    work = 0
    for tile in range(gl.program_id(0), sizes.num_tiles, gl.num_programs(0)):
        batch, kv_head, first_head, heads, key_start, query_start, tiles = place(tile, sizes, o)
        for i in gl.static_range(o.CONSUMERS):
            mbarrier.wait(s.kv_empty.index(i), work & 1 ^ 1)
            start = key_start + i * ROWS
            load_rows(tensors.k, batch, kv_head, start, s.k.index(i), s.kv_full.index(i))
            load_rows(tensors.v, batch, kv_head, start, s.v.index(i), s.kv_full.index(i))
        for step in range(0, heads * tiles):
            stage = (number + step) % o.STAGES
            full = s.q_full.index(stage)
            mbarrier.wait(s.q_empty.index(stage), (number + step) // o.STAGES & 1 ^ 1)
            head, start = find_queries(step, first_head, query_start, tiles, o)
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
        number += heads * tiles
        work += 1  # noqa: SIM113 (Triton has no enumerate)


@gluon.jit
def _skip(begin, end, number, first, s, sizes, INDEX: gl.constexpr, o: gl.constexpr):
    """Skip the steps from begin to end, whose pairs are hidden: give zeros to the product of dQ."""
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    for step in range(begin, end):
        stage = (number + step) % o.STAGES
        mbarrier.wait(s.q_full.index(stage), (number + step) // o.STAGES & 1)
        if o.WITH_DQ:
            give_ds(gl.zeros([ROWS, ROWS], s.k.dtype, S), number + step, s, INDEX, o)
        mbarrier.arrive(s.q_empty.index(stage), count=1)
        if o.WITH_DQ:
            take_turn(number + step - 1, first, s, sizes, INDEX, o)


@gluon.jit
def _fold(
    begin, end, dk, dv, k, v, ahead, tiles, number, first, s, sizes,
    S: gl.constexpr, A: gl.constexpr, IS_MASKED: gl.constexpr, INDEX: gl.constexpr,
    o: gl.constexpr,
):  # fmt: skip
    """Add the steps from begin to end to dK and dV; compute dQ one step behind.

    ahead: the query of column 0 in tile 0, minus the key of row 0.
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
            distance = columns + (ahead + query_tile(step, tiles, o) * ROWS) - rows
            visible = distance >= 0
            if o.HAS_WINDOW:
                visible = visible & (distance < sizes.window_size)
            p = gl.where(visible, p, 0.0)
        weights = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, A, 2))
        dv = warpgroup_mma(weights, dout, dv, is_async=True)
        # dP was issued before the product of dV, the only one that may still run.
        dp = warpgroup_mma_wait(1, deps=(dp,))
        delta = s.delta.index(stage).load(gl.SliceLayout(0, S))
        ds = (p * (dp - delta[None, :])).to(dtype)
        left = gl.convert_layout(ds, gl.DotOperandLayout(0, A, 2))
        dk = warpgroup_mma(left, q, dk, is_async=True)
        if o.WITH_DQ:
            give_ds(ds, number + step, s, INDEX, o)
        dk, dv, weights, left = warpgroup_mma_wait(0, deps=(dk, dv, weights, left))
        mbarrier.arrive(s.q_empty.index(stage), count=1)
        if o.WITH_DQ:
            take_turn(number + step - 1, first, s, sizes, INDEX, o)
    return dk, dv


@gluon.jit
def give_ds(ds, number, s, INDEX: gl.constexpr, o: gl.constexpr):
    """Write dS of ROWS keys to shared memory, for the product of dQ."""
    stage = number % o.DS_STAGES
    mbarrier.wait(s.ds_empty.index(stage), number // o.DS_STAGES & 1 ^ 1)
    s.ds.index(stage * o.CONSUMERS + INDEX).store(ds)
    fence_async_shared()
    mbarrier.arrive(s.ds_full.index(stage * o.CONSUMERS + INDEX), count=1)


@gluon.jit
def take_turn(number, first, s, sizes, INDEX: gl.constexpr, o: gl.constexpr):
    """If it is this consumer's turn, hand over the step's dQ from all keys of the tile of work.

    first: the first step of the tile of work, before which there is no dQ.
    """
    if (number >= first) & (number % o.CONSUMERS == INDEX):
        D: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, o.HEAD_DIM, 16])
        stage = number % o.DS_STAGES
        dq = gl.zeros([ROWS, o.HEAD_DIM], gl.float32, D)
        for i in gl.static_range(o.CONSUMERS):
            mbarrier.wait(s.ds_full.index(stage * o.CONSUMERS + i), number // o.DS_STAGES & 1)
            ds = s.ds.index(stage * o.CONSUMERS + i).permute((1, 0))
            k = s.k.index(i).reshape([ROWS, o.HEAD_DIM])
            dq = warpgroup_mma(ds, k, dq, use_acc=i > 0, is_async=True)
        dq = warpgroup_mma_wait(0, deps=(dq,))
        mbarrier.arrive(s.ds_empty.index(stage), count=1)
        hand_over(dq * sizes.scale, number, s, o)


@gluon.jit
def hand_over(value, number, s, o: gl.constexpr):
    """Write fp32 values (ROWS, HEAD_DIM) to shared memory for `_add`; consumers alternate."""
    buffer = number % o.DQ_STAGES
    if o.DQ_STAGES < o.CONSUMERS:  # a shared buffer: wait for the other consumer's turn
        mbarrier.wait(s.dq_full.index(buffer), (number - 1) & 1)
    mbarrier.wait(s.dq_empty.index(buffer), number // o.DQ_STAGES & 1 ^ 1)
    s.dq.index(buffer).reshape([ROWS, o.HEAD_DIM]).store(value)
    fence_async_shared()
    mbarrier.arrive(s.dq_full.index(buffer), count=1)


@gluon.jit
def _begin(tensors, batch, kv_head, key_start, sizes, A: gl.constexpr, o: gl.constexpr):
    """Return the initial dK and dV of ROWS keys: for sinks, sums over pairs outside the window."""
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
        batch, kv_head, _head, heads, key_start, query_start, tiles = place(tile, sizes, o)
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
        diagonal, plain, window_end, end = plan_parts(tiles, sizes, INDEX, o)
        ahead = query_start - key_start
        first = number
        for _ in range(0, heads):
            if o.HAS_WINDOW:
                _skip(0, diagonal, number, first, s, sizes, INDEX, o)
                dk, dv = _fold(
                    diagonal, plain, dk, dv, k, v, ahead, tiles, number, first, s, sizes,
                    S, A, True, INDEX, o,
                )  # fmt: skip
                dk, dv = _fold(
                    plain, window_end, dk, dv, k, v, ahead, tiles, number, first, s, sizes,
                    S, A, False, INDEX, o,
                )  # fmt: skip
                dk, dv = _fold(
                    window_end, end, dk, dv, k, v, ahead, tiles, number, first, s, sizes,
                    S, A, True, INDEX, o,
                )  # fmt: skip
                _skip(end, tiles, number, first, s, sizes, INDEX, o)
            else:  # from the last tile to the first one
                dk, dv = _fold(
                    0, tiles - plain, dk, dv, k, v, ahead, tiles, number, first, s, sizes,
                    S, A, False, INDEX, o,
                )  # fmt: skip
                dk, dv = _fold(
                    tiles - plain, tiles - diagonal, dk, dv, k, v, ahead, tiles, number, first,
                    s, sizes, S, A, True, INDEX, o,
                )  # fmt: skip
                _skip(tiles - diagonal, tiles, number, first, s, sizes, INDEX, o)
            number += tiles
        if o.WITH_DQ:
            take_turn(number - 1, first, s, sizes, INDEX, o)
        if o.HEADS_APART:
            for i in gl.static_range(o.CONSUMERS):
                if (number + i) % o.CONSUMERS == INDEX:
                    hand_over(dv, number + i, s, o)
            for i in gl.static_range(o.CONSUMERS, 2 * o.CONSUMERS):
                if (number + i) % o.CONSUMERS == INDEX:
                    hand_over(dk * sizes.scale, number + i, s, o)
        else:
            v_rows.store(dv.to(dtype))
        if o.WITH_DQ:  # until both consumers have multiplied dS and K
            mbarrier.arrive(s.k_read, count=1)
            mbarrier.wait(s.k_read, work & 1)
        if not o.HEADS_APART:
            k_rows.store((dk * sizes.scale).to(dtype))
            fence_async_shared()
            store_tile(tensors.dk, [batch, kv_head, key_start, 0], k_tile)
            store_tile(tensors.dv, [batch, kv_head, key_start, 0], v_tile)
            tma.store_wait(0)
        mbarrier.arrive(s.kv_empty.index(INDEX), count=1)
        work += 1  # noqa: SIM113 (Triton has no enumerate)


@gluon.jit
def _add(tensors, s, sizes, o: gl.constexpr):
    """Add the tiles of `hand_over` to global memory.

    With HEADS_APART dQ of a tile of work is followed by dV, then dK, of each consumer. The numbers
    of the next tile do not count these, since they return every barrier to the same phase.
    """
    number = 0
    for tile in range(gl.program_id(0), sizes.num_tiles, gl.num_programs(0)):
        batch, kv_head, first_head, heads, key_start, query_start, tiles = place(tile, sizes, o)
        for step in range(0, heads * tiles):
            head, start = find_queries(step, first_head, query_start, tiles, o)
            _add_tile(tensors.sums, batch, head, start, number + step, s, o)
        number += heads * tiles
        if o.HEADS_APART:
            gl.static_assert(o.CONSUMERS % o.DQ_STAGES == 0)
            for i in gl.static_range(o.CONSUMERS):
                start = key_start + (number + i) % o.CONSUMERS * ROWS
                _add_tile(tensors.dv, batch, kv_head, start, number + i, s, o)
            for i in gl.static_range(o.CONSUMERS, 2 * o.CONSUMERS):
                start = key_start + (number + i) % o.CONSUMERS * ROWS
                _add_tile(tensors.dk, batch, kv_head, start, number + i, s, o)


@gluon.jit
def _add_tile(desc, batch, head, start, number, s, o: gl.constexpr):
    buffer = number % o.DQ_STAGES
    mbarrier.wait(s.dq_full.index(buffer), number // o.DQ_STAGES & 1)
    add_tile(desc, [batch, head, start, 0], s.dq.index(buffer))
    tma.store_wait(0)
    mbarrier.arrive(s.dq_empty.index(buffer), count=1)


@gluon.jit
def backward_kernel(
    q, k, v, dout, dk, dv, sums, lse, delta, sink_dk, sink_dv, sizes, o: gl.constexpr
):  # fmt: skip
    """Set up shared memory, then split into two consumers, a producer and `_add`.

    Args: as in Tensors; sizes: Sizes; o: Options.
    """
    tensors = Tensors(q, k, v, dout, dk, dv, sums, lse, delta, sink_dk, sink_dv)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    DS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, ROWS], k.dtype)
    q_tiles = allocate_tiles(q, o.STAGES)
    ds_tiles, dq_tiles = q_tiles, q_tiles  # not used
    if o.WITH_DQ:
        ds_tiles = gl.allocate_shared_memory(k.dtype, [o.DS_STAGES * o.CONSUMERS, ROWS, ROWS], DS)
        dq_tiles = allocate_tiles(sums, o.DQ_STAGES)
    s = Shared(
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
    CONSUMER: gl.constexpr = o.CONSUMER_REGISTERS
    PRODUCER: gl.constexpr = o.PRODUCER_REGISTERS
    if o.WITH_DQ:
        gl.warp_specialize([
            (_consumer, (tensors, s, sizes, 0, o)),
            (_consumer, (tensors, s, sizes, 1, o)),
            (_producer, (tensors, s, sizes, o)),
            (_add, (tensors, s, sizes, o)),
        ], [4, 1, 1], [CONSUMER, PRODUCER, PRODUCER])  # fmt: skip
    else:
        gl.warp_specialize([
            (_consumer, (tensors, s, sizes, 0, o)),
            (_consumer, (tensors, s, sizes, 1, o)),
            (_producer, (tensors, s, sizes, o)),
        ], [4, 1], [CONSUMER, PRODUCER])  # fmt: skip
