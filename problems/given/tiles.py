"""Tiles of one head between global memory and registers: loads, stores, descriptors."""

import torch
import triton
import triton.language as tl


@triton.jit
def load_keys(ptrs, keys, seqlen, IS_EVEN: tl.constexpr):
    """Load one tile of K or V, (BLOCK_N, HEAD_DIM), with zeros for keys past the end.

    Args:
        ptrs: (BLOCK_N, HEAD_DIM), addresses of the tile's elements.
        keys: (BLOCK_N,), the tile's keys.
        IS_EVEN: no tile reaches past the end, so that no mask is needed.
    """
    if IS_EVEN:
        return tl.load(ptrs)
    return tl.load(ptrs, mask=keys[:, None] < seqlen, other=0.0)


@triton.jit
def load_tile(ptr, start, stride, seqlen, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Load the rows start to start + BLOCK of one head, with zeros past the end of the sequence.

    Args:
        ptr: the first row of the head.
        stride: elements from one row to the next; seqlen: all rows of the head.
    """
    rows = tl.arange(0, BLOCK)
    offsets = rows[:, None] * stride + tl.arange(0, HEAD_DIM)[None, :]
    ptrs = ptr + tl.cast(start, tl.int64) * stride + offsets
    return tl.load(ptrs, mask=start + rows[:, None] < seqlen, other=0.0)  # (BLOCK, HEAD_DIM)


@triton.jit
def store_tile(ptr, start, stride, tile, seqlen, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Store a tile as rows start to start + BLOCK, in the tensor's dtype, none past the end."""
    rows = tl.arange(0, BLOCK)
    offsets = rows[:, None] * stride + tl.arange(0, HEAD_DIM)[None, :]
    ptrs = ptr + tl.cast(start, tl.int64) * stride + offsets
    tl.store(ptrs, tile.to(ptr.dtype.element_ty), mask=start + rows[:, None] < seqlen)


@triton.jit
def head_rows(
    ptr, seqlen, stride, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, DESCRIPTORS: tl.constexpr
):
    """Return where `load_head_rows` finds the rows of one head, of which ptr is the first.

    That is ptr itself, or with DESCRIPTORS (see `has_descriptors`) a tensor descriptor.
    """
    if DESCRIPTORS:
        rows = tl.make_tensor_descriptor(
            ptr, [seqlen, HEAD_DIM], [tl.cast(stride, tl.int64), 1], [BLOCK, HEAD_DIM]
        )
    else:
        rows = ptr
    return rows


@triton.jit
def load_head_rows(
    rows, start, stride, seqlen,
    BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """Load the rows start to start + BLOCK of what `head_rows` returned."""
    if DESCRIPTORS:
        tile = rows.load([start, 0])
    else:
        tile = load_tile(rows, start, stride, seqlen, BLOCK, HEAD_DIM)
    return tile  # (BLOCK, HEAD_DIM)


@triton.jit
def rows_of_heads(
    ptr, num_heads, seqlen, stride_h, stride_m,
    BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """Return where `load_rows` finds the rows of num_heads heads, of which ptr is the first row.

    That is ptr itself, or with DESCRIPTORS (see `has_descriptors`) a tensor descriptor.
    """
    if DESCRIPTORS:
        rows = tl.make_tensor_descriptor(
            ptr,
            [num_heads, seqlen, HEAD_DIM],
            [tl.cast(stride_h, tl.int64), tl.cast(stride_m, tl.int64), 1],
            [1, BLOCK, HEAD_DIM],
        )
    else:
        rows = ptr
    return rows


@triton.jit
def load_rows(
    rows, head, start, stride_h, stride_m, seqlen,
    BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """Load the rows start to start + BLOCK of one head of what `rows_of_heads` returned."""
    if DESCRIPTORS:
        tile = rows.load([head, start, 0]).reshape(BLOCK, HEAD_DIM)
    else:
        head_ptr = rows + tl.cast(head, tl.int64) * stride_h
        tile = load_tile(head_ptr, start, stride_m, seqlen, BLOCK, HEAD_DIM)
    return tile  # (BLOCK, HEAD_DIM)


def has_descriptors(*tensors):
    """Whether the tensor memory accelerator of compute capability 9.0 can fetch their tiles.

    It takes one instruction per tile and no registers for addresses; a row must begin at a multiple
    of 16 bytes. Where it can, Triton is told how to get memory for the descriptors.
    """
    able = all(
        tensor.is_cuda
        and torch.cuda.get_device_capability(tensor.device) == (9, 0)
        and tensor.dtype != torch.float32
        and tensor.data_ptr() % 16 == 0
        and all(stride > 0 and stride % 8 == 0 for stride in tensor.stride()[:3])
        for tensor in tensors
    )
    if able:
        triton.set_allocator(_descriptor_memory)
    return able


def _descriptor_memory(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")
