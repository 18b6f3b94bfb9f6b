"""The order of work of the forward kernel: tiles of work, and the tiles of keys that each visits.

A tile of work has ROWS queries per consumer: consecutive ones of one head, or the same ones of
several heads. All consumers visit the same tiles of keys at the same time.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

ROWS = gl.constexpr(64)  # queries per consumer: the rows of one warpgroup product


class Options(NamedTuple):
    """The compile-time constants of the kernel."""

    BLOCK_N: int  # keys of a tile
    HEAD_DIM: int
    STAGES: int  # tiles of keys, and of values, in shared memory
    Q_STAGES: int  # tiles of queries per consumer in shared memory
    CONSUMERS: int
    HEADS: int  # heads of a tile of work: 1, or one per consumer
    SPAN: int  # queries of a head in a tile of work: ROWS, or ROWS per consumer
    IS_CAUSAL: bool
    HAS_WINDOW: bool
    HAS_SINK_LOGITS: bool
    IS_RAGGED: bool  # the last tile of keys reaches past the end
    PING_PONG: bool  # consumers issue their products in turns
    CONSUMER_REGISTERS: int
    PRODUCER_REGISTERS: int


class Sizes(NamedTuple):
    """The runtime arguments of a kernel; `section`: heads that run together, in units of HEADS."""

    seqlen_q: gl.tensor
    seqlen_k: gl.tensor
    window_size: gl.tensor
    num_sink_tokens: gl.tensor
    num_q_heads: gl.tensor
    group_size: gl.tensor
    section: gl.tensor
    num_query_tiles: gl.tensor
    num_tiles: gl.tensor  # tiles of work
    scale: gl.tensor
    scale_log2: gl.tensor


class CountedPairs(NamedTuple):
    """The key tiles to visit, from right to left, then the tiles of the sinks.

    Step i visits tile end - 1 - i, and from window_steps on the tiles from key 0 on. In the steps
    from plain_begin to plain_end every query sees every key; the other steps are masked.
    """

    end: gl.tensor
    window_steps: gl.tensor
    steps: gl.tensor
    plain_begin: gl.tensor
    plain_end: gl.tensor


@gluon.jit
def place(tile, sizes, o: gl.constexpr):
    """Return batch, first head and first query of a tile of work: in a section longest first.

    Consecutive tiles of work share a section's keys and values, which stay in the L2 cache.
    """
    rest = tile // sizes.section
    query_tile = rest % sizes.num_query_tiles
    if o.IS_CAUSAL:
        query_tile = sizes.num_query_tiles - 1 - query_tile
    head = rest // sizes.num_query_tiles * sizes.section + tile % sizes.section
    head *= o.HEADS
    return head // sizes.num_q_heads, head % sizes.num_q_heads, query_tile * o.SPAN


@gluon.jit
def part_of(head, query_start, INDEX: gl.constexpr, o: gl.constexpr):
    """Return head and first query of consumer INDEX in a tile of work."""
    if o.HEADS == 1:
        query_start += INDEX * ROWS
    else:
        head += INDEX
    return head, query_start


@gluon.jit
def plan_walk(query_start, sizes, o: gl.constexpr):
    """Return the tiles of the keys that SPAN queries from query_start on see."""
    end_key, full_end = sizes.seqlen_k, sizes.seqlen_k // o.BLOCK_N
    if o.IS_CAUSAL:
        end_key = gl.minimum(query_start + o.SPAN, sizes.seqlen_k)
        full_end = (query_start + 1) // o.BLOCK_N
    begin, full_begin, sink_steps = 0, 0, 0
    if o.HAS_WINDOW:
        begin = gl.maximum(query_start - sizes.window_size + 1, 0) // o.BLOCK_N
        full_begin = gl.cdiv(gl.maximum(end_key - sizes.window_size, 0), o.BLOCK_N)
        full_begin = gl.minimum(full_begin, full_end)
        sink_steps = gl.minimum(gl.cdiv(sizes.num_sink_tokens, o.BLOCK_N), begin)
    end = gl.cdiv(end_key, o.BLOCK_N)
    plain_begin = gl.maximum(end - full_end, 1)  # step 0 comes before the loops
    plain_end = gl.maximum(end - full_begin, plain_begin)
    return CountedPairs(end, end - begin, end - begin + sink_steps, plain_begin, plain_end)


@gluon.jit
def first_key(step, counted, o: gl.constexpr):
    """Return the first key of the tile that a step visits."""
    tile = counted.end - 1 - step
    if o.HAS_WINDOW:
        sink_tile = step - counted.window_steps
        tile = gl.where(sink_tile < 0, tile, sink_tile)
    return tile * o.BLOCK_N


@gluon.jit
def hide(tile, hidden, queries, start, sizes, S: gl.constexpr, o: gl.constexpr):
    """Return the tile (ROWS, BLOCK_N), with `hidden` where the query does not see the key.

    start: the first key of the tile.
    """
    columns = gl.arange(0, o.BLOCK_N, layout=gl.SliceLayout(0, S))[None, :]
    if o.IS_CAUSAL:
        last = (queries - start)[:, None]
        visible = columns <= last
        if o.HAS_WINDOW:
            is_sink = columns < sizes.num_sink_tokens - start
            visible = visible & ((columns > last - sizes.window_size) | is_sink)
    else:
        visible = columns < sizes.seqlen_k - start
    return gl.where(visible, tile, hidden)
