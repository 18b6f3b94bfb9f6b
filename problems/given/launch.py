"""How kernels are launched: tile sizes per chip, and in which order the programs start."""

import torch
import triton
import triton.language as tl

# Triton compiles a kernel anew for arguments that are 1 or a multiple of 16. Strides and lengths
# gain by it; for these it would only cost compilations.
VARYING = (
    "num_q_heads", "num_kv_heads", "group_size", "window_size", "num_sink_tokens", "chunk_size",
)  # fmt: skip
_L2_BYTES = 16 * 2**20  # what the programs that run together may read again and again
_ENOUGH_PROGRAMS = 512  # so that no multiprocessor waits
_MOST_ON_AXIS_2 = 65535


def shared_memory_bytes(device):
    """Return the shared memory that one program may have; without a GPU that of an A100."""
    if device.type != "cuda":
        return 160 * 1024
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def memory_for_tensor_cores(q):
    """Return `shared_memory_bytes`, or 0 for fp32 on a GPU, whose dots read registers."""
    if q.dtype == torch.float32 and q.device.type == "cuda":
        return 0
    return shared_memory_bytes(q.device)


def row_sum_tiles(x):
    """Return tile sizes, warps and the hint for the cache that suit the rows of x.

    The long side of a tile follows the smaller stride, because neighbouring threads should read
    neighbouring addresses. In long rows each of 512 threads has 4 elements of a tile, or 8 in fp32,
    and the loads of several tiles are under way at a time.

    x is read once. With evict_first it displaces less of what is in the L2 cache; where
    it is many times as large as that cache, this gains nothing and costs time.
    """
    cols = x.shape[1]
    hint = "evict_first" if x.numel() * x.element_size() < 768 * 2**20 else ""
    if x.stride(0) < x.stride(1):
        block_m, block_n, num_warps = 128, min(64, triton.next_power_of_2(cols)), 8
    elif cols < 8192:
        block_n = min(2048, triton.next_power_of_2(cols))
        block_m, num_warps = min(64, 4096 // block_n), 8
    else:
        block_m, block_n, num_warps = 1, 1024 * x.element_size(), 16
    return {"BLOCK_M": block_m, "BLOCK_N": block_n, "X_EVICTION": hint, "num_warps": num_warps}


def forward_tiles(q, window_size=None):
    """Return BLOCK_M, BLOCK_N, warps and stages of a forward kernel; a stage holds K and V tiles.

    A row uses window_size of the window_size + BLOCK_M keys that its tile visits, rounded out to
    BLOCK_N: a small window wants small tiles.
    """
    shared, head_dim = shared_memory_bytes(q.device), q.shape[3]
    if q.dtype == torch.float32 or shared < 96 * 1024:
        # No tensor cores here (IEEE fp32, compute capability 7.5): larger tiles spill registers.
        block, num_warps = (64, 8) if head_dim <= 64 else (32, 4)
        return {"BLOCK_M": block, "BLOCK_N": block, "num_warps": num_warps, "num_stages": 1}
    if shared < 160 * 1024:
        return {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
    # Programs share a multiprocessor: the softmax of one runs under the dots of the others.
    block_n = 32 if window_size is not None and window_size < 512 else 64
    return {"BLOCK_M": 64, "BLOCK_N": block_n, "num_warps": 4, "num_stages": 3}


def backward_tiles(q, k, *, descriptors):
    """Return the tile sizes, warps and stages of two kernels, as {"dq": ..., "dkdv": ...}.

    dQ: BLOCK_N divides BLOCK_M; dK and dV: BLOCK_M divides BLOCK_N. dK and dV of 64 keys fill half
    the registers of 4 warps at head_dim 128; a tile of scores and one of dP with 64 queries fit
    beside them only where `descriptors` (see `given.tiles.has_descriptors`) leave addresses out.
    """
    shared = memory_for_tensor_cores(q)
    if shared < 96 * 1024:
        dq = {"BLOCK_M": 32, "BLOCK_N": 16, "num_warps": 8, "num_stages": 1}
        return {"dq": dq, "dkdv": {"BLOCK_M": 16, "BLOCK_N": 32, "num_warps": 8, "num_stages": 1}}
    if shared < 160 * 1024:  # compute capability 8.6, 8.9 and 12.0
        dq = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
        return {"dq": dq, "dkdv": {"BLOCK_M": 32, "BLOCK_N": 64, "num_warps": 8, "num_stages": 2}}
    dkdv = {"BLOCK_M": 32, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
    num_keys = k.shape[0] * k.shape[1] * k.shape[2]
    if descriptors and q.shape[3] == 128:
        dkdv = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
    elif descriptors and num_keys >= _ENOUGH_PROGRAMS * 128:
        dkdv = {"BLOCK_M": 32, "BLOCK_N": 128, "num_warps": 4, "num_stages": 3}
    return {"dq": {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3}, "dkdv": dkdv}


def sink_window_tiles(q, window_size, num_sink_tokens, descriptors=False):
    """Return tile sizes, warps and stages of p09's kernels: "forward", "dq", "dkdv", "sink".

    BLOCK_N divides BLOCK_M of "forward" and "dq", BLOCK_M divides BLOCK_N of "dkdv" and 64 of
    "sink". With descriptors, see `given.tiles.has_descriptors`, "dkdv" has registers for more
    queries.
    """
    head_dim, shared = q.shape[3], memory_for_tensor_cores(q)
    if shared < 96 * 1024:
        # No tensor cores here (IEEE fp32, compute capability 7.5): operands stay in registers.
        sizes = {"forward": (32, 16), "dq": (32, 16), "dkdv": (16, 32), "sink": (32, 16)}
        warps, stages = {"forward": 8, "dq": 8, "dkdv": 8, "sink": 4}, {}
    elif shared < 160 * 1024:
        sizes = {"forward": (64, 32), "dq": (64, 32), "dkdv": (32, 64), "sink": (64, 16)}
        warps, stages = {"dkdv": 8}, dict.fromkeys(sizes, 2)
    else:
        # A share of window_size / (window_size + 64) of a tile's pairs counts: no more than 64.
        sizes = {"forward": (64, 32), "dq": (64, 32), "dkdv": (32, 64), "sink": (64, 16)}
        warps, stages = {"sink": 2}, dict.fromkeys(sizes, 3)
        if window_size >= 512:
            sizes["forward"] = (64, 64)
        if head_dim == 128:
            sizes["sink"] = (32, 16)
            if window_size >= 512:
                sizes["dq"], stages["dq"] = (64, 64), 2
            if descriptors:
                sizes["dkdv"], stages["dkdv"] = (64, 64), 2
        if num_sink_tokens > 16:
            # Every tile of sinks reads all queries once more: few tiles.
            sizes["sink"], warps["sink"] = (32, 64), 4
    return {
        kernel: {
            "BLOCK_M": block_m, "BLOCK_N": block_n,
            "num_warps": warps.get(kernel, 4), "num_stages": stages.get(kernel, 1),
        }
        for kernel, (block_m, block_n) in sizes.items()
    }  # fmt: skip


def grid_of_queries(q, k, block_m):
    """Return the grid (query heads of an L2 group, query tiles, L2 groups) of causal attention.

    Axis 0 starts fastest: the heads of a group run side by side and find each other's K and V tiles
    in L2 cache. L2 groups start one after the other, see `l2_group_size`.
    """
    batch, num_q_heads, seqlen, head_dim = q.shape
    num_kv_heads = k.shape[1]
    group_size = num_q_heads // num_kv_heads
    num_tiles = triton.cdiv(seqlen, block_m)
    head_bytes = 2 * seqlen * head_dim * k.element_size()
    room = _room(q.device)
    heads = l2_group_size(batch * num_kv_heads, head_bytes, group_size * num_tiles, **room)
    section = group_size * heads
    return section, num_tiles, batch * num_q_heads // section


def grid_of_keys(q, k, block_n):
    """Return the grid (kv heads of an L2 group, key tiles, L2 groups) of dK and dV."""
    batch, num_kv_heads, seqlen, head_dim = k.shape
    num_heads, num_tiles = batch * num_kv_heads, triton.cdiv(seqlen, block_n)
    group_bytes = 2 * (q.shape[1] // num_kv_heads) * seqlen * head_dim * q.element_size()
    section = l2_group_size(num_heads, group_bytes, num_tiles, **_room(q.device))
    return section, num_tiles, num_heads // section


def _room(device):
    """Return what an L2 group may fill; a CPU runs one program at a time and has no L2 for it."""
    if device.type == "cuda":
        return {"l2_bytes": _L2_BYTES, "programs": _ENOUGH_PROGRAMS}
    return {"l2_bytes": 0, "programs": 2}


def l2_group_size(num_heads, head_bytes, num_tiles, l2_bytes=_L2_BYTES, programs=_ENOUGH_PROGRAMS):
    """Return how many heads start together; the next L2 group starts when their programs have.

    Few enough that what they read again and again stays in L2 cache, enough for all
    multiprocessors, and a divisor of num_heads.

    Args:
        num_heads: heads in all.
        head_bytes: bytes that the programs of one head read again and again.
        num_tiles: programs per head.
        l2_bytes: what the programs that run together may read again and again.
        programs: how many are enough for all multiprocessors.
    """
    size = max(l2_bytes // head_bytes, triton.cdiv(programs, num_tiles), 1)
    size = min(size, num_heads)
    while num_heads % size != 0:
        size -= 1
    return size if num_heads // size <= _MOST_ON_AXIS_2 else num_heads


@triton.jit
def batch_and_head(num_heads):
    """Return batch and head of this program for a grid (heads of an L2 group, tiles, L2 groups).

    Both are int64, because they will meet strides.
    """
    batch_head = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
    return (batch_head // num_heads).to(tl.int64), (batch_head % num_heads).to(tl.int64)


@triton.jit
def program_of_longest_rows_first(num_q_heads, group_size, BLOCK_M: tl.constexpr):
    """Return batch, q_head, kv_head and query_start of this program, for a grid (heads, tiles).

    Axis 0 starts fastest: one tile of every head, the last tile first, since its rows are longest.
    batch and heads are int64, because they will meet strides.
    """
    batch = (tl.program_id(0) // num_q_heads).to(tl.int64)
    q_head = (tl.program_id(0) % num_q_heads).to(tl.int64)
    query_start = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_M
    return batch, q_head, q_head // group_size, query_start
