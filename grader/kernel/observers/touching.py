"""What a call's kernels load and store: which rows, how many elements, and where results go."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from grader.kernel.machine import events
from grader.kernel.machine.arrays import whole
from grader.kernel.machine.notes import together
from grader.kernel.machine.tensors import extent
from grader.kernel.marks import marked, marks_in
from grader.kernel.observers import trace
from grader.kernel.observers.operands import Operand
from grader.kernel.observers.pairs import Pairs
from grader.kernel.observers.placement import Placement
from grader.kernel.observers.places import Located, Places, Touched
from grader.kernel.observers.record import Record, as_numpy
from grader.kernel.observers.stepping import Steps
from grader.kernel.observers.stores import Stores
from grader.kernel.observers.trace import Counter
from grader.kernel.observers.watch import storage_of

_NONE = -1
_MAX_ELEMENTS = 2**24  # of a tensor, to remember which were read
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Touching:
    """Finds the rows that kernels load and store, and reports accesses to other observers."""

    def __init__(
        self, record: Record, placement: Placement, pairs: Pairs, steps: Steps | None
    ) -> None:
        self._record, self._steps = record, steps
        self._placement, self._pairs = placement, pairs
        self._places = Places(record)
        self._reads = Reads(record.counters, record.inputs)
        self._stores, self._accesses = Stores(record), Accesses(record)
        self._made: set[int] = set()  # starts of tensors that kernels have stored to

    def launched(self, event: events.Launched) -> None:
        self._places.launched(event.memories)
        self._stores.launched()
        self._accesses.launched()

    def touched(self, event: events.Computed) -> Any:
        """Note an access of all programs; return the note of a loaded tile."""
        notes, chosen = [], []
        if event.op.name == "tt.store" and self._steps:
            self._steps.stored(event.programs, self._record.where.in_kernel(event.op))
        for touched in self._places.touched(event):
            if event.op.name == "tt.load":
                notes.append(self._loaded(event, touched))
                chosen.append(touched.chosen)
            else:
                self._made.add(touched.start)
                if event.op.name == "tt.store":
                    self._stored(event, touched)
                    continue
                self._note_unwritten(event, touched)
                if event.used:
                    self._reads.note(touched, made=True)
                else:
                    self._reads.note_inputs(touched)
        if len(notes) < 2:
            return notes[0] if notes else None
        place = torch.from_numpy(np.argsort(np.concatenate(chosen)))
        return together(notes, [len(part) for part in chosen], place)

    def _loaded(self, event: events.Computed, touched: Touched) -> Any:
        start, record, type = touched.start, self._record, event.types[-1]
        operand = self._places.operand(start)
        located = operand and Located.of(operand, touched)
        of_input = operand is not None and operand.name not in trace.MADE
        if of_input:
            self._note_load(located)
            if self._steps:
                self._steps.loaded(located, record.where.in_kernel(event.op))
        if touched.active.any():
            self._stores.loaded(start)
            floating = type.is_float or type.bits == 16
            made = not of_input and start in self._made
            tensor = self._places.tensors.get(start)
            if operand is not None and operand.name == "out" and not made and is_blank(tensor):
                record.note_line(Counter.UNWRITTEN_LINE)
            self._reads.note(touched, tensor, floating=floating, made=made)
            if not of_input:
                self._note_unwritten(event, touched)
        return located and located.note

    def flowed(self, event: events.Flowed) -> None:
        """Note the first operator of PyTorch whose result has the mark of an operand."""
        if not event.line or self._record.has_unwritten:
            return
        own = {storage_of(tensor) for tensor in event.sources}
        made = [tensor for tensor in event.targets if storage_of(tensor) not in own]
        found = set().union(*map(marks_in, made))
        if found and found & set().union(*map(marks_in, event.sources)):
            self._record.counters[Counter.UNWRITTEN_OPERAND_LINE] = event.line

    def _note_unwritten(self, event: events.Computed, touched: Touched) -> None:
        """Note the line if an active lane is the first of the call to read what nobody wrote."""
        value, type, record = event.results[0], event.types[-1], self._record
        if record.has_unwritten or not type.is_float or not bool(value.isnan().any()):
            return
        found = as_numpy(whole(marked(value), type.shape, len(event.programs)))
        if (found[touched.chosen] & touched.active).any():
            line = record.where.in_kernel(event.op)
            record.counters[Counter.UNWRITTEN_ELEMENT_LINE] = line

    def _note_load(self, found: Located) -> None:
        record, operand, active = self._record, found.operand, found.touched.active
        padded = operand.length < operand.size[2]  # kernels read the padding, too
        lost = active & (found.rows < 0)
        if lost.any():
            lanes = tuple(range(1, active.ndim))
            outside = ~operand.holds(found.touched.addresses) & active
            many = 4 * lost.sum(lanes) >= active.sum(lanes).clip(1)
            if outside.any() or (not padded and many.any()):
                record.note_line(Counter.ASTRAY_LINE)
                record.counters[Counter.ASTRAY] = trace.OPERANDS.index(operand.name)
        if operand.name == "x":
            self._pairs.count(active & ~lost, found.rows * record.shape.seqlen_k + found.columns)
        self._accesses.note(found)

    def _stored(self, event: events.Computed, touched: Touched) -> None:
        start, value, note = touched.start, event.operands[1], event.notes[1]
        tensor = self._places.tensors.get(start)
        if not touched.active.any():
            self._record.note_line(Counter.IDLE_STORE_LINE)
        if tensor is None or not touched.active.any():
            return
        size = tensor.element_size()
        ids = (touched.addresses - start) // size
        active = touched.active & (ids >= 0) & (ids < extent(tensor.shape, tensor.stride()))
        programs = touched.programs.repeat(active.reshape(len(active), -1).sum(1))
        over = np.zeros(len(programs), bool)
        if value.dtype.itemsize == size and tensor.is_floating_point():
            bits = value.contiguous().view(_BITS[size])
            bits = as_numpy(whole(bits, event.types[1].shape, len(event.programs)))
            lanes = bits[touched.chosen][active]
            over = self._stores.stored(start, tensor, programs, ids[active], lanes)
        of_output = tensor.dim() == (1 if self._record.of_rows else 4)
        if not of_output and tensor.dim() != 3:
            return
        operand = Operand.of("out", tensor[..., None] if tensor.dim() == 3 else tensor)
        rows, columns = operand.locate(touched.addresses)
        if of_output:
            self._stores.stored_rows(operand, programs, rows[active], over)
        self._placement.store(touched, tensor, note and note[touched.chosen], rows, columns)

    def write(self, results: dict[str, Any]) -> None:
        """Write the tables of a call that returned `results`."""
        # By torch's own methods: a result's may be the submission's, if it is a tensor at all.
        tensors = {n: t for n, t in results.items() if isinstance(t, torch.Tensor)}
        starts = {name: torch.Tensor.data_ptr(tensor) for name, tensor in tensors.items()}
        for made, counter in enumerate((Counter.DISTINCT_READ, Counter.DISTINCT_MADE)):
            self._record.counters[counter] = self._reads.distinct(made=bool(made))
        self._accesses.write()
        self._placement.write(starts)
        self._stores.write(starts, tensors)


class Accesses:
    """Notes the loads of each line and operand, for the table of accesses."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._accesses: dict[tuple[int, ...], dict[str, int]] = {}
        # The first address of each program's last tile, in this launch.
        self._last: dict[tuple[int, ...], np.ndarray] = {}

    def launched(self) -> None:
        """Begin a launch, in which no program has a last tile yet."""
        self._last.clear()

    def note(self, found: Located) -> None:
        """Note a load of an operand."""
        record, operand, touched, axis = self._record, found.operand, found.touched, found.axis
        active = touched.active
        running = np.flatnonzero(active.reshape(len(active), -1).any(1))
        if not len(running):
            return
        addresses, programs = touched.addresses[running], touched.programs[running]
        key = record.where.line, record.kernel, trace.OPERANDS.index(operand.name) + 1
        noted = self._accesses.setdefault(key, dict.fromkeys(trace.ACCESS.names[3:], 0))
        if key not in self._last:
            self._last[key] = np.full(record.programs, _NONE)
        last = self._last[key]
        before, lanes = last[programs], addresses[-1]
        noted["count"] += len(addresses)
        noted["programs"] += int((before == _NONE).sum())
        noted["stride"], noted["column_stride"] = operand.tensor.stride()[2:]
        noted["misaligned"] += (
            found.apart if axis is not None else len(addresses) * (lanes.size > 1)
        )
        itemsize = operand.tensor.element_size()
        if lanes.ndim == 2 and min(lanes.shape) > 1:
            deltas = (lanes[1, 0] - lanes[0, 0], lanes[0, 1] - lanes[0, 0])
            rows = axis if axis is not None else int(abs(deltas[0]) < abs(deltas[1]))
            noted["across"] = int(deltas[rows]) // itemsize
            noted["along"] = int(deltas[1 - rows]) // itemsize
            noted["size"] = lanes.shape[rows]
            if operand.name == "w":  # w has no other axis
                noted["along"] = noted["column_stride"]
        elif operand.name == "w" and lanes.size > 1:
            noted["across"] = int(np.diff(lanes.ravel()[:2])[0]) // itemsize
            noted["along"], noted["size"] = noted["column_stride"], lanes.size
        first = addresses.reshape(len(addresses), -1)[:, 0]
        moved = np.flatnonzero((before != _NONE) & (first != before))
        if moved.size and not noted["step"]:
            noted["step"] = int(first[moved[0]] - before[moved[0]]) // itemsize
        last[programs] = first

    def write(self) -> None:
        rows = [(*key, *noted.values()) for key, noted in self._accesses.items()]
        self._record.arrays["accesses"][: len(rows)] = rows[: trace.LINES]


class Reads:
    """Counts the reads of one call, and the different elements that they read, by address.

    Elements of an input have its own type, whatever type a pointer into it has.
    """

    def __init__(self, counters: np.ndarray, inputs: list[Operand]) -> None:
        self._counters = counters
        self._itemsize = inputs[0].tensor.element_size() if inputs else 1
        self._regions = _merged(sorted((i.start, i.end) for i in inputs))
        # Elements read, by the tensor's address and whether kernels of the call have made it.
        self._seen: dict[tuple[int, bool], np.ndarray] = {}

    def note(
        self, touched: Touched, tensor: Any = None, *, floating: bool = False, made: bool = False
    ) -> None:
        """Note reads by pointers to `tensor`, None if it is unknown.

        Outside inputs, reads of a tensor that kernels of the call have `made` also count as
        UNKNOWN_READS; all other tensors hold inputs in some form. Different elements count, too,
        but not those of integers that kernels made.
        """
        rest = self.note_inputs(touched)
        lanes = touched.addresses[rest]
        self._counters[Counter.ELEMENTS_READ] += lanes.size
        if made:
            self._counters[Counter.UNKNOWN_READS] += lanes.size
        if lanes.size and tensor is not None and (floating or not made):
            start = tensor.data_ptr()
            offsets = (lanes - start) // tensor.element_size()
            self._see((start, made), extent(tensor.shape, tensor.stride()), offsets)

    def note_inputs(self, touched: Touched) -> np.ndarray:
        """Note reads in inputs, or between rows of one; return which lanes read elsewhere.

        A read covers one element or more. Lanes of one program with one address, clamped ones
        included, are one read.
        """
        each = max(1, touched.width // self._itemsize)
        rest = touched.active
        for low, high in self._regions:
            inside = rest & (touched.addresses >= low) & (touched.addresses < high)
            lanes = touched.addresses[inside]
            if not lanes.size:
                continue
            rest = rest & ~inside
            self._counters[Counter.ELEMENTS_READ] += each * _different(touched.addresses, inside)
            first = (lanes - low) // self._itemsize
            for number in range(each):
                self._see((low, False), (high - low) // self._itemsize, first + number)
        return rest

    def distinct(self, *, made: bool) -> int:
        """Return how many different elements were read: those that kernels made, or others."""
        return sum(int(seen.sum()) for (_, own), seen in self._seen.items() if own == made)

    def _see(self, key: tuple[int, bool], size: int, offsets: np.ndarray) -> None:
        if key not in self._seen:
            self._seen[key] = np.zeros(size if size <= _MAX_ELEMENTS else 0, bool)
        seen = self._seen[key]
        seen[offsets[(offsets >= 0) & (offsets < seen.size)]] = True


def _different(addresses: np.ndarray, active: np.ndarray) -> int:
    """Return the number of active addresses, equal ones of a program counted once."""
    lanes = np.where(active, addresses, -1).reshape(len(addresses), -1)
    if lanes.shape[1] > 1 and not (lanes[:, 1:] > lanes[:, :-1]).all():
        lanes.sort(axis=1)
    again = lanes[:, 1:] == lanes[:, :-1]
    return int((lanes >= 0).sum() - (again & (lanes[:, 1:] >= 0)).sum())


def _merged(extents: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge extents that overlap, as slices of one packed tensor do."""
    found: list[tuple[int, int]] = []
    for low, high in extents:
        if found and low < found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found


def is_blank(tensor: torch.Tensor | None) -> bool:
    """Whether a tensor holds NaN alone, with which the judge fills what torch.empty returns."""
    return tensor is not None and tensor.is_floating_point() and bool(tensor.isnan().all())
