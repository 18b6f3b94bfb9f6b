"""Watches kernels in Triton's interpreter and writes down what they read, multiply and store.

A tile that was loaded from an input remembers which rows it holds, axis by axis, and so does what
is computed from it: the scores know their queries and their keys, and a product of weights with V
shows which keys took part for which query, whatever the kernel's loops look like. Runs inside the
worker, during calls that the judge wants traced.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from grader.running import trace
from grader.running.access import ADDRESS, NUMBER_SHIFT, AccessMonitor
from grader.running.operands import QUERY_SIDE, Operand, find_operand
from grader.running.trace import Counter

# Scores that far down are masked, by -inf or by a finite number; no product of q and k is.
_HIDDEN = -1e4
_MAX_ELEMENTS = 2**24  # of a tensor of which each element's reads are remembered
_OPERATIONS = ("subtract", "add", "multiply", "divide", "exp2", "exp", "dot")  # 0: another


@dataclasses.dataclass(frozen=True)
class Rows:
    """What one axis of a tile holds: rows of an operand by number, -1 where a lane is masked."""

    operand: str
    ids: np.ndarray

    @property
    def of_queries(self) -> bool:
        """Whether these are rows of queries, else of keys."""
        return self.operand in QUERY_SIDE


@dataclasses.dataclass
class _Stored:
    """Stores to one tensor, which may turn out to be an output."""

    operand: Operand
    writer: np.ndarray  # of each element's row, the last program
    counts: np.ndarray  # how many programs stored it
    twice: np.ndarray  # whether two programs of one launch did
    rows: list[tuple[int, ...]] = dataclasses.field(default_factory=list)
    twice_line: int = 0


class Tracer:
    """What one traced call did; `finish` writes it into the block that the judge reads."""

    def __init__(
        self, shape: trace.TraceShape, memory: np.ndarray, path: str, monitor: AccessMonitor
    ) -> None:
        self._shape = shape
        self._monitor = monitor  # knows the number that a pointer carries
        self._path = path  # of the submission
        self._arrays = shape.arrays(memory)  # zeros: fresh memory
        self._counters = self._arrays["counters"]
        self._inputs: list[Operand] = []
        self._kernels: list[str] = []
        self._kernel = 0
        self._serial = 0  # of the program that runs
        self._launched_at = 0  # that of the last before this launch
        self._program = (0, 0, 0)
        self._operands: dict[int, Operand | None] = {}  # by the address where it starts
        self._tensors: dict[int, Any] = {}  # those that a launch was given
        self._read: dict[int, np.ndarray] = {}
        self._stored: dict[int, _Stored] = {}
        self._dots: dict[tuple[int, ...], int] = {}
        self._loops: list[range] | None = None  # of the submission, by lines
        self._accesses: dict[tuple, dict[str, int]] = {}
        self._last_base: dict[tuple, int] = {}
        self._nan_kinds: set[int] = set()
        self._taken: dict[int, np.ndarray] = {}  # by product, in this launch

    # -- hooks --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watching(self, inputs: dict[str, Any]) -> Iterator[None]:
        """Trace all launches inside; `inputs` are the tensors that the entry point is given."""
        from triton.runtime import interpreter

        self._inputs = [Operand.of(name, t) for name, t in inputs.items() if t.dim() in (2, 4)]
        builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
        saved: list[tuple[Any, str, Any]] = []

        def replace(owner: Any, name: str, make: Any) -> None:
            old = getattr(owner, name, None)
            if old is not None:
                saved.append((owner, name, old))
                setattr(owner, name, make(old))

        replace(executor, "__call__", self._launched)
        replace(builder, "set_grid_idx", self._placed)
        replace(builder, "create_masked_load", self._loaded)
        replace(builder, "create_masked_store", self._stored_by)
        replace(builder, "create_dot", self._multiplied)
        for name in ("binary_op", "ternary_op", "unary_op", "cast_impl", "create_fp_to_fp"):
            replace(builder, name, self._elementwise)
        for name in ("create_fma", "create_fabs", "create_rsqrt", "create_clampf"):
            replace(builder, name, self._elementwise)
        for name, moves in _MOVES.items():
            replace(builder, name, self._reshaped(*moves))
        replace(interpreter, "_patch_lang_tensor", _transposing)
        replace(interpreter.ReduceOps, "apply_impl", self._reduced)
        try:
            yield
        finally:
            for owner, name, old in reversed(saved):
                setattr(owner, name, old)

    def _launched(self, launch: Any) -> Any:
        def call(this: Any, *args: Any, **kwargs: Any) -> Any:
            name = getattr(this.fn, "__name__", "")
            if name not in self._kernels:
                self._kernels.append(name)
            self._kernel = min(self._kernels.index(name), trace.KERNELS - 1)
            self._counters[Counter.LAUNCHES] += 1
            self._launched_at = self._serial
            self._last_base.clear()
            self._taken.clear()
            for value in (*args, *kwargs.values()):
                tensors = value if isinstance(value, tuple) else (value,)
                for tensor in tensors:
                    tensor = getattr(tensor, "base", tensor)  # of a descriptor
                    if hasattr(tensor, "data_ptr") and hasattr(tensor, "stride"):
                        self._tensors[tensor.data_ptr()] = tensor
            return launch(this, *args, **kwargs)

        return call

    def _placed(self, place: Any) -> Any:
        def set_grid_idx(this: Any, x: int, y: int, z: int) -> Any:
            self._program = (x, y, z)
            self._serial += 1
            self._counters[Counter.PROGRAMS] += 1
            self._last_base.clear()
            return place(this, x, y, z)

        return set_grid_idx

    def _elementwise(self, operation: Any) -> Any:
        def traced(this: Any, *args: Any, **kwargs: Any) -> Any:
            result = operation(this, *args, **kwargs)
            handles = [a for a in args if hasattr(a, "data")]
            tags = _merged(handles, result)
            if tags is not None:
                result.tags = tags
                if _is_of_pairs(result) and result.data.dtype.kind == "f":
                    self._follow_masks(result, handles, args[-1])
            self._look_for_nan(result, handles, args[-1] if args else None)
            return result

        return traced

    def _follow_masks(self, result: Any, handles: list[Any], operation: Any) -> None:
        """Note which pairs are hidden: by a number far down, or by a zero in place of a weight."""
        hidden = result.data <= _HIDDEN
        result.weights = operation in (np.exp, np.exp2)
        result.mask = None
        for handle in handles:
            result.weights |= getattr(handle, "weights", False)
            hidden = _joined(hidden, getattr(handle, "hidden", None), np.logical_or)
            result.mask = _joined(getattr(handle, "mask", None), result.mask, np.maximum)
        if operation is np.where:
            condition, *sides = handles
            self._arrays["mask_lines"][self._kernel] = self._line()
            for side, there in zip(sides, (condition.data, ~condition.data), strict=True):
                if not _is_of_pairs(side):
                    if result.weights and not side.data.any():
                        hidden = hidden | there
                    mask = np.where(there & ~hidden, np.uint8(2), np.uint8(1))
                    result.mask = _joined(mask, result.mask, np.maximum)
        elif operation is np.multiply and result.weights:
            for handle in handles:
                if not _is_of_pairs(handle) or handle.data.dtype.kind != "f":
                    hidden = hidden | (handle.data == 0)
        result.hidden = hidden

    def _reshaped(self, move_tags: Any, move: Any) -> Any:
        """Hook an operation that moves axes: what is known of a tile moves along."""

        def hook(operation: Any) -> Any:
            def traced(this: Any, arg: Any, *args: Any) -> Any:
                result = operation(this, arg, *args)
                tags = getattr(arg, "tags", None)
                if tags is not None:
                    result.tags = move_tags(tags, *args)
                    result.weights = getattr(arg, "weights", False)
                for name in ("hidden", "mask"):
                    array = getattr(arg, name, None)
                    if array is not None:
                        setattr(result, name, move(array, *args))
                return result

            return traced

        return hook

    def _reduced(self, reduce: Any) -> Any:
        def apply_impl(this: Any, tiles: Any) -> Any:
            handle = tiles[0].handle
            reduced = _is_of_pairs(handle) and this.axis is not None
            if reduced and handle.tags[this.axis].of_queries:
                self._counters[Counter.OVER_QUERIES_LINE] = self._line()
            return reduce(this, tiles)

        return apply_impl

    # -- memory -------------------------------------------------------------------------------

    def _operand(self, ptrs: Any) -> tuple[int, Operand | None]:
        """Return where the argument of a pointer starts, and which operand of the call it is."""
        number = int(np.asarray(ptrs.data).flat[0]) >> NUMBER_SHIFT
        start = self._monitor.start_of(number)
        if start not in self._operands:
            tensor = self._tensors.get(start)
            found = find_operand(tensor, self._inputs) if tensor is not None else None
            self._operands[start] = found
        return start, self._operands[start]

    def _loaded(self, load: Any) -> Any:
        def create_masked_load(this: Any, ptrs: Any, mask: Any, *args: Any, **options: Any) -> Any:
            result = load(this, ptrs, mask, *args, **options)
            if result.data.dtype.kind == "f" or result.dtype.primitive_bitwidth == 16:
                self._note_load(ptrs, mask, result)
            return result

        return create_masked_load

    def _note_load(self, ptrs: Any, mask: Any, result: Any) -> None:
        addresses, active = _lanes(ptrs, mask)
        count = int(active.sum())
        self._counters[Counter.ELEMENTS_READ] += count
        if not count:
            result.tags = _padding(addresses, self._operand(ptrs)[1])
            return
        start, operand = self._operand(ptrs)
        itemsize = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        self._note_distinct(start, addresses[active], itemsize)
        if operand is None:
            self._counters[Counter.UNKNOWN_READS] += count
            return
        rows, columns = operand.locate(addresses)
        ids = np.where(active, rows, -1)
        if operand.name == "x":
            there = active & (ids >= 0)
            np.add.at(self._arrays["visits"][self._kernel], (rows[there], columns[there]), 1)
        axis, ids_of_axis = _row_axis(ids, active)
        misaligned = axis is None and ids.ndim > 0 and ids.size > 1
        if axis is not None:
            held = Rows(operand.name, ids_of_axis)
            result.tags = tuple(held if i == axis else None for i in range(ids.ndim))
        self._note_access(addresses, itemsize, operand, axis, misaligned=misaligned)

    def _note_distinct(self, start: int, addresses: np.ndarray, itemsize: int) -> None:
        tensor = self._tensors.get(start)
        if start not in self._read:
            size = 0
            if tensor is not None:
                size = 1 + sum(
                    (n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)
                )
            self._read[start] = np.zeros(size if size <= _MAX_ELEMENTS else 0, bool)
        seen = self._read[start]
        offsets = (addresses.astype(np.int64) - start) // itemsize
        seen[offsets[(offsets >= 0) & (offsets < seen.size)]] = True

    def _stored_by(self, store: Any) -> Any:
        def create_masked_store(
            this: Any, ptrs: Any, value: Any, mask: Any, *args: Any, **options: Any
        ) -> Any:
            result = store(this, ptrs, value, mask, *args, **options)
            self._note_store(ptrs, mask)
            return result

        return create_masked_store

    def _note_store(self, ptrs: Any, mask: Any) -> None:
        addresses, active = _lanes(ptrs, mask)
        if not active.any():
            return
        start, _ = self._operand(ptrs)
        tensor = self._tensors.get(start)
        if tensor is None or tensor.dim() != (4 if self._inputs[0].name == "q" else 1):
            return
        stored = self._stored.get(start)
        if stored is None:
            operand = Operand.of("out", tensor)
            empty = np.zeros(operand.num_rows, np.int32)
            never = np.zeros(operand.num_rows, bool)
            stored = self._stored[start] = _Stored(operand, empty - 1, empty.copy(), never)
        ids = np.unique(stored.operand.rows(addresses[active]))
        ids = ids[ids >= 0]
        # What an earlier launch stored may be finished by the next.
        others = (stored.writer[ids] > self._launched_at) & (stored.writer[ids] != self._serial)
        stored.twice[ids] |= others
        if others.any() and not stored.twice_line:
            stored.twice_line = self._line()
        stored.counts[ids] += stored.writer[ids] != self._serial
        stored.writer[ids] = self._serial
        if ids.size:
            length = stored.operand.size[2]
            head, first, last = ids[0] // length, ids[0] % length, ids[-1] % length
            stored.rows.append((self._kernel, *self._program, head, first, last, self._line()))

    def _note_access(
        self,
        addresses: np.ndarray,
        itemsize: int,
        operand: Operand,
        axis: int | None,
        *,
        misaligned: bool,
    ) -> None:
        line = self._line()
        key = (line, self._kernel, trace.OPERANDS.index(operand.name) + 1)
        noted = self._accesses.setdefault(key, dict.fromkeys(trace.ACCESS[3:], 0))
        noted["count"] += 1
        noted["programs"] += key not in self._last_base
        noted["stride"], noted["column_stride"] = operand.tensor.stride()[2:]
        noted["misaligned"] += misaligned
        lanes = addresses.astype(np.int64)
        if addresses.ndim == 2 and min(addresses.shape) > 1:
            deltas = (lanes[1, 0] - lanes[0, 0], lanes[0, 1] - lanes[0, 0])
            rows = axis if axis is not None else int(abs(deltas[0]) < abs(deltas[1]))
            noted["across"] = int(deltas[rows]) // itemsize
            noted["along"] = int(deltas[1 - rows]) // itemsize
            noted["size"] = addresses.shape[rows]
        base = int(lanes.flat[0])
        last = self._last_base.get(key)
        if last is not None and base != last and not noted["step"]:
            noted["step"] = (base - last) // itemsize
        self._last_base[key] = base

    # -- products -----------------------------------------------------------------------------

    def _multiplied(self, dot: Any) -> Any:
        def create_dot(this: Any, a: Any, b: Any, d: Any, *args: Any) -> Any:
            result = dot(this, a, b, d, *args)
            if a.data.ndim == 2:
                m, k = a.data.shape
                n = b.data.shape[1]
                self._counters[Counter.MULTIPLY_ADDS] += m * n * k
                tags_a, tags_b = (getattr(x, "tags", None) or (None, None) for x in (a, b))
                result.tags = (tags_a[0], tags_b[1])
                self._note_dot(a, b, tags_a, tags_b, (m, n, k))
                self._look_for_nan(result, [a, b, d], "dot")
            else:
                self._counters[Counter.MULTIPLY_ADDS] += a.data.size * b.data.shape[-1]
                self._counters[Counter.UNKNOWN_DOTS] += 1
            return result

        return create_dot

    def _note_dot(self, a: Any, b: Any, tags_a: tuple, tags_b: tuple, size: tuple) -> None:
        product, tile = trace.OTHER, (0, 0)
        narrow = a.dtype.primitive_bitwidth == 16 and self._inputs[0].tensor.element_size() == 4
        if narrow and not self._counters[Counter.NARROW_LINE]:
            self._counters[Counter.NARROW_LINE] = self._line()
        if tags_a[1] is None and tags_b[0] is None and tags_a[0] and tags_b[1]:
            queries, keys = tags_a[0], tags_b[1]
            if not queries.of_queries:
                queries, keys = keys, queries
            if queries.of_queries and not keys.of_queries:
                product, tile = trace.SCORES, (queries.ids.size, keys.ids.size)
                if (queries.operand, keys.operand) == ("q", "k"):
                    self._visit(queries, keys)
        elif tags_a[1] and tags_b[0]:
            left = tags_a[0] is not None  # the weights are the left operand
            weights, tags = (a, tags_a) if left else (b, tags_b[::-1])
            values = tags_b[0] if left else tags_a[1]
            names = {"v": 0, "dout": 1, "q": 2, "k": 3}
            if tags[0] and values.operand in names:
                product = names[values.operand]
                tile = self._take(weights, tags, values, product, transposed=not left)
        if product == trace.OTHER:
            self._counters[Counter.UNKNOWN_DOTS] += 1
        key = (self._line(), self._kernel, product, *size, *tile, self._loop())
        self._dots[key] = self._dots.get(key, 0) + 1

    def _visit(self, queries: Rows, keys: Rows) -> None:
        shape = self._shape
        q, k = queries.ids[queries.ids >= 0], keys.ids[keys.ids >= 0]
        if q.size and k.size:
            _count(self._arrays["visits"][self._kernel], q, k % shape.seqlen_k, 1)
            heads = np.ix_(np.unique(q // shape.seqlen_q), np.unique(k // shape.seqlen_k))
            self._arrays["k_heads"][heads] = 1

    def _take(
        self, weights: Any, tags: tuple, values: Rows, product: int, *, transposed: bool
    ) -> tuple[int, int]:
        """Note which pairs have a weight that is not masked; return the tile's size."""
        shape = self._shape
        hidden = getattr(weights, "hidden", None)
        taken = np.ones(weights.data.shape, bool) if hidden is None else ~hidden
        mask = _joined(np.zeros(taken.shape, np.uint8), getattr(weights, "mask", None), np.maximum)
        if transposed:
            taken, mask = taken.T, mask.T
        free, own = tags[0], tags[1]  # axes of the weights: kept, and summed over
        length = shape.seqlen_q if values.of_queries else shape.seqlen_k
        kept, summed = free.ids >= 0, values.ids >= 0
        both = summed & (own.ids >= 0)
        if (own.ids[both] % length != values.ids[both] % length).any():
            self._counters[Counter.MISMATCHED] += 1
            self._counters[Counter.MISMATCHED_LINE] = self._line()
        if values.operand == "v" and taken[kept][:, ~summed].any():
            self._counters[Counter.PADDING_TAKEN] += int(taken[kept][:, ~summed].sum())
            self._counters[Counter.PADDING_LINE] = self._line()
        part, mask = taken[kept][:, summed], mask[kept][:, summed]
        rows, columns = free.ids[kept], values.ids[summed]
        if values.of_queries:  # the weights are transposed: keys are kept, queries summed over
            rows, columns, part, mask = columns, rows, part.T, mask.T
        if rows.size and columns.size:
            table = self._arrays["takes"][product]
            columns_of_head = columns % shape.seqlen_k
            self._note_twice(product, rows, columns_of_head, part)
            _count(table, rows, columns_of_head, part)
            index = np.ix_(rows, columns_of_head)
            self._arrays["masks"][product][index] |= mask
            if values.operand == "v":
                heads = np.ix_(
                    np.unique(rows // shape.seqlen_q), np.unique(columns // shape.seqlen_k)
                )
                self._arrays["v_heads"][heads] = 1
        size = free.ids.size, values.ids.size
        return size if not values.of_queries else size[::-1]

    def _note_twice(self, product: int, rows: Any, columns: Any, part: np.ndarray) -> None:
        table = self._arrays["twice"][product]
        taken = self._taken.setdefault(product, np.zeros(table.shape, bool))
        index = np.ix_(rows, columns)
        again = taken[index] & part
        table[index] |= again
        taken[index] |= part

    # -- NaN, lines, the end --------------------------------------------------------------------

    def _look_for_nan(self, result: Any, operands: list[Any], operation: Any) -> None:
        data = getattr(result, "data", None)
        if data is None or data.dtype.kind != "f" or not np.isnan(data).any():
            return
        if any(o.data.dtype.kind == "f" and np.isnan(o.data).any() for o in operands):
            return
        name = getattr(operation, "__name__", str(operation))
        kind = _OPERATIONS.index(name) + 1 if name in _OPERATIONS else 0
        if not self._nan_kinds:
            self._counters[Counter.NAN_LINE] = self._line()
            self._counters[Counter.NAN_OPERATION] = kind
        self._nan_kinds.add(kind)

    def _line(self) -> int:
        """Return the line of the submission that is running, the innermost."""
        frame: Any = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename != self._path:
            frame = frame.f_back
        return frame.f_lineno if frame is not None else 0

    def _loop(self) -> int:
        """Return the line of the innermost loop of the submission that is running, 0 if none."""
        if self._loops is None:
            with open(self._path, encoding="utf-8") as file:
                nodes = ast.walk(ast.parse(file.read()))
            loops = [n for n in nodes if isinstance(n, (ast.For, ast.While))]
            self._loops = [range(n.lineno, (n.end_lineno or n.lineno) + 1) for n in loops]
        frame: Any = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_filename == self._path:
                around = [loop.start for loop in self._loops if frame.f_lineno in loop]
                if around:
                    return max(around)
            frame = frame.f_back
        return 0

    def finish(self, results: dict[str, Any]) -> None:
        """Write the tables; `results` are what the entry point returned, by name."""
        counters = self._counters
        counters[Counter.NAN_KINDS] = len(self._nan_kinds)
        counters[Counter.DISTINCT_READ] = sum(int(seen.sum()) for seen in self._read.values())
        for row, (key, count) in zip(self._arrays["dots"], self._dots.items(), strict=False):
            *left, tile_q, tile_k, loop = key
            row[:] = *left, count, tile_q, tile_k, loop
        accesses = zip(self._arrays["accesses"], self._accesses.items(), strict=False)
        for row, (key, noted) in accesses:
            row[:] = [*key, *(noted[name] for name in trace.ACCESS[3:])]
        out = results.get("out", results.get("y"))
        stored = self._stored.get(out.data_ptr()) if out is not None else None
        if stored is not None and stored.operand.num_rows == self._shape.queries:
            self._arrays["stores"][:] = np.minimum(stored.counts, 255)
            counters[Counter.STORED_TWICE] = int(stored.twice.sum())
            counters[Counter.STORED_TWICE_LINE] = stored.twice_line
            for row, values in zip(self._arrays["programs"], stored.rows, strict=False):
                row[:] = values


def _lanes(ptrs: Any, mask: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the address of each lane and whether it is active."""
    addresses = np.asarray(ptrs.data) & ADDRESS
    if mask is None:
        return addresses, np.ones(addresses.shape, bool)
    lanes = mask.data if hasattr(mask, "dtype") and hasattr(mask, "get_element_ty") else mask
    return addresses, np.broadcast_to(np.asarray(lanes, dtype=bool), addresses.shape)


def _row_axis(ids: np.ndarray, active: np.ndarray) -> tuple[int | None, np.ndarray]:
    """Return the axis along which a tile's rows lie, and the row of each position on it."""
    for axis in range(ids.ndim) if ids.ndim == 2 else ():
        rows = ids.max(axis=1 - axis)
        along = np.expand_dims(rows, 1 - axis)
        if bool(((ids == along) | ~active).all()) and (rows.size > 1 or ids.size > 1):
            if axis == 0 and ids.shape[1] == 1:
                continue
            return axis, rows
    return None, ids


def _padding(addresses: np.ndarray, operand: Operand | None) -> tuple | None:
    """Tags of a tile with no active lane: its rows are the axis with the larger stride."""
    if operand is None or addresses.ndim != 2 or min(addresses.shape) < 2:
        return None
    lanes = addresses.astype(np.int64)
    axis = int(abs(lanes[1, 0] - lanes[0, 0]) < abs(lanes[0, 1] - lanes[0, 0]))
    empty = Rows(operand.name, np.full(addresses.shape[axis], -1))
    return (empty, None) if axis == 0 else (None, empty)


def _merged(handles: list[Any], result: Any) -> tuple | None:
    """Tags of what is computed element by element: the first operand that knows an axis decides."""
    shape = getattr(getattr(result, "data", None), "shape", ())
    tags: list[Rows | None] = [None] * len(shape)
    known = False
    for handle in handles:
        own = getattr(handle, "tags", None)
        if own is None or handle.data.shape != shape:
            continue
        for axis, rows in enumerate(own):
            if tags[axis] is None and rows is not None:
                tags[axis], known = rows, True
    return tuple(tags) if known else None


# Operations that move axes: what they do to the tags of a tile, and to an array of its size.
_MOVES = {
    "create_expand_dims": (lambda tags, axis: (*tags[:axis], None, *tags[axis:]), np.expand_dims),
    "create_broadcast": (lambda tags, shape: tags, np.broadcast_to),
    "create_trans": (lambda tags, order: tuple(tags[axis] for axis in order), np.transpose),
}


def _transposing(patch: Any) -> Any:
    """Let `tile.T`, which the interpreter computes without its builder, keep its tags."""

    def patched(tensor: Any, *args: Any) -> Any:
        result = patch(tensor, *args)
        plain = tensor.__dict__["T"]

        def transpose(this: Any) -> Any:
            turned = plain.fget(this)
            for name in ("tags", "hidden", "mask"):
                own = getattr(this.handle, name, None)
                if own is not None:
                    setattr(turned.handle, name, own[::-1] if name == "tags" else own.T)
            turned.handle.weights = getattr(this.handle, "weights", False)
            return turned

        tensor.T = property(transpose)
        return result

    return patched


def _is_of_pairs(handle: Any) -> bool:
    """Whether a tile has queries on one axis and keys on the other."""
    tags = getattr(handle, "tags", None)
    return tags is not None and len(tags) == 2 and None not in tags


def _joined(first: Any, second: Any, join: Any) -> Any:
    """Join two arrays of one shape, either of which may be None."""
    if first is None or second is None:
        return second if first is None else first
    return join(first, second)


def _count(table: np.ndarray, rows: np.ndarray, columns: np.ndarray, part: Any) -> None:
    """Add `part` to the pairs of rows and columns."""
    part = np.broadcast_to(np.asarray(part, np.uint8), (rows.size, columns.size))
    np.add.at(table, np.ix_(rows, columns), part)
