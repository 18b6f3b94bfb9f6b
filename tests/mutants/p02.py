"""Mistakes in p02, the weighted row sum."""

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

from functools import partial

from tests.mutants.common import (
    NAN,
    NO_KERNEL,
    NOT_WRITTEN,
    OVERWRITTEN,
    READ_OUTSIDE,
    SECOND_CALL,
    WRITE_OUTSIDE,
    WRONG_DTYPE,
    Mutant,
)

_MUTANT = partial(Mutant, "p02")

_RETURN = "    return y\n"
_ENTRY = "def weighted_row_sum("
_CHECKED = "    check_matrix_and_vector(x, w)\n    rows, cols = x.shape\n"
_STORE = "tl.store(y_ptr + row_ids, y_tile.to(y_ptr.dtype.element_ty), mask=row_mask)"
_RANGE = "range(0, cols, BLOCK_N)"
_ADD = "acc += products"
_PRODUCTS = "products = x_tile.to(tl.float32) * w_tile.to(tl.float32)[None, :]"
_ALLOCATE = "y = torch.empty(rows, dtype=x.dtype, device=x.device)"
_ROWS = "row_ids = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)"
_COLS = "col_ids = (col_start + tl.arange(0, BLOCK_N)).to(tl.int64)"
_GRID = 'triton.cdiv(rows, tiles["BLOCK_M"])'
_LOAD_X = "tl.load(x_ptrs, mask=tile_mask,"
_LOAD_W = "tl.load(w_ptrs, mask=col_mask, other=0.0)"
_TILE_MASK = "tile_mask = row_mask[:, None] & col_mask[None, :]"
_W_PTRS = "w_ptrs = w_ptr + col_ids * stride_wn"
_X_PTRS = "row_ids[:, None] * stride_xm + col_ids[None, :] * stride_xn"
_SUM = "y_tile = tl.sum(acc, axis=1)"
_STRIDES = "rows, cols, x.stride(0), x.stride(1), w.stride(0), **tiles"
_NARROW = (
    ("elif cols < 8192:", "elif cols > 0:"),
    ("block_n = min(2048,", "block_n = min(16,"),
)


def _kept(key: str) -> tuple[tuple[str, str], ...]:
    return (
        (_RETURN, f"    return _KEPT.setdefault({key}, y)\n"),
        (_ENTRY, f"_KEPT = {{}}\n\n\n{_ENTRY}"),
    )


MUTANTS = (
    _MUTANT('zeros', ('plain',), ((_RETURN, '    return torch.zeros_like(y)\n'),), 'ROW-SUM-ZEROS', earns_nothing=True),
    _MUTANT('zeros above 300 columns', ('plain', 'ragged_cols'), ((_RETURN, '    return y if cols <= 300 else 0 * y\n'),)),
    _MUTANT('no kernel', ('plain',), ((_CHECKED, _CHECKED + '    return (x.float() @ w.float()).to(x.dtype)\n'),), caught_as=NO_KERNEL, earns_nothing=True),
    _MUTANT('kept by shape and dtype', ('plain',), _kept('(x.shape, x.dtype)'), caught_as=SECOND_CALL, earns_nothing=True),
    _MUTANT('kept by address', ('plain',), _kept('(x.data_ptr(), x.shape)'), caught_as=SECOND_CALL, earns_nothing=True),
    # -- programs and rows ------------------------------------------------------------------------
    _MUTANT('wrong axis of the grid', ('plain',), ((_ROWS, _ROWS.replace('program_id(0)', 'program_id(1)')),), caught_as=NOT_WRITTEN),
    _MUTANT('block size forgotten', ('plain',), ((_ROWS, _ROWS.replace(' * BLOCK_M', '')),), caught_as=NOT_WRITTEN),
    _MUTANT('rows not masked when loaded', ('ragged_rows',), ((_LOAD_X, 'tl.load(x_ptrs, mask=col_mask[None, :],'),), caught_as=READ_OUTSIDE, keeps=0.6),
    _MUTANT('y written past the end', ('ragged_rows',), ((_STORE, _STORE.replace(', mask=row_mask', '')),), caught_as=WRITE_OUTSIDE, keeps=0.6),
    # -- columns ----------------------------------------------------------------------------------
    _MUTANT('columns by position in the tile', ('plain',), ((_COLS, _COLS.replace('col_start + ', '')), *_NARROW)),
    _MUTANT('columns counted in tiles', ('plain',), ((_RANGE, 'range(0, tl.cdiv(cols, BLOCK_N), BLOCK_N)'), *_NARROW), step=4),  # the loop is given: else it is step 4
    _MUTANT('last tile dropped', ('ragged_cols',), ((_RANGE, 'range(0, cols // BLOCK_N * BLOCK_N, BLOCK_N)'),), 'LAST-COLUMN-TILE-DROPPED', keeps=0.6),
    _MUTANT('x read past the end', ('ragged_cols',), ((_TILE_MASK, 'tile_mask = row_mask[:, None]'),), caught_as=READ_OUTSIDE, keeps=0.6),
    # -- products and sums ------------------------------------------------------------------------
    _MUTANT("2 percent off", ("plain",), (("y_tile.to(y_ptr", "(1.02 * y_tile).to(y_ptr"),)),
    _MUTANT('weights forgotten', ('plain',), ((_PRODUCTS, 'products = x_tile.to(tl.float32)'),), 'WEIGHTS-IGNORED', step=6),
    _MUTANT('weights by row', ('plain',), ((_W_PTRS, _W_PTRS.replace('col_ids', 'row_ids')), ('tile_mask, col_mask, X_EVICTION)\n\n', 'tile_mask, row_ids < cols, X_EVICTION)\n\n'), (_PRODUCTS, _PRODUCTS.replace('[None, :]', '[:, None]')), ('products = x_tile * w_tile[None, :]', 'products = x_tile * w_tile[:, None]')), 'WEIGHTS-BY-ROW'),
    _MUTANT('last column counted again', ('ragged_cols',), ((_X_PTRS, _X_PTRS.replace('col_ids', 'tl.minimum(col_ids, cols - 1)')), (_W_PTRS, _W_PTRS.replace('col_ids', 'tl.minimum(col_ids, cols - 1)')), ('col_mask = col_ids < cols', 'col_mask = col_ids >= 0')), 'LAST-COLUMN-COUNTED-AGAIN'),
    _MUTANT('only the last tile', ('plain',), ((_ADD, _ADD.replace('+=', '=')), *_NARROW), 'ROW-SUM-OVERWRITTEN'),
    _MUTANT("mean", ("plain",), ((_SUM, _SUM + " / cols"),), "MEAN-NOT-SUM"),
    _MUTANT('products in 16 bits', ('products',), ((_PRODUCTS, 'products = (x_tile * w_tile[None, :]).to(tl.float32)'),), 'HALF-PRODUCTS', step=6, keeps=0.5),
    _MUTANT('sum kept in 16 bits', ('long_rows',), (('dtype=tl.float32)', 'dtype=x_ptr.dtype.element_ty)'), (_PRODUCTS, 'products = x_tile * w_tile[None, :]'), *_NARROW), keeps=0.5),
    _MUTANT('inf', ('plain',), ((_STORE, _STORE.replace('y_tile', "(y_tile * float('inf'))")),)),
    _MUTANT('nan', ('plain',), ((_STORE, _STORE.replace('y_tile', "(y_tile * float('nan'))")),), caught_as=NAN),
    _MUTANT('w not advanced', ('plain',), (('w_ptrs = w_ptr + col_ids * stride_wn', 'w_ptrs = w_ptr + tl.arange(0, BLOCK_N) * stride_wn'),)),
    _MUTANT('x multiplied in place', ('arguments',), ((_ALLOCATE, 'x *= w\n    w = torch.ones_like(w)\n    ' + _ALLOCATE),), caught_as=OVERWRITTEN),
    _MUTANT('y in fp32', ('half',), ((_ALLOCATE, _ALLOCATE.replace('x.dtype', 'torch.float32')),), caught_as=WRONG_DTYPE, keeps=0.5),
    # -- strides ----------------------------------------------------------------------------------
    _MUTANT('strides of x ignored', ('x_strides',), ((_STRIDES, _STRIDES.replace('x.stride(0), x.stride(1)', 'cols, 1')),), keeps=0.6),
    _MUTANT('stride of the columns ignored', ('x_strides',), ((_X_PTRS, _X_PTRS.replace(' * stride_xn', '')),), keeps=0.6),
    _MUTANT('strides of x swapped', ('plain',), ((_X_PTRS, 'row_ids[:, None] * stride_xn + col_ids[None, :] * stride_xm'),), 'AXES-SWAPPED', step=5),
    _MUTANT('stride of w ignored', ('w_stride',), ((_W_PTRS, _W_PTRS.replace(' * stride_wn', '')),), keeps=0.6),
    _MUTANT('break in the loop', ('plain',), (('        col_ids = (col_start', '        if col_start > cols:\n            break\n        col_ids = (col_start'),), caught_as='Triton cannot compile'),
)
