"""Lists what PyTorch's operators may do for a submission while a call of it is judged.

It opens the operators that the names in tables.py dispatch: matmul becomes aten::mm or aten::bmm,
an overload is named behind a dot. grader/isolate/operators.py checks each operator;
tests/test_operators.py holds the two tables together.
"""

from __future__ import annotations

from typing import Any

from grader.source.policy.reach import entries
from grader.spec.problem import Problem, load_problem

# They allocate, fill, view, copy, convert and pick at random: open, however much they do. The
# overloads of linspace and logspace between two tensors compute, and are left out.
_SERVE = """
    _assert_async _conj _efficientzerotensor _has_compatible_shallow_copy_type _reshape_alias
    _to_copy _unsafe_view alias alias_copy arange as_strided as_strided_scatter cat chunk clone
    complex concat conj constant_pad_nd contiguous copy detach diagonal empty empty_like
    empty_permuted empty_strided equal expand expand_as eye fill flatten flip full full_like imag
    index_select_backward is_pinned is_same_size item lift lift_fresh lift_fresh_copy
    linspace.default linspace.out logspace.default logspace.out movedim narrow new_empty
    new_empty_strided new_full new_ones new_zeros nonzero normal ones ones_like permute pin_memory
    rand rand_like randint randint_like randn randn_like random randperm real
    record_stream repeat repeat_interleave reshape resize resize_as resolve_conj resolve_neg roll
    rot90 scalar_tensor select select_backward select_scatter set slice slice_backward slice_scatter
    split split_with_sizes squeeze stack swapaxes sym_numel sym_size sym_storage_offset sym_stride t
    tile to trace_backward transpose tril tril_indices triu triu_indices unbind unflatten unfold
    uniform unsqueeze view view_as view_as_complex view_as_real zero zeros zeros_like
"""
# Values decide what these take and where they put it: a table of sums adds, a mask is an "and".
_CHOOSE = """
    _index_put_impl _unsafe_index gather index index_copy index_fill index_put index_select
    masked_fill masked_scatter masked_select nonzero_static put scatter.src scatter.src_out
    scatter.value scatter.value_out take take_along_dim
"""
# They serve if they keep a type. If they change it, they round, or tell zero from the rest.
_CONVERT = "_to_copy cat copy"
# Comparisons, sorting, and what makes no new numbers but for their sign.
_COMPARE = """
    _unique2 abs all allclose amax amin aminmax any argmax argmin argsort bucketize clamp
    clamp_max clamp_min clip eq fmax fmin ge gt isclose isfinite isin isinf isnan isneginf
    isposinf le logical_and logical_not logical_or logical_xor lt max maximum min minimum
    nan_to_num ne neg relu searchsorted sgn sign signbit sort topk unique_dim where
"""
# Arithmetic, element by element. A power of two tensors, or of a number to a tensor, is an
# exponential. All three are open, but see MOST_ELEMENTS.
_ARITHMETIC = """
    __and__ __lshift__ __or__ __rshift__ __xor__ add addcdiv addcmul bitwise_and
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil copysign div
    floor floor_divide fmod frac lerp log log10 log2 mul pow.Tensor_Scalar pow.Tensor_Scalar_out
    pow_.Scalar reciprocal remainder round rsqrt rsub sqrt square sub trunc xlogy
"""
# What p08 and p09 do besides, tables.ROWS and what autograd makes of it.
_ROWS = """
    exp exp2 expm1 index_add log1p log_sigmoid logaddexp logaddexp2 mean pow scatter_add
    scatter_reduce sigmoid sigmoid_backward sum unfold_backward value_selecting_reduction_backward
"""
# Attention, softmax and their gradients, by the beginnings of names.
_ATTENTION = """
    _cudnn_attention _efficient_attention _fill_mem_eff _flash_attention _fused_sdp
    _native_multi_head _scaled_dot_product _transformer_encoder _triton_multi_head
    _triton_scaled_dot multi_head_attention scaled_dot_product
"""
_SOFTMAX = "_log_softmax _masked_softmax _safe_softmax _softmax log_softmax softmax"

# Arithmetic may make this many elements for each element of a call's inputs. Scaling, checks and
# the sums of a backward pass make a few (the answers less than 3); every pair of a query and a key,
# times head_dim, is one for each three keys.
MOST_ELEMENTS = 16
# Answers that pad short sequences to whole tiles scale and sum up the padding as well: so many
# elements for each element of the inputs in tiles of so many rows.
MOST_PADDED, PADDED_ROWS = 4, 128
# In p02 products and sums are the exercise: a kernel makes at the least three of four.
MOST_ARITHMETIC = {"p02": 0.25}
# So many elements may become numbers of Python in a call: enough for checks, not to compute.
MOST_READ = 32


def opened(problem: Problem) -> dict[str, Any]:
    """Return what a worker must know of what is open to `problem`, which may be a bridge's view.

    `open` are the operators that may run, None for all of PyTorch but for what `closed` begins
    with; `counted` are those among them that may make `most_elements` for each of the inputs', or
    `most_padded` for each of those that the inputs have in tiles of `padded_rows`; so are those
    that are `converting`, where they change a type; `arithmetic` are those among the counted that
    may make `most_arithmetic`. `entries` are all functions that the judge calls of the file, and
    `gradients` says whether it computes any (grader/base/functions.py).
    """
    whole = load_problem(problem.id)
    calls = {"entries": sorted(entries(whole)), "gradients": bool(whole.gradients)}
    if problem.uses_triton:
        rows = _ROWS if problem.gradients else ""
        arithmetic = f"{_ARITHMETIC} {rows}".split()
        counted = [*_CHOOSE.split(), *_COMPARE.split(), *arithmetic]
        return calls | {
            "open": [*_SERVE.split(), *counted],
            "counted": counted,
            "converting": _CONVERT.split(),
            "closed": f"{_ATTENTION} {_SOFTMAX}".split(),
            "arithmetic": arithmetic,
            "most_elements": MOST_ELEMENTS,
            "most_arithmetic": MOST_ARITHMETIC.get(problem.id, MOST_ELEMENTS),
            "most_padded": MOST_PADDED,
            "padded_rows": PADDED_ROWS,
            "most_read": MOST_READ,
        }
    is_bridge = problem.bridge is not None and problem.entry == problem.bridge.entry
    closed = _ATTENTION if is_bridge else f"{_ATTENTION} {_SOFTMAX}"
    return calls | {"open": None, "counted": [], "converting": [], "closed": closed.split()}
