"""The order of work of the backward kernel: tiles of keys, and the queries that each visits.

A tile of work is CONSUMERS * ROWS keys and the queries of one head that see them, or, where dK and
dV are not sums, of all heads of the group, one after the other. Keys and queries in tiles of ROWS;
BLOCK_M = ROWS.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from benchmarks.limits.schedule import ROWS


class Options(NamedTuple):
    """What the kernel is compiled for."""

    HEAD_DIM: int
    STAGES: int  # tiles of queries, with dO, lse and delta, in shared memory
    CONSUMERS: int
    IS_CAUSAL: bool
    HAS_WINDOW: bool
    IN_REGISTERS: bool  # keys and values: products read half as much shared memory
    WITH_DQ: bool
    HEADS_APART: bool  # one query head in a tile of work, dK and dV are sums as dQ is
    DS_STAGES: int  # tiles of dS in shared memory, per consumer
    DQ_STAGES: int  # tiles of dQ there, fp32
    CONSUMER_REGISTERS: int
    PRODUCER_REGISTERS: int


class Sizes(NamedTuple):
    """What the kernel is launched with."""

    seqlen_q: gl.tensor
    seqlen_k: gl.tensor
    num_q_heads: gl.tensor
    num_kv_heads: gl.tensor
    group_size: gl.tensor
    section: gl.tensor  # heads of work that run together
    num_key_tiles: gl.tensor  # tiles of CONSUMERS * ROWS keys
    num_tiles: gl.tensor  # tiles of work
    window_size: gl.tensor
    num_sink_tokens: gl.tensor  # keys whose sums do not begin at 0
    scale: gl.tensor
    scale_log2: gl.tensor


class Tensors(NamedTuple):
    """Descriptors of blocks (1, 1, ROWS, HEAD_DIM); pointers, fp32, dense.

    sums: of dQ, fp32; they begin with what pairs outside the window give. dk, dv: with HEADS_APART
    sums, too, of zeros.
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


class Shared(NamedTuple):
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
def place(tile, sizes, o: gl.constexpr):
    """Return batch, head of keys, first query head, how many of them, first key and query, tiles.

    The tiles are those of a head's queries.
    """
    heads = sizes.group_size
    if o.HEADS_APART:
        heads = 1
    num_heads = sizes.num_q_heads // heads
    rest = tile // sizes.section
    number = rest // sizes.num_key_tiles * sizes.section + tile % sizes.section
    head = number % num_heads * heads
    # The first keys have most queries: longest first.
    key_start = rest % sizes.num_key_tiles * (ROWS * o.CONSUMERS)
    query_start = 0
    if o.IS_CAUSAL:
        query_start = key_start  # ROWS divides it
    end_query = sizes.seqlen_q
    if o.HAS_WINDOW:
        last_key = key_start + ROWS * o.CONSUMERS - 1
        end_query = gl.minimum(last_key + sizes.window_size, sizes.seqlen_q)
    return (
        number // num_heads,
        head // sizes.group_size,
        head,
        heads,
        key_start,
        query_start,
        gl.cdiv(end_query - query_start, ROWS),
    )


@gluon.jit
def query_tile(step, tiles, o: gl.constexpr):
    """Return which of the tiles of queries a step of a head visits.

    Programs that run together then meet in the L2 cache: with a window each begins two tiles after
    the one before it, without one all begin at the last queries.
    """
    if o.HAS_WINDOW:
        return step
    return tiles - 1 - step


@gluon.jit
def find_queries(step, first_head, query_start, tiles, o: gl.constexpr):
    """Return head and first query of a step: the heads come one after the other."""
    head = first_head + step // tiles
    return head, query_start + query_tile(step % tiles, tiles, o) * ROWS


@gluon.jit
def plan_parts(tiles, sizes, INDEX: gl.constexpr, o: gl.constexpr):
    """Return where parts of the tiles of queries begin for a consumer.

    Queries on the diagonal; queries that see all of its keys; the end of the window; queries that
    do not see its keys any more. Before the diagonal, queries do not see them yet.
    """
    diagonal, plain, window_end, end = 0, 0, tiles, tiles
    if o.IS_CAUSAL:
        diagonal = gl.minimum(INDEX, tiles)
        plain = gl.minimum(INDEX + 1, tiles)
    if o.HAS_WINDOW:
        window_end = gl.maximum(gl.minimum(sizes.window_size // ROWS + INDEX, tiles), plain)
        end = gl.minimum(gl.cdiv(sizes.window_size + ROWS * (INDEX + 1) - 1, ROWS), tiles)
    return diagonal, plain, window_end, end
