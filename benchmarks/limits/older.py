"""A function of Gluon in Triton 3.9 that 3.6 and 3.7 do not have."""

from triton._C.libtriton.ir import DESCRIPTOR_REDUCE_KIND
from triton.experimental.gluon.language._core import builtin


@builtin
def async_atomic_add(tensor_desc, coord, src, _semantic=None):
    """Start adding a tile in shared memory to global memory by TMA, as `tma.async_atomic_add`."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    kind = DESCRIPTOR_REDUCE_KIND.ADD
    _semantic.builder.create_async_tma_reduce(kind, tensor_desc.handle, coord, src.handle)
