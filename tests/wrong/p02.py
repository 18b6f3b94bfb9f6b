"""Mistakes in p02."""

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

from tests.wrong import of

_ROWS = "row_ids = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)"
_LOOP = "range(0, cols, BLOCK_N)"
_X = "x_ptrs = x_ptr + row_ids[:, None] * stride_xm + col_ids[None, :] * stride_xn"
_W = "w_ptrs = w_ptr + col_ids * stride_wn"
_PRODUCTS = "products = x_tile.to(tl.float32) * w_tile.to(tl.float32)[None, :]"
_SUM = "y_tile = tl.sum(acc, axis=1)"
_STORE = "tl.store(y_ptr + row_ids, y_tile.to(y_ptr.dtype.element_ty), mask=row_mask)"
_LAUNCH = "x, w, y, rows, cols, x.stride(0), x.stride(1), w.stride(0), **tiles"

WRONG = (
    *of(
        "p02",
        ("rows compared the other way", "", "NOTHING-STORED", ("row_mask = row_ids < rows", "row_mask = rows <= row_ids")),
        ("stride of w added", "", "TILE-OUTSIDE", (_W, _W.replace("col_ids * stride_wn", "stride_wn + col_ids"))),
        ("one row more", "", "MASK-TOO-WIDE", ("row_mask = row_ids < rows", "row_mask = row_ids <= rows")),
        ("one row fewer", "", "ROWS-NEVER-STORED", ("row_mask = row_ids < rows", "row_mask = row_ids < rows - 1")),
        ("one column more", "", "MASK-TOO-WIDE", ("col_mask = col_ids < cols", "col_mask = col_ids <= cols")),
        ("one column fewer", "", "LAST-COLUMNS-NEVER-READ", ("col_mask = col_ids < cols", "col_mask = col_ids < cols - 1")),
        ("rows masked by cols", "", "ROWS-NEVER-STORED", ("row_mask = row_ids < rows", "row_mask = row_ids < cols")),
        ("columns masked by rows", "", "LAST-COLUMNS-NEVER-READ", ("col_mask = col_ids < cols", "col_mask = col_ids < rows")),
        ("loop over rows", "", "LAST-COLUMNS-NEVER-READ", (_LOOP, "range(0, rows, BLOCK_N)")),
        ("loop from the second tile", "", "COLUMNS-NEVER-READ", (_LOOP, "range(BLOCK_N, cols, BLOCK_N)")),
        ("loop to the last tile", "", "COLUMNS-NEVER-READ LAST-COLUMNS-NEVER-READ", (_LOOP, "range(0, cols - BLOCK_N, BLOCK_N)")),
        ("every other tile", "", "LAST-COLUMNS-NEVER-READ", (_LOOP, "range(0, cols, 2 * BLOCK_N)")),
        ("half steps", "", "COLUMNS-COUNTED-OTHERWISE", (_LOOP, "range(0, cols, BLOCK_N // 2)")),
        ("steps of rows", "", "COLUMNS-COUNTED-OTHERWISE", (_LOOP, "range(0, cols, BLOCK_M)")),
        ("a tile of columns too many", "", "TILE-OUTSIDE", (_LOOP, "range(0, cols + BLOCK_N, BLOCK_N)"), ("col_mask = col_ids < cols", "col_mask = col_ids < cols + BLOCK_N")),
        ("columns from one", "", "COLUMNS-NEVER-READ", (_LOOP, "range(1, cols, BLOCK_N)")),
        ("rows in steps of columns", "", "ROWS-NEVER-STORED", (_ROWS, _ROWS.replace("* BLOCK_M", "* BLOCK_N"))),
        ("rows times program", "", "ROWS-STORED-TWICE", (_ROWS, "row_ids = tl.program_id(0).to(tl.int64) * tl.arange(0, BLOCK_M)")),
        ("x by the stride of w", "", "WRONG-STRIDE", (_X, _X.replace("stride_xn", "stride_wn"))),
        ("w by the stride of x", "", "WRONG-STRIDE", (_W, _W.replace("stride_wn", "stride_xn"))),
        ("w by the row stride", "", "WRONG-STRIDE", (_W, _W.replace("stride_wn", "stride_xm"))),
        ("x not advanced", "", "POINTER-STANDS-STILL", (_X, _X.replace("col_ids[None, :]", "tl.arange(0, BLOCK_N)[None, :]"))),
        ("grid of columns", "", "ROWS-NEVER-STORED", ('triton.cdiv(rows, tiles["BLOCK_M"])', 'triton.cdiv(cols, tiles["BLOCK_M"])')),
        ("grid by BLOCK_N", "", "ROWS-NEVER-STORED", ('triton.cdiv(rows, tiles["BLOCK_M"])', 'triton.cdiv(rows, tiles["BLOCK_N"])')),
        ("sum in fp16", "", "HALF-ACCUMULATED ROUNDED-TO-16-BITS", ("acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)", "acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float16)"), ("acc += products", "acc += products.to(tl.float16)")),
        ("padding of ones", "ragged_cols", "ROWS-OFFSET", ("mask=tile_mask, other=0.0", "mask=tile_mask, other=1.0"), ("mask=col_mask, other=0.0", "mask=col_mask, other=1.0")),
        ("weights squared", "", "", (_PRODUCTS, _PRODUCTS + " * w_tile.to(tl.float32)[None, :]")),
        ("x plus w", "", "OTHER-PRODUCTS", (_PRODUCTS, _PRODUCTS.replace(" * ", " + "))),
        ("maximum for sum", "", "", (_SUM, "y_tile = tl.max(acc, axis=1)")),
        ("one sum for all rows", "plain ragged_rows", "ROWS-ALIKE", (_SUM, "y_tile = tl.sum(tl.sum(acc, axis=1), axis=0) + tl.zeros((BLOCK_M,), tl.float32)")),
        ("y by the stride of x", "plain", "WRONG-STRIDE", (_STORE, _STORE.replace("row_ids,", "row_ids * stride_xm,"))),
        ("y of the tile", "", "ROWS-STORED-TWICE", (_STORE, _STORE.replace("row_ids,", "tl.arange(0, BLOCK_M),"))),
        ("rows and cols exchanged", "", "ARGUMENTS-EXCHANGED", (_LAUNCH, _LAUNCH.replace("rows, cols", "cols, rows"))),
        ("stride of w from x", "", "WRONG-STRIDE", (_LAUNCH, _LAUNCH.replace("w.stride(0)", "x.stride(1)"))),
        ("accumulator added to itself", "", "COLUMNS-COUNTED-OTHERWISE", ("acc += products", "acc += acc + products")),
        ("x of 16 bits kept", "", "HALF-PRODUCTS", (_PRODUCTS, "products = (x_tile * w_tile[None, :]).to(tl.float32)")),
    ),
    *of(
        "p02-row_per_program",
        ("sum replaced", "", "ROW-SUM-OVERWRITTEN", ("total += tl.sum", "total = tl.sum")),
        ("mask one more", "", "MASK-TOO-WIDE", ("        mask = col_ids < cols", "        mask = col_ids <= cols")),
        ("row by the column stride", "", "ROWS-NEVER-READ", ("row * stride_xm", "row * stride_xn")),
        ("grid of columns", "", "TILE-OUTSIDE", ("_row_kernel[(x.shape[0],)]", "_row_kernel[(x.shape[1],)]")),
        ("first block alone", "", "LAST-COLUMNS-NEVER-READ", (_LOOP, "range(0, BLOCK_N, BLOCK_N)", 2)),
        ("y by the stride of x", "", "TILE-OUTSIDE", ("tl.store(y_ptr + row, total", "tl.store(y_ptr + row * stride_xm, total")),
    ),
    *of(
        "p02-split_columns",
        ("partials by BLOCK", "", "WRONG-STRIDE", ("row_ids * num_splits + tl.program_id(1)", "row_ids * BLOCK_N + tl.program_id(1)")),
        ("last split left out", "", "COLUMNS-COUNTED-OTHERWISE", ("mask=splits < num_splits", "mask=splits < num_splits - 1")),
        ("programs exchanged", "", "ROWS-NEVER-READ", ("row_ids = (tl.program_id(0) * BLOCK_M", "row_ids = (tl.program_id(1) * BLOCK_M"), ("col_ids = (tl.program_id(1) * BLOCK_N", "col_ids = (tl.program_id(0) * BLOCK_N")),
        ("splits rounded down", "", "LAST-COLUMN-TILE-DROPPED LAST-COLUMNS-NEVER-READ", ("num_splits = triton.cdiv(cols, 256)", "num_splits = max(cols // 256, 1)")),
        ("partials transposed", "", "PARTS-REORDERED", ("row_ids * num_splits + tl.program_id(1)", "tl.program_id(1) * rows + row_ids")),
        ("first split for all", "", "COLUMNS-COUNTED-OTHERWISE", ("row * num_splits + splits", "row * num_splits + splits * 0")),
        ("products of the tile", "", "", ("tl.load(w_ptr + col_ids * stride_wn, mask=col_ids", "tl.load(w_ptr + tl.arange(0, BLOCK_N) * stride_wn, mask=col_ids")),
    ),
    *of(
        "p02-column_atomics",
        ("begins with garbage", "", "UNWRITTEN-READ", ("torch.zeros(rows, dtype", "torch.empty(rows, dtype")),
        ("stored, not added", "", "LAST-STORE-WINS", ("tl.atomic_add(y + r,", "tl.store(y + r,")),
        ("loaded, added, stored", "", "LAST-STORE-WINS", ("tl.atomic_add(y + r, tl.sum(xs * ws[None, :], 1), mask=r < rows)", "tl.store(y + r, tl.load(y + r, mask=r < rows) + tl.sum(xs * ws[None, :], 1), mask=r < rows)")),
        ("tiles by rows", "", "ROWS-NEVER-READ ROW-SUM-ZEROS LAST-COLUMNS-NEVER-READ", ("n_col_tiles = tl.cdiv(cols, C)", "n_col_tiles = tl.cdiv(rows, R)")),
        ("columns by BLOCK R", "plain", "COLUMNS-COUNTED-OTHERWISE", ("(pid % n_col_tiles).to(tl.int64) * C", "(pid % n_col_tiles).to(tl.int64) * R")),
    ),
    *of(
        "p02-column_by_column",
        ("moves by the row stride", "", "TILE-OUTSIDE", ("ptrs += sxn", "ptrs += sxm")),
        ("last column left out", "", "LAST-COLUMNS-NEVER-READ", ("for c in range(cols)", "for c in range(cols - 1)")),
        ("first column left out", "", "LAST-COLUMNS-NEVER-READ", ("for c in range(cols)", "for c in range(1, cols)")),
        ("w stands still", "", "POINTER-STANDS-STILL", ("w + c * sw", "w + sw")),
    ),
)
