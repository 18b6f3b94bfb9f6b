"""Forward attention in Gluon for compute capability 9.0: one producer, two to four consumers.

Algorithm: FlashAttention-3, arXiv:2407.08608, section 3.1. A producer, one warp, loads tiles by TMA
into a ring of stages. Each consumer, one warpgroup, holds 64 queries; its softmax overlaps with the
products of the other consumers, which take turns. README.md beside this file draws the schedule.
Grid: any number of programs; program i computes the tiles of work i, i + programs, ...
Memory traffic: Q and out once; K and V once per tile of work.
Limits: 16-bit types, head_dim 64 and 128, softmax_scale above 0, rows at multiples of 16 bytes.
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

# The initial maximum: below every score, and finite, since -inf - -inf is NaN.
LOWEST = gl.constexpr(-1.0e38)
LN_2 = gl.constexpr(0.6931471805599453)
LOG2_E = gl.constexpr(1.4426950408889634)


class Tensors(NamedTuple):
    """Inputs and outputs: tensor descriptors, and pointers to dense fp32."""

    q: tma.tensor_descriptor
    k: tma.tensor_descriptor
    v: tma.tensor_descriptor
    out: tma.tensor_descriptor
    sink_logits: gl.tensor
    lse: gl.tensor


class Shared(NamedTuple):
    """Tiles in shared memory, and barriers.

    full: a load has arrived. empty: the producer may overwrite the tile. turn[i]: consumer i may
    issue its products. The output of a consumer is stored from the tile of its queries.
    """

    q: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor
    k_empty: gl.shared_memory_descriptor
    v_full: gl.shared_memory_descriptor
    v_empty: gl.shared_memory_descriptor
    turn: gl.shared_memory_descriptor


@gluon.jit
def _load_keys(desc, batch, head, start, number, tiles, full, empty, o: gl.constexpr):
    """Load the number-th tile of keys or values as soon as its stage is free."""
    stage = number % o.STAGES
    mbarrier.wait(empty.index(stage), number // o.STAGES & 1 ^ 1)
    load_rows(desc, batch, head, start, tiles.index(stage), full.index(stage))


@gluon.jit
def _producer(tensors, s, sizes, o: gl.constexpr):
    """Load all tiles, in the order in which the consumers need them."""
    number = 0  # key tiles that this program has loaded for earlier tiles of work
    work = 0  # tiles of work so far
    for tile in range(gl.program_id(0), sizes.num_tiles, gl.num_programs(0)):
        batch, q_head, query_start = place(tile, sizes, o)
        kv_head = q_head // sizes.group_size
        walk = plan_walk(query_start, sizes, o)
        for i in gl.static_range(o.CONSUMERS):
            slot = work % o.Q_STAGES * o.CONSUMERS + i
            mbarrier.wait(s.q_empty.index(slot), work // o.Q_STAGES & 1 ^ 1)
            head, start = part_of(q_head, query_start, i, o)
            load_rows(tensors.q, batch, head, start, s.q.index(slot), s.q_full.index(slot))
        key = first_key(0, walk, o)
        _load_keys(tensors.k, batch, kv_head, key, number, s.k, s.k_full, s.k_empty, o)
        for step in range(1, walk.steps):
            next_key = first_key(step, walk, o)
            _load_keys(
                tensors.k, batch, kv_head, next_key, number + step, s.k, s.k_full, s.k_empty, o
            )
            _load_keys(
                tensors.v, batch, kv_head, key, number + step - 1, s.v, s.v_full, s.v_empty, o
            )
            key = next_key
        number += walk.steps
        _load_keys(tensors.v, batch, kv_head, key, number - 1, s.v, s.v_full, s.v_empty, o)
        work += 1  # noqa: SIM113 (Triton has no enumerate)


@gluon.jit
def _take_turn(number, turn, INDEX: gl.constexpr, o: gl.constexpr):
    """Wait until the consumer before this one has issued its products for the number-th tile.

    Consumer 0 waits for the last consumer's products for the tile before, at first for none.
    """
    if o.PING_PONG:
        phase = number & 1
        if INDEX == 0:
            phase = phase ^ 1
        mbarrier.wait(turn.index(INDEX), phase)


@gluon.jit
def _pass_turn(turn, INDEX: gl.constexpr, o: gl.constexpr):
    if o.PING_PONG:
        mbarrier.arrive(turn.index((INDEX + 1) % o.CONSUMERS), count=1)


@gluon.jit
def _weigh(scores, running_max, running_sum, scale_log2):
    """Return a tile's weights in fp32, the new maximum and sum, and the factor for older sums.

    The maxima are in units of scores * scale_log2.
    """
    new_max = gl.maximum(running_max, gl.max(scores, 1) * scale_log2)  # (ROWS,)
    rescale = gl.exp2(running_max - new_max)  # (ROWS,)
    weights = gl.exp2(scores * scale_log2 - new_max[:, None])  # (ROWS, BLOCK_N)
    return weights, new_max, running_sum * rescale + gl.sum(weights, 1), rescale


@gluon.jit
def _fold(
    begin, end, state, q, queries, walk, number, s, sizes,
    S: gl.constexpr, A: gl.constexpr, IS_MASKED: gl.constexpr, INDEX: gl.constexpr, o: gl.constexpr,
):  # fmt: skip
    """Add the steps from begin to end to the state; each multiplies the last one's weights."""
    weights, acc, running_max, running_sum = state
    dtype: gl.constexpr = s.k.dtype
    for step in range(begin, end):
        now, before = number + step, number + step - 1
        k_stage, v_stage = now % o.STAGES, before % o.STAGES
        k = s.k.index(k_stage).reshape([o.BLOCK_N, o.HEAD_DIM]).permute((1, 0))
        v = s.v.index(v_stage).reshape([o.BLOCK_N, o.HEAD_DIM])
        mbarrier.wait(s.k_full.index(k_stage), now // o.STAGES & 1)
        _take_turn(now, s.turn, INDEX, o)
        nothing = gl.zeros([ROWS, o.BLOCK_N], gl.float32, S)
        scores = warpgroup_mma(q, k, nothing, use_acc=False, is_async=True)
        mbarrier.wait(s.v_full.index(v_stage), before // o.STAGES & 1)
        acc = warpgroup_mma(weights, v, acc, is_async=True)
        _pass_turn(s.turn, INDEX, o)
        # Products end in order: with one left running, the scores are complete.
        scores = warpgroup_mma_wait(1, deps=(scores,))
        mbarrier.arrive(s.k_empty.index(k_stage), count=1)
        acc, weights = warpgroup_mma_wait(0, deps=(acc, weights))
        mbarrier.arrive(s.v_empty.index(v_stage), count=1)
        if IS_MASKED:
            scores = hide(scores, float("-inf"), queries, first_key(step, walk, o), sizes, S, o)
        p, running_max, running_sum, rescale = _weigh(
            scores, running_max, running_sum, sizes.scale_log2
        )
        weights = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, A, 2))
        acc = acc * gl.convert_layout(rescale, gl.SliceLayout(1, A))[:, None]
    return weights, acc, running_max, running_sum


@gluon.jit
def _consumer(tensors, s, sizes, INDEX: gl.constexpr, o: gl.constexpr):
    """Compute ROWS queries of one head in each tile of work."""
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, o.BLOCK_N, 16])  # scores
    A: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, o.HEAD_DIM, 16])  # acc
    dtype: gl.constexpr = s.k.dtype
    number = 0
    work = 0
    for tile in range(gl.program_id(0), sizes.num_tiles, gl.num_programs(0)):
        batch, head, query_start = place(tile, sizes, o)
        walk = plan_walk(query_start, sizes, o)
        head, query_start = part_of(head, query_start, INDEX, o)
        rows = query_start + gl.arange(0, ROWS, layout=gl.SliceLayout(1, S))
        queries = gl.minimum(rows, sizes.seqlen_q - 1)  # rows past the end get the last row's mask

        slot = work % o.Q_STAGES * o.CONSUMERS + INDEX
        q_tile = s.q.index(slot)
        q = q_tile.reshape([ROWS, o.HEAD_DIM])
        mbarrier.wait(s.q_full.index(slot), work // o.Q_STAGES & 1)
        stage = number % o.STAGES
        k = s.k.index(stage).reshape([o.BLOCK_N, o.HEAD_DIM]).permute((1, 0))
        mbarrier.wait(s.k_full.index(stage), number // o.STAGES & 1)
        _take_turn(number, s.turn, INDEX, o)
        nothing = gl.zeros([ROWS, o.BLOCK_N], gl.float32, S)
        scores = warpgroup_mma(q, k, nothing, use_acc=False, is_async=True)
        _pass_turn(s.turn, INDEX, o)
        scores = warpgroup_mma_wait(0, deps=(scores,))
        mbarrier.arrive(s.k_empty.index(stage), count=1)
        if o.IS_CAUSAL or o.IS_RAGGED:
            scores = hide(scores, float("-inf"), queries, first_key(0, walk, o), sizes, S, o)
        running_max = gl.full([ROWS], LOWEST, gl.float32, gl.SliceLayout(1, S))
        p, running_max, running_sum, _ = _weigh(
            scores, running_max, gl.zeros_like(running_max), sizes.scale_log2
        )
        weights = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, A, 2))
        acc = gl.zeros([ROWS, o.HEAD_DIM], gl.float32, A)
        state = (weights, acc, running_max, running_sum)
        if o.IS_CAUSAL:
            state = _fold(
                1, walk.plain_begin, state, q, queries, walk, number, s, sizes, S, A, True, INDEX, o
            )
        state = _fold(
            walk.plain_begin, walk.plain_end, state,
            q, queries, walk, number, s, sizes, S, A, False, INDEX, o,
        )  # fmt: skip
        if o.HAS_WINDOW:
            state = _fold(
                walk.plain_end, walk.steps, state,
                q, queries, walk, number, s, sizes, S, A, True, INDEX, o,
            )  # fmt: skip
        weights, acc, running_max, running_sum = state
        number += walk.steps

        stage = (number - 1) % o.STAGES
        mbarrier.wait(s.v_full.index(stage), (number - 1) // o.STAGES & 1)
        v = s.v.index(stage).reshape([o.BLOCK_N, o.HEAD_DIM])
        acc = warpgroup_mma(weights, v, acc, is_async=True)
        final = gl.full([ROWS], 1.0, gl.float32, gl.SliceLayout(1, S))
        if o.HAS_SINK_LOGITS:  # one more term of the sum, which has no value row
            logit = gl.load(tensors.sink_logits + head) * LOG2_E
            new_max = gl.maximum(running_max, logit)
            final = gl.exp2(running_max - new_max)
            running_sum = running_sum * final + gl.exp2(logit - new_max)
            running_max = new_max
        lse = (running_max + gl.log2(running_sum)) * LN_2  # (ROWS,)
        lse_start = gl.cast(batch * sizes.num_q_heads + head, gl.int64) * sizes.seqlen_q
        gl.store(tensors.lse + lse_start + rows, lse, mask=rows < sizes.seqlen_q)
        acc, weights = warpgroup_mma_wait(0, deps=(acc, weights))
        mbarrier.arrive(s.v_empty.index(stage), count=1)
        acc = acc * gl.convert_layout(final / running_sum, gl.SliceLayout(1, A))[:, None]
        q.store(acc.to(dtype))
        fence_async_shared()
        store_tile(tensors.out, [batch, head, query_start, 0], q_tile)
        tma.store_wait(0)
        mbarrier.arrive(s.q_empty.index(slot), count=1)
        work += 1  # noqa: SIM113 (Triton has no enumerate)


@gluon.jit
def attention_kernel(q, k, v, out, sink_logits, lse, sizes, o: gl.constexpr):
    """Set up shared memory, then split into consumers and a producer.

    Args:
        q, k, v, out: descriptors of blocks (1, 1, ROWS, HEAD_DIM); k, v (1, 1, BLOCK_N, HEAD_DIM).
        sink_logits: pointer to (num_q_heads,), fp32; any pointer without HAS_SINK_LOGITS.
        lse: pointer to (batch, num_q_heads, seqlen_q), fp32, dense.
        sizes: Sizes. o: Options.
    """
    tensors = Tensors(q, k, v, out, sink_logits, lse)
    s = Shared(
        allocate_tiles(q, o.CONSUMERS * o.Q_STAGES),
        allocate_tiles(k, o.STAGES), allocate_tiles(v, o.STAGES),
        allocate_barriers(o.CONSUMERS * o.Q_STAGES, 1),
        allocate_barriers(o.CONSUMERS * o.Q_STAGES, 1),
        allocate_barriers(o.STAGES, 1), allocate_barriers(o.STAGES, o.CONSUMERS),
        allocate_barriers(o.STAGES, 1), allocate_barriers(o.STAGES, o.CONSUMERS),
        allocate_barriers(o.CONSUMERS, 1),
    )  # fmt: skip
    if o.CONSUMERS == 2:
        gl.warp_specialize([
            (_consumer, (tensors, s, sizes, 0, o)),
            (_consumer, (tensors, s, sizes, 1, o)),
            (_producer, (tensors, s, sizes, o)),
        ], [4, 1], [o.CONSUMER_REGISTERS, o.PRODUCER_REGISTERS])  # fmt: skip
    elif o.CONSUMERS == 3:
        gl.warp_specialize([
            (_consumer, (tensors, s, sizes, 0, o)),
            (_consumer, (tensors, s, sizes, 1, o)),
            (_consumer, (tensors, s, sizes, 2, o)),
            (_producer, (tensors, s, sizes, o)),
        ], [4, 4, 1], [o.CONSUMER_REGISTERS] * 2 + [o.PRODUCER_REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (_consumer, (tensors, s, sizes, 0, o)),
            (_consumer, (tensors, s, sizes, 1, o)),
            (_consumer, (tensors, s, sizes, 2, o)),
            (_consumer, (tensors, s, sizes, 3, o)),
            (_producer, (tensors, s, sizes, o)),
        ], [4, 4, 4, 1], [o.CONSUMER_REGISTERS] * 3 + [o.PRODUCER_REGISTERS])  # fmt: skip
