"""Allocates tiles and barriers in shared memory, and copies tiles by TMA."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

# TMA's copies, by their names since Triton 3.9, or those of 3.6 and 3.7.
_load = getattr(tma, "async_load", tma.async_copy_global_to_shared)
store_tile = getattr(tma, "async_store", tma.async_copy_shared_to_global)
if hasattr(tma, "async_atomic_add"):
    add_tile = tma.async_atomic_add
else:
    from benchmarks.limits.older import async_atomic_add as add_tile  # noqa: F401


@gluon.jit
def load_rows(desc, batch, head, start, tile, full):
    """Start loading a head's rows from start on; the barrier completes when they have arrived.

    Rows past the end arrive as zeros.
    """
    mbarrier.expect(full, desc.block_type.nbytes)
    _load(desc, [batch, head, start, 0], full, tile)


@gluon.jit
def allocate_tiles(desc, COUNT: gl.constexpr):
    return gl.allocate_shared_memory(desc.dtype, [COUNT] + desc.block_type.shape, desc.layout)  # noqa: RUF005


@gluon.jit
def allocate_barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    bars = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(bars.index(i), count=ARRIVALS)
    return bars
