"""Watches kernels in Triton's interpreter and writes down what they read, multiply and store.

A tile that was loaded from an input remembers which rows it holds, axis by axis, and so does what
is computed from it: the scores know their queries and their keys, and a product of weights with V
shows which keys took part for which query, whatever the kernel's loops look like. Runs inside the
worker, during calls that the judge wants traced.

Over 400 lines: all hooks of the interpreter are in this one file, for their order matters; what
they note is kept by the rooms beside it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from grader.kernel.interpreter.interpreting import one_at_a_time
from grader.kernel.observers import trace
from grader.kernel.observers.access import AccessMonitor, active_lanes, decoded
from grader.kernel.observers.lineage import (
    MOVES,
    Rows,
    carry,
    follow_masks,
    is_of_pairs,
    keeping_transposes,
    merged,
    padding,
    raises_masked,
    rounded_at,
    row_axis,
    shows_masked,
)
from grader.kernel.observers.lines import Lines
from grader.kernel.observers.nans import Nans
from grader.kernel.observers.operands import Operand, find_operand
from grader.kernel.observers.overwrites import Overwrites
from grader.kernel.observers.pairs import Pairs, add_saturating
from grader.kernel.observers.passed import tensors_of
from grader.kernel.observers.placement import Placement
from grader.kernel.observers.products import Products
from grader.kernel.observers.reads import Reads
from grader.kernel.observers.stores import Stores
from grader.kernel.observers.sums import Sums
from grader.kernel.observers.trace import Counter
from grader.kernel.observers.walking import Walking

_ELEMENTWISE = (
    *("binary_op", "ternary_op", "unary_op", "cast_impl", "create_fp_to_fp", "create_bitcast"),
    *("create_fma", "create_fabs", "create_rsqrt", "create_clampf"),
)


class Tracer:
    """What one traced call did; `finish` writes it into the block that the judge reads.

    `fault` is an error of the tracer's own, empty where there was none: from then on it watches
    nothing, and the kernels run on, for which it is no error.
    """

    def __init__(
        self,
        shape: trace.TraceShape,
        memory: np.ndarray,
        path: str,
        source: bytes,
        monitor: AccessMonitor,
    ) -> None:
        """Trace kernels of the submission at `path`, which holds `source`."""
        self.fault = ""
        self._shape = shape
        self._monitor = monitor  # knows the number that a pointer carries
        self._arrays = shape.arrays(memory)  # zeros: fresh memory
        self._counters = self._arrays["counters"]
        self._inputs: list[Operand] = []
        self._kernels: list[str] = []
        self._kernel = 0
        self._launches = 0  # that run, one in another
        self._stores = Stores()
        self._overwrites = Overwrites()
        self._operands: dict[int, Operand | None] = {}  # by the address where it starts
        self._tensors: dict[int, Any] = {}  # those that a launch was given
        self._made: set[int] = set()  # where those start that kernels have stored to
        self._reads = Reads(self._counters, [])
        self._lines = Lines(path, source)
        self._walking = Walking()
        self._nans = Nans(self._counters)
        self._pairs = Pairs(shape, self._arrays)
        self._sums = Sums(self._arrays)
        self._placement = Placement(shape, self._arrays)
        told = (self._lines, self._pairs, self._sums, self._placement, self._nans)
        self._products = Products(self._arrays, *told)

    @property
    def _output_dims(self) -> int:
        return 4 if self._inputs[0].name == "q" else 1

    # -- hooks --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watching(self, inputs: dict[str, Any]) -> Iterator[None]:
        """Trace all launches inside; `inputs` are the tensors that the entry point is given."""
        from triton.runtime import interpreter

        known = {name: t for name, t in inputs.items() if t.dim() in (2, 4) or name == "w"}
        self._inputs = [Operand.of(name, t) for name, t in known.items()]
        self._reads = Reads(self._counters, self._inputs)
        self._products.wide = self._inputs[0].tensor.element_size() == 4
        builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
        saved: list[tuple[Any, str, Any]] = []

        def replace(owner: Any, name: str, make: Any) -> None:
            old = getattr(owner, name, None)
            if old is not None:
                saved.append((owner, name, old))
                setattr(owner, name, make(old))

        replace(executor, "__call__", lambda old: one_at_a_time(self._launched(old)))
        replace(builder, "set_grid_idx", self._placed)
        replace(builder, "create_masked_load", self._loaded)
        replace(builder, "create_atomic_rmw", self._updated)
        replace(builder, "create_atomic_cas", self._swapped)
        replace(builder, "create_masked_store", self._stored_by)
        replace(builder, "create_dot", self._multiplied)
        for name in _ELEMENTWISE:
            replace(builder, name, self._elementwise)
        for name, moves in MOVES.items():
            replace(builder, name, self._moving(*moves))
        for name in dir(builder):
            if name.startswith("create_"):
                replace(builder, name, self._taking_up)
        replace(interpreter, "_patch_lang_tensor", lambda old: keeping_transposes(old, self._note))
        replace(interpreter.ReduceOps, "apply_impl", self._reduced)
        try:
            # A file may make errors of warnings: one in a note would be a fault of the judge's.
            with np.errstate(all="ignore"):
                yield
        finally:
            for owner, name, old in reversed(saved):
                setattr(owner, name, old)

    def _note(self, note: Callable[..., None], *args: Any) -> None:
        """Note what an operation did; an error of the tracer's own is none of the kernel's."""
        if self.fault:
            return
        try:
            note(*args)
        except (MemoryError, RecursionError):  # the kernel's, which is met here by chance
            raise
        except Exception as error:
            self.fault = f"{type(error).__name__} while line {self._lines.running()} ran: {error}"

    def _launched(self, launch: Any) -> Any:
        def call(this: Any, *args: Any, **kwargs: Any) -> Any:
            self._note(self._note_launch, this, (*args, *kwargs.values()))
            self._launches += 1
            try:
                return launch(this, *args, **kwargs)
            finally:
                self._launches -= 1

        return call

    def _note_launch(self, executor: Any, arguments: tuple) -> None:
        name = getattr(executor.fn, "__name__", "")
        if name not in self._kernels:
            self._kernels.append(name)
        self._kernel = min(self._kernels.index(name), trace.KERNELS - 1)
        self._counters[Counter.LAUNCHES] += 1
        self._stores.launched(self._kernel)
        self._overwrites.launched()
        self._walking.program_begins()
        self._pairs.launched()
        for value in arguments:
            for _, tensor in tensors_of("", value):
                self._remember(tensor)

    def _remember(self, tensor: Any) -> None:
        """Keep the tensor that begins at an address; of several the one that reaches furthest."""
        earlier = self._tensors.get(tensor.data_ptr())
        if earlier is None or _extent(earlier) < _extent(tensor):
            self._tensors[tensor.data_ptr()] = tensor

    def _placed(self, place: Any) -> Any:
        def set_grid_idx(this: Any, x: int, y: int, z: int) -> Any:
            self._note(self._note_program, x, y, z)
            return place(this, x, y, z)

        return set_grid_idx

    def _note_program(self, x: int, y: int, z: int) -> None:
        self._stores.placed(x, y, z)
        self._overwrites.placed(x, y, z)
        self._sums.program_ends()
        self._counters[Counter.PROGRAMS] += 1
        self._counters[Counter.UNSEEN_PROGRAMS] += not self._launches
        self._walking.program_begins()

    def _elementwise(self, operation: Any) -> Any:
        def traced(this: Any, *args: Any, **kwargs: Any) -> Any:
            result = operation(this, *args, **kwargs)
            self._note(self._note_elementwise, result, args)
            return result

        return traced

    def _note_elementwise(self, result: Any, args: tuple) -> None:
        handles = [a for a in args if hasattr(a, "data")]
        self._placement.meet(handles, self._lines.running())
        result.product = next((h.product for h in handles if getattr(h, "product", None)), None)
        if self._products.wide:
            result.rounded_at = rounded_at(handles) or self._rounding(result, handles)
        tags = merged(handles, result)
        if tags is not None:
            result.tags = tags
            if is_of_pairs(result) and result.data.dtype.kind == "f":
                follow_masks(result, handles, args[-1])
                by_factor = args[-1] is np.multiply and result.mask is not None
                if args[-1] is np.where or (by_factor and not result.mask_line):
                    result.mask_line = getattr(handles[0], "made_at", 0) or self._lines.running()
                    self._arrays["mask_lines"][self._kernel] = result.mask_line
                    rows = "queries" if result.tags[0].of_queries else "keys"
                    self._arrays["mask_rows"][self._kernel] = trace.MASK_ROWS.index(rows)
                if args[-1] in (np.exp, np.exp2) and shows_masked(result):
                    self._counters[Counter.SHOWN_LINE] = self._lines.running()
                if args[-1] is np.multiply and raises_masked(result, handles):
                    self._arrays["raised_lines"][self._kernel] = self._lines.running()
            elif self._inputs[0].name == "x":
                self._sums.added(result, args[-1], self._lines.running())
        data = getattr(result, "data", None)
        if getattr(data, "ndim", 0) == 2 and data.dtype == bool:
            result.made_at = self._lines.running()  # it may become a mask
        self._nans.look(result, handles, args[-1] if args else None, self._lines.running)

    def _rounding(self, result: Any, handles: list[Any]) -> int:
        """Return the line that runs, if it rounds numbers of fp32 to 16 bits."""
        types = [getattr(handle, "dtype", None) for handle in (result, *handles[:1])]
        if len(types) < 2 or not all(hasattr(t, "scalar") for t in types):
            return 0
        after, before = (t.scalar for t in types)
        narrow = after.is_floating() and after.primitive_bitwidth == 16
        return self._lines.running() if narrow and before.is_fp32() else 0

    def _moving(self, move_tags: Any, move: Any) -> Any:
        """Hook an operation that moves axes: what is known of a tile moves along."""

        def hook(operation: Any) -> Any:
            def traced(this: Any, arg: Any, *args: Any) -> Any:
                result = operation(this, arg, *args)
                shape = np.shape(arg.data)
                moves = (lambda tags: move_tags(tags, shape, *args), lambda a: move(a, *args))
                self._note(carry, arg, result, *moves)
                return result

            return traced

        return hook

    def _taking_up(self, operation: Any) -> Any:
        def traced(this: Any, *args: Any, **kwargs: Any) -> Any:
            self._note(self._sums.used, args)
            return operation(this, *args, **kwargs)

        return traced

    def _reduced(self, reduce: Any) -> Any:
        def apply_impl(this: Any, tiles: Any) -> Any:
            self._note(self._note_reduction, this, tiles)
            result = reduce(this, tiles)
            self._note(self._note_reduced, this, tiles, result)
            return result

        return apply_impl

    def _note_reduction(self, reduction: Any, tiles: Any) -> None:
        handle = tiles[0].handle
        self._sums.used([handle])
        if self._inputs[0].name == "x" and getattr(handle, "tags", None) is not None:
            self._sums.summed(reduction, handle, self._lines.running())
        reduced = is_of_pairs(handle) and reduction.axis is not None
        if reduced and handle.tags[reduction.axis].of_queries:
            self._counters[Counter.OVER_QUERIES_LINE] = self._lines.running()

    def _note_reduced(self, reduction: Any, tiles: Any, result: Any) -> None:
        """Let what a tile was reduced to remember the rows of the axes that are left."""
        tags = getattr(tiles[0].handle, "tags", None)
        if tags is None or reduction.axis is None:
            return
        axis = reduction.axis % len(tags)
        kept = (None,) if reduction.keep_dims else ()
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            tensor.handle.tags = (*tags[:axis], *kept, *tags[axis + 1 :])

    # -- memory -------------------------------------------------------------------------------

    def _operand(self, ptrs: Any) -> tuple[int, Operand | None]:
        """Return where the argument of a pointer starts, and which operand of the call it is."""
        number = int(decoded(ptrs)[1].flat[0])
        start = self._monitor.start_of(number)
        if start not in self._operands:
            tensor = self._tensors.get(start)
            found = find_operand(tensor, self._inputs) if tensor is not None else None
            self._operands[start] = found
        return start, self._operands[start]

    def _loaded(self, load: Any) -> Any:
        def create_masked_load(this: Any, ptrs: Any, mask: Any, *args: Any, **options: Any) -> Any:
            result = load(this, ptrs, mask, *args, **options)
            self._note(self._note_load, ptrs, mask, result)
            return result

        return create_masked_load

    def _note_load(self, ptrs: Any, mask: Any, result: Any) -> None:
        addresses, active = decoded(ptrs)[0], active_lanes(ptrs, mask)
        start, operand = self._operand(ptrs)
        if not active.any():
            result.tags = padding(addresses, operand)
            return
        self._overwrites.loaded(start)
        self._note_read(ptrs, addresses[active], result, start, operand)
        if operand is None:
            tensor, q = self._tensors.get(start), self._inputs[0]
            if tensor is not None and q.name == "q":
                places = (addresses, active)
                result.tags = self._placement.tags_of_made(start, tensor, q.size, places)
            return
        rows, columns = operand.locate(addresses)
        padded = operand.length < operand.size[2]  # its last rows are nobody's, and are read too
        lost = 0 if padded else int((active & (rows < 0)).sum())
        if not operand.holds(addresses[active]) or 4 * lost >= active.sum():
            self._counters[Counter.ASTRAY_LINE] = self._lines.running()
            self._counters[Counter.ASTRAY] = trace.OPERANDS.index(operand.name)
        ids = np.where(active, rows, -1)
        if operand.name == "x":
            there = active & (ids >= 0)
            add_saturating(self._arrays["visits"][self._kernel], (rows[there], columns[there]), 1)
        axis, ids_of_axis = row_axis(ids, active, columns)
        misaligned = axis is None and ids.ndim > 0 and ids.size > 1
        if axis is not None:
            held = Rows(operand.name, ids_of_axis, int(columns[active].min()))
            result.tags = tuple(held if i == axis else None for i in range(ids.ndim))
            result.loaded = True
        where = (self._lines.running(), self._kernel)
        itemsize = operand.tensor.element_size()
        self._walking.note(*where, addresses, itemsize, operand, axis, misaligned=misaligned)

    def _note_read(
        self, ptrs: Any, addresses: np.ndarray, result: Any, start: int, operand: Operand | None
    ) -> None:
        inside = self._reads.of_inputs(addresses)
        if inside.any():
            self._reads.note_inputs(addresses[inside], _itemsize(ptrs))
        if not inside.all():
            self._reads.note_others(
                addresses[~inside],
                self._tensors.get(start),
                floating=result.data.dtype.kind == "f" or result.dtype.primitive_bitwidth == 16,
                made=operand is None and start in self._made,
            )

    def _updated(self, update: Any) -> Any:
        def create_atomic_rmw(this: Any, op: Any, ptr: Any, val: Any, mask: Any, *args: Any) -> Any:
            result = update(this, op, ptr, val, mask, *args)
            self._note(self._note_update, ptr, mask)
            return result

        return create_atomic_rmw

    def _swapped(self, swap: Any) -> Any:
        def create_atomic_cas(this: Any, ptr: Any, *args: Any) -> Any:
            result = swap(this, ptr, *args)
            self._note(self._note_update, ptr, None)
            return result

        return create_atomic_cas

    def _note_update(self, ptrs: Any, mask: Any) -> None:
        """Note that an atomic operation reads what it changes, where that is an input."""
        active = active_lanes(ptrs, mask)
        self._made.add(self._operand(ptrs)[0])
        addresses = decoded(ptrs)[0][active]
        inside = self._reads.of_inputs(addresses)
        self._reads.note_inputs(addresses[inside], _itemsize(ptrs))

    def _stored_by(self, store: Any) -> Any:
        def create_masked_store(
            this: Any, ptrs: Any, value: Any, mask: Any, *args: Any, **options: Any
        ) -> Any:
            result = store(this, ptrs, value, mask, *args, **options)
            self._note(self._note_store, ptrs, value, mask)
            return result

        return create_masked_store

    def _note_store(self, ptrs: Any, value: Any, mask: Any) -> None:
        active = active_lanes(ptrs, mask)
        start, _ = self._operand(ptrs)
        self._made.add(start)
        tensor = self._tensors.get(start)
        if not active.any() or tensor is None:
            return
        addresses, line = decoded(ptrs)[0], self._lines.running()
        numbers = np.broadcast_to(np.asarray(value.data), addresses.shape)[active]
        changed = self._overwrites.stored(start, tensor, addresses[active], numbers, line)
        if tensor.dim() == self._output_dims:
            self._stores.note(start, tensor, addresses[active], changed, line)
        self._placement.store(start, tensor, value, (addresses, active), line)

    # -- products -----------------------------------------------------------------------------

    def _multiplied(self, dot: Any) -> Any:
        def create_dot(this: Any, a: Any, b: Any, d: Any, *args: Any) -> Any:
            result = dot(this, a, b, d, *args)
            self._note(self._note_multiplied, result, a, b, d)
            return result

        return create_dot

    def _note_multiplied(self, result: Any, a: Any, b: Any, d: Any) -> int:
        return self._products.multiplied(result, a, b, d, self._kernel)

    # -- the end ------------------------------------------------------------------------------

    def finish(self, results: dict[str, Any]) -> None:
        """Write the tables; `results` are what the entry point returned, by name."""
        self._note(self._finish, results)

    def _finish(self, results: dict[str, Any]) -> None:
        out = results.get("out", results.get("y"))
        # Not by its own method, which may be the submission's; nor need it be a tensor.
        start = torch.Tensor.data_ptr(out) if isinstance(out, torch.Tensor) else 0
        self._sums.program_ends()
        counters = self._counters
        self._products.write()
        # Partial results of a split row are no other form of an input while every dot has its own.
        made = bool(counters[Counter.UNKNOWN_DOTS])
        counters[Counter.DISTINCT_READ] = self._reads.distinct(made=made)
        self._walking.write(self._arrays["accesses"])
        self._placement.write(results)
        self._overwrites.write(results, self._arrays["overwritten"])
        if start:
            self._stores.write(start, self._shape.queries, self._arrays)


def _extent(tensor: Any) -> int:
    """Return how many elements lie between the first and the last of a tensor."""
    return sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def _itemsize(ptrs: Any) -> int:
    """Return how many bytes a pointer says that it points to."""
    return max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
