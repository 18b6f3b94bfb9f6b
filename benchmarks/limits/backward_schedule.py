"""The order of work of the backward kernel: tiles of keys, and the queries that each visits.

A tile of work is CONSUMERS * ROWS keys and the queries that see them: of one head with HEADS_APART,
else of all heads of the group, one after the other. Keys and queries come in tiles of ROWS;
BLOCK_M = ROWS.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from benchmarks.limits.schedule import ROWS


class Options(NamedTuple):
    """The compile-time constants of the kernel."""

    HEAD_DIM: int
    STAGES: int  # tiles of queries, with dO, lse and delta, in shared memory
    CONSUMERS: int
    IS_CAUSAL: bool
    HAS_WINDOW: bool
    IN_REGISTERS: bool  # keys and values, which halves the products' reads of shared memory
    WITH_DQ: bool
    HEADS_APART: bool  # a tile of work has one query head; dK and dV are sums, like dQ
    DS_STAGES: int  # tiles of dS in shared memory, per consumer
    DQ_STAGES: int  # tiles of dQ in shared memory, fp32
    CONSUMER_REGISTERS: int
    PRODUCER_REGISTERS: int


class Sizes(NamedTuple):
    """The runtime arguments of the kernel."""

    seqlen_q: gl.tensor
    seqlen_k: gl.tensor
    num_q_heads: gl.tensor
    num_kv_heads: gl.tensor
    group_size: gl.tensor
    section: gl.tensor  # heads of work that run together
    num_key_tiles: gl.tensor  # tiles of CONSUMERS * ROWS keys
    num_tiles: gl.tensor  # tiles of work
    window_size: gl.tensor
    num_sink_tokens: gl.tensor  # keys with an initial dK and dV
    scale: gl.tensor
    scale_log2: gl.tensor


class Tensors(NamedTuple):
    """Descriptors of blocks (1, 1, ROWS, HEAD_DIM); pointers, fp32, dense.

    sums: of dQ, fp32, initially over pairs outside the window. dk, dv: with HEADS_APART sums too,
    initially zero.
    sink_dk, sink_dv: (batch, num_kv_heads, num_sink_tokens, HEAD_DIM), initial dK and dV of sinks.
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
    """Tiles and barriers in shared memory; dK and dV are stored from the tiles of K and V."""

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
    """Return batch, kv head, first query head, number of heads, first key, first query, tiles.

    tiles: the number of tiles of queries per head.
    """
    heads = sizes.group_size
    if o.HEADS_APART:
        heads = 1
    num_heads = sizes.num_q_heads // heads
    rest = tile // sizes.section
    number = rest // sizes.num_key_tiles * sizes.section + tile % sizes.section
    head = number % num_heads * heads
    # The longest first: the first keys have most queries.
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
    """Return the tile of queries that a step of a head visits.

    The order lets programs that run together share the L2 cache: with a window each begins two
    tiles after the one before it, without one all begin at the last queries.
    """
    if o.HAS_WINDOW:
        return step
    return tiles - 1 - step


@gluon.jit
def find_queries(step, first_head, query_start, tiles, o: gl.constexpr):
    """Return head and first query of a step; heads come one after the other."""
    head = first_head + step // tiles
    return head, query_start + query_tile(step % tiles, tiles, o) * ROWS


@gluon.jit
def plan_parts(tiles, sizes, INDEX: gl.constexpr, o: gl.constexpr):
    """Return where the parts of the tiles of queries begin for a consumer.

    The parts: queries on the diagonal; queries that see all its keys; the end of the window;
    queries behind the window. Queries before the diagonal see none of its keys.
    """
    diagonal, plain, window_end, end = 0, 0, tiles, tiles
    if o.IS_CAUSAL:
        diagonal = gl.minimum(INDEX, tiles)
        plain = gl.minimum(INDEX + 1, tiles)
    if o.HAS_WINDOW:
        window_end = gl.maximum(gl.minimum(sizes.window_size // ROWS + INDEX, tiles), plain)
        end = gl.minimum(gl.cdiv(sizes.window_size + ROWS * (INDEX + 1) - 1, ROWS), tiles)
    return diagonal, plain, window_end, end
