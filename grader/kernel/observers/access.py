"""Sees what kernels do: how many are launched, in the interpreter every read, write and dot.

In Triton's interpreter every active lane of every load and store is compared with the extents of
the tensors that were passed to the launch. The check comes before the access: in the interpreter a
store past the end corrupts the heap and kills the process later, far from its cause (seen with
Triton 3.7 and 3.9; guarded by tests/test_bad_input.py).

A pointer carries the number of its argument in the bits that no address uses. Pointer arithmetic
keeps it, so that an access far outside is told with the argument it came from. Runs inside the
worker.
"""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from grader.kernel.observers.lines import kernel_line, running_line
from grader.kernel.observers.passed import tensors_of
from grader.kernel.observers.races import Races

_NUMBER_SHIFT = 48  # user space ends below 2**47
_READ, _ATOMIC = "read", "atomic update"
MASKED, BY_BLOCK = "under a mask", "by a block pointer"
_WITHOUT_MASK = {
    "create_load": "",
    "create_store": "",
    "create_tensor_pointer_load": BY_BLOCK,
    "create_tensor_pointer_store": BY_BLOCK,
}


class OutOfBounds(Exception):
    """A kernel touched memory outside the tensors it was given."""


class LaunchCounter:
    """Counts the kernels that are launched, whatever launches them; while `idle` none runs.

    `lines` are those of the kernels of the file at `path`.
    """

    def __init__(self, path: str, *, machine: bool) -> None:
        self.count = 0
        self.lines: set[int] = set()
        self.idle = False
        self._path = path
        self._interpret = interpret

    def install(self) -> None:
        """Hook Triton's launches."""
        if self._interpret:
            from triton.runtime import interpreter

            self._hook(interpreter.GridExecutor, "__call__")
        else:
            from triton.runtime import jit

            self._hook(jit.JITFunction, "run")

    def _hook(self, owner: type, name: str) -> None:
        launch = getattr(owner, name)

        def counted(this: Any, *args: Any, **kwargs: Any) -> Any:
            self.count += 1
            self.lines.add(self._line(this))
            return None if self.idle else launch(this, *args, **kwargs)

        setattr(owner, name, counted)

    def _line(self, launched: Any) -> int:
        if not self._interpret:
            return kernel_line(launched, self._path)
        code = launched.fn.__code__
        return code.co_firstlineno if code.co_filename == self._path else 0


@contextlib.contextmanager
def compile_only() -> Iterator[None]:
    """While active, a launch compiles its kernel into Triton's cache and does not run it."""
    from triton.runtime import jit

    launch = jit.JITFunction.run

    def run(this: Any, *args: Any, warmup: bool = True, **kwargs: Any) -> Any:
        return launch(this, *args, warmup=True, **kwargs)

    jit.JITFunction.run = run
    try:
        yield
    finally:
        jit.JITFunction.run = launch


class DotMonitor:
    """Sees dots in the interpreter; `rounds` is the first of fp32 that rounds them on a GPU.

    That is its line, and TF32 or bf16x3. The interpreter multiplies in fp32 whatever it is told.
    """

    def __init__(self, path: str) -> None:
        self.rounds: tuple[int, str] | None = None
        self._path = path  # of the submission

    def reset(self) -> None:
        """Forget what an earlier call did."""
        self.rounds = None

    def install(self) -> None:
        """Hook the interpreter's dots."""
        from triton._C.libtriton import ir
        from triton.runtime import interpreter

        builder = interpreter.InterpreterBuilder
        dot, known = builder.create_dot, ir.INPUT_PRECISION
        rounding = {known.TF32: "TF32", getattr(known, "BF16x3", None): "bf16x3"}

        def create_dot(this: Any, a: Any, b: Any, d: Any, precision: Any, *args: Any) -> Any:
            rounds = precision in rounding and a.get_element_ty().is_fp32()
            if rounds and self.rounds is None:
                self.rounds = running_line(self._path), rounding[precision]
            return dot(this, a, b, d, precision, *args)

        builder.create_dot = create_dot


class AccessMonitor:
    """Patches Triton's interpreter; `violation` holds the first access outside a tensor.

    `path` is that of the submission. `races` sees which program stores what another one uses.
    `updated` are the addresses of arguments that a launch stored to after it had read from them,
    or changed by an atomic operation.
    """

    def __init__(self, path: str) -> None:
        self.violation: str | None = None
        self.races = Races(lambda: running_line(path))
        self.updated: set[int] = set()
        self._how = MASKED  # what keeps the lanes of the access under way inside
        self._read: set[int] = set()  # numbers of arguments that this launch has read from
        self._starts: list[int] = []
        self._extents: list[tuple[int, int, str]] = []

    def reset(self) -> None:
        """Forget what an earlier call did."""
        self.violation = None
        self.updated.clear()
        self.races.reset()

    def install(self) -> None:
        """Hook the interpreter's launches, loads, stores and atomics."""
        from triton.runtime import interpreter

        builder = interpreter.InterpreterBuilder
        executor = interpreter.GridExecutor
        load, store = builder.create_masked_load, builder.create_masked_store
        atomic, exchange = builder.create_atomic_rmw, builder.create_atomic_cas
        launch, convert = executor.__call__, interpreter._implicit_cvt

        def implicit_cvt(arg: Any) -> Any:
            value = convert(arg)
            tensor = getattr(arg, "base", arg)  # of one that was reinterpreted
            if hasattr(arg, "data_ptr") and isinstance(tensor, torch.Tensor):
                value.handle.data += np.uint64(self._number(tensor.data_ptr()) << _NUMBER_SHIFT)
            return value

        def checked(
            what: str, ptrs: Any, mask: Any, value: Any = None, *, waits: bool = False
        ) -> Any:
            number = self._inside_one(what, ptrs, mask)
            if not number:
                self._check(what, ptrs, mask)
            addresses = _addresses(ptrs).view(np.uint64)
            if number:
                self._note_use(what, number, ptrs, addresses, mask, value, waits=waits)
            return interpreter.TensorHandle(addresses, ptrs.dtype)

        # Descriptor loads and stores pass some of these by keyword.
        def create_masked_load(this: Any, ptrs: Any, mask: Any, *args: Any, **options: Any) -> Any:
            volatile = any(option is True for option in (*args, *options.values()))
            addresses = checked(_READ, ptrs, mask, waits=volatile)
            return load(this, addresses, mask, *args, **options)

        def create_masked_store(
            this: Any, ptrs: Any, value: Any, mask: Any, *args: Any, **options: Any
        ) -> Any:
            return store(this, checked("write", ptrs, mask, value), value, mask, *args, **options)

        def create_atomic_rmw(this: Any, op: Any, ptr: Any, val: Any, mask: Any, *args: Any) -> Any:
            return atomic(this, op, checked(_ATOMIC, ptr, mask), val, mask, *args)

        def create_atomic_cas(this: Any, ptr: Any, *args: Any) -> Any:
            return exchange(this, checked(_ATOMIC, ptr, None), *args)

        def call(this: Any, *args: Any, **kwargs: Any) -> Any:
            named = dict(zip(this.arg_names, args, strict=False)) | kwargs
            self._register(named)
            return launch(this, *args, **kwargs)

        # Without a mask the interpreter makes one of ones.
        for name, how in _WITHOUT_MASK.items():
            if hasattr(builder, name):  # Triton 3.9 has no block pointers
                setattr(builder, name, self._told(getattr(builder, name), how))
        set_grid_idx = builder.set_grid_idx

        def begins(this: Any, *place: int) -> None:
            self.races.begins(place)
            set_grid_idx(this, *place)

        builder.set_grid_idx = begins
        builder.create_masked_load = create_masked_load
        builder.create_masked_store = create_masked_store
        builder.create_atomic_rmw = create_atomic_rmw
        builder.create_atomic_cas = create_atomic_cas
        executor.__call__ = call
        interpreter._implicit_cvt = implicit_cvt

    def _told(self, access: Any, how: str) -> Any:
        def told(this: Any, *args: Any, **options: Any) -> Any:
            self._how = how
            try:
                return access(this, *args, **options)
            finally:
                self._how = MASKED

        return told

    def _register(self, named: dict[str, Any]) -> None:
        extents = []
        for name, value in named.items():
            extents += (_extent(place, tensor) for place, tensor in tensors_of(name, value))
        self._extents = sorted(extents)
        self._starts = [start for start, _, _ in self._extents]
        self._read.clear()
        self.races.launched()

    def start_of(self, number: int) -> int:
        """Return the address where the argument of this number starts, 0 where there is none."""
        return self._starts[number - 1] if 1 <= number <= len(self._starts) else 0

    def _number(self, address: int) -> int:
        """Return the number of the argument that starts there, 0 when none does."""
        index = bisect.bisect_left(self._starts, address)
        found = index < len(self._starts) and self._starts[index] == address
        return index + 1 if found else 0

    def _note_use(
        self,
        what: str,
        number: int,
        ptrs: Any,
        addresses: Any,
        mask: Any,
        value: Any,
        *,
        waits: bool,
    ) -> None:
        """Let `races` see an access to the argument of this number."""
        start, end, name = self._extents[number - 1]
        waits = waits and ptrs.get_element_ty().is_int()
        if what == _READ and not waits and not self.races.has_stores(start):
            return
        lanes = slice(None) if mask is None else np.asarray(mask.data)
        places = addresses[lanes].astype(np.int64)
        if waits:
            self.races.waited(start, places, _itemsize(ptrs))
        elif what == _READ:
            self.races.loaded(start, name, places, _itemsize(ptrs))
        elif what == _ATOMIC:
            whole = ptrs.get_element_ty().is_int()
            self.races.updated(start, name, places, _itemsize(ptrs), whole=whole)
        else:
            values = np.broadcast_to(value.data, addresses.shape)
            self.races.stored(start, end, name, places, values[lanes])

    def _inside_one(self, what: str, ptrs: Any, mask: Any) -> int:
        """Note an access to one argument and inside it, as nearly all are; return its number.

        0 where it is none of these.

        Tells no more than `_check` does, in a quarter of its time.
        """
        pointers = ptrs.data
        if mask is not None:
            lanes = np.asarray(mask.data)
            if lanes.shape != pointers.shape or lanes.dtype != bool:
                return 0
            pointers = pointers[lanes]
        if pointers.size == 0 or pointers.dtype != np.uint64:
            return 0
        low, high = int(pointers.min()), int(pointers.max())
        number = low >> _NUMBER_SHIFT
        first = number << _NUMBER_SHIFT  # far below an address of any other argument
        if not self._inside(low - first, high - first + _itemsize(ptrs)):
            return 0
        self._note(what, number)
        return number if 1 <= number <= len(self._extents) else 0

    def _note(self, what: str, number: int) -> None:
        """Remember what is done to the argument of this number."""
        if what == _READ:
            self._read.add(number)
        elif what == _ATOMIC or number in self._read:
            self.updated.add(self.start_of(number))

    def _check(self, what: str, ptrs: Any, mask: Any) -> None:
        (addresses, numbers), lanes = decoded(ptrs), active_lanes(ptrs, mask)
        active, numbers = addresses[lanes], numbers[lanes]
        if active.size == 0:
            return
        self._note(what, int(numbers.flat[0]))
        itemsize = _itemsize(ptrs)
        low, high = int(active.min()), int(active.max()) + itemsize
        if self._inside(low, high):
            return
        lanes = zip(active.ravel().tolist(), numbers.ravel().tolist(), strict=True)
        outside = [(a, n) for a, n in lanes if not self._inside(a, a + itemsize)]
        if not outside:
            return  # lanes in several tensors, each inside its own
        place, far = self._describe(*outside[0], itemsize)
        how = f", {self._how}" if mask is not None and self._how else ""
        self.violation = f"{what} outside {place}; {_count(len(outside))}{far}{how}"
        raise OutOfBounds(self.violation)

    def _inside(self, low: int, high: int) -> bool:
        # Extents may overlap (slices of one packed tensor), so all that start before `low` count.
        index = bisect.bisect_right(self._starts, low)
        return any(high <= end for _, end, _ in self._extents[:index])

    def _describe(self, address: int, number: int, itemsize: int) -> tuple[str, str]:
        if not 1 <= number <= len(self._extents):
            return "every tensor of the launch", ""
        start, end, _ = self._extents[number - 1]
        name = " or ".join(n for first, _, n in self._extents if first == start)
        if address >= end:
            side, far = "past the end", (address - end) // itemsize
        else:
            side, far = "before the start", -(-(start - address) // itemsize)
        far_from_it = f"{far:,} {side}" if far else f"right {side}"
        return f"a tensor: {side} of argument {name}", f", the first of them {far_from_it}"


def decoded(ptrs: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the address of each lane, and the number of the argument that its pointer is of.

    Far before the start of a tensor that lies low in memory an address is negative.
    """
    addresses = _addresses(ptrs)
    pointers = np.asarray(ptrs.data).astype(np.int64)
    return addresses, (pointers - addresses) >> _NUMBER_SHIFT


def _addresses(ptrs: Any) -> np.ndarray:
    """Return the address of each lane, with its sign."""
    unused = 64 - _NUMBER_SHIFT
    return np.asarray(ptrs.data).astype(np.int64) << unused >> unused


def _itemsize(ptrs: Any) -> int:
    return max(1, ptrs.get_element_ty().primitive_bitwidth // 8)


def active_lanes(ptrs: Any, mask: Any) -> np.ndarray:
    """Return which lanes of an access are active."""
    if mask is None:
        return np.ones(ptrs.data.shape, bool)
    return np.broadcast_to(np.asarray(mask.data, dtype=bool), ptrs.data.shape)


def _count(elements: int) -> str:
    return f"{elements} element" + ("" if elements == 1 else "s")


def _extent(name: str, tensor: Any) -> tuple[int, int, str]:
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return start, start, name
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size(), name
