"""Finds in every call programs that race, and dots whose operands a GPU rounds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch

from grader.kernel.lines import running_line
from grader.kernel.machine import events
from grader.kernel.machine.arrays import Tensor, cast, full, zeros, zeros_like
from grader.kernel.machine.tensors import Memory, place_in
from grader.kernel.machine.ttir import Place

_ROUNDING = {"tf32": "TF32", "bf16x3": "bf16x3"}
# Relative, and a share of the largest number: sums in another order, rounded to bf16, differ by
# 2**-7 of themselves or of terms that cancel. Of two numbers so close, either is right.
_CLOSE = 1e-2
_NOBODY = -1
_RACE = "programs of one launch race for"
_MOST = 250  # characters of a race's description: a reply holds 1900


class Watch:
    """Watches the launches of one call of the submission at `path`.

    `rounds` maps lines of dots whose fp32 operands a GPU rounds to the format: TF32 or bf16x3.
    """

    def __init__(self, path: str) -> None:
        self.rounds: dict[int, str] = {}
        self._path = path
        self._launch = 0  # the line that launches
        self._grid = 1, 1, 1
        self._races = Races()
        # By race, its line, its description, and what a program does: see `Race`, or "changes".
        self._said: list[tuple[int, str, str]] = []
        self._updates = 0
        self._reached: list[set[int]] = []  # by race, the storages that it may have changed

    def __call__(self, event: events.Event) -> Any:
        """Observe an event."""
        if isinstance(event, events.Multiplied):
            precision = event.op.attributes.get("inputPrecision", "")
            wide = event.left.dtype.itemsize == 4
            if wide and precision in _ROUNDING:
                self.rounds.setdefault(self._line(event.op.place), _ROUNDING[precision])
            return
        if isinstance(event, events.Launched):
            self._launch, self._grid = running_line(self._path), event.grid
        self._races(event)
        for race in self._races.found[len(self._said) :]:
            one, other = (place_in(self._grid, n) for n in (race.program, race.writer))
            text = f"program {one} {race.does} an element that program {other} stores to"
            self._said.append((self._line(race.place), f"{_RACE} {race.name}; {text}", race.does))
            self._reached.append({race.storage})
        for number, place in self._races.updates[self._updates :]:
            self._updates += 1
            race = self._races.found[number]
            one, other = (place_in(self._grid, n) for n in sorted((race.program, race.writer)))
            text = f"programs {one} and {other} load the same element, change it and store it"
            self._said[number] = self._line(place), f"{_RACE} {race.name}; {text}", "changes"
        if isinstance(event, events.Flowed) and self._reached:
            both = event.sources, event.targets
            sources, targets = ({storage_of(tensor) for tensor in one} for one in both)
            for reached in self._reached:
                reached |= targets if reached & sources else set()

    def races_of(self, results: Mapping[str, Tensor]) -> list[tuple[int, str, str, list[str]]]:
        """Return each race, as `_said` has it, and the results that it may change.

        Of several that reach the same results, only the first counts.
        """
        found: dict[tuple[str, ...], tuple[int, str, str]] = {}
        for race, reached in zip(self._said, self._reached, strict=True):
            names = tuple(name for name, t in results.items() if storage_of(t) in reached)
            found.setdefault(names, race)
        return [
            (line, text[:_MOST], does, list(names))
            for names, (line, text, does) in found.items()
            if names
        ]

    def _line(self, place: Any) -> int:
        return place.line_in(self._path) or self._launch


@dataclasses.dataclass(frozen=True)
class Race:
    """A `program` that reads or stores to an element (`does`) to which a `writer` stores.

    The element is at `index` of `seen`.
    """

    place: Place
    storage: int
    name: str
    does: str
    program: int
    writer: int
    seen: _Seen
    index: int


@dataclasses.dataclass
class _Seen:
    """For each element of a tensor, the last program to store and to read, and the values.

    `shared` says which elements several programs have read.
    """

    writer: Tensor
    stored: Tensor
    reader: Tensor
    read: Tensor
    shared: Tensor


class Races:
    """Finds elements for which programs of one launch race; `found` has one race per tensor.

    `updates` has numbers of races in which both programs load the element, change it and store it,
    each with the place of the store.

    The machine runs all programs side by side, a GPU in any order: if a program reads what another
    one stores, or stores other numbers over it, the result depends on that order. Atomic operations
    race only with plain accesses. A program that has reached a lock or a flag, an integer that an
    atomic operation changes or a volatile load reads, no longer counts: it may know that the others
    are done.
    """

    def __init__(self) -> None:
        self.found: list[Race] = []
        self.updates: list[tuple[int, Place]] = []
        self._raced: set[int] = set()  # storages
        self._reads: dict[int, int] = {}  # races with a load, in this launch, by the storage
        self._seen: dict[int, _Seen] = {}
        self._waited = zeros(0, dtype=torch.bool)

    def __call__(self, event: events.Event) -> None:
        """Observe an event."""
        if isinstance(event, events.Launched):
            self._seen.clear()
            self._reads.clear()
            self._waited = zeros(event.programs, dtype=torch.bool)
        elif isinstance(event, events.Access) and event.index.numel():
            whole = not event.value.dtype.is_floating_point
            volatile = event.op.attributes.get("isVolatile") == "true"
            if whole and (event.kind == events.ATOMIC or volatile):
                self._waited[event.programs] = True
            elif storage_of(event.memory.flat) in self._raced:
                self._note_update(event)
            elif event.kind == events.ATOMIC or event.value.dtype is event.memory.flat.dtype:
                seen = self._of(event.memory)
                (self._stored if event.kind == events.STORE else self._read)(event, seen)
                self._note_update(event)

    def _of(self, memory: Memory) -> _Seen:
        if memory.number not in self._seen:
            size, flat = memory.flat.shape, memory.flat
            nobody = full(size, _NOBODY, dtype=torch.int32)
            self._seen[memory.number] = _Seen(
                nobody, zeros_like(flat), nobody.clone(), zeros_like(flat), nobody >= 0
            )
        return self._seen[memory.number]

    def _stored(self, event: events.Access, seen: _Seen) -> None:
        index, programs, value = event.index, cast(event.programs, torch.int32), event.value
        self._look(event, "stores to", seen.writer[index], seen.stored[index], seen)
        self._look(event, "stores to", seen.reader[index], seen.read[index], seen, reads=True)
        seen.writer[index], seen.stored[index] = programs, value
        self._look(event, "stores to", seen.writer[index], seen.stored[index], seen)

    def _read(self, event: events.Access, seen: _Seen) -> None:
        index, programs = event.index, cast(event.programs, torch.int32)
        updates = event.kind == events.ATOMIC
        self._look(event, "updates" if updates else "reads", seen.writer[index], None, seen)
        # NaN differs from all that another program stores: over an update, each store races.
        before = seen.reader[index]
        seen.reader[index], seen.read[index] = programs, math.nan if updates else event.value
        several = (seen.reader[index] != programs) | ((before != _NOBODY) & (before != programs))
        seen.shared[index[several]] = True

    def _note_update(self, event: events.Access) -> None:
        """Note a store of the program that has read the element of a race, as another one has."""
        storage = storage_of(event.memory.flat)
        if event.kind != events.STORE or storage not in self._reads:
            return
        race = self.found[number := self._reads[storage]]
        own = (event.index == race.index) & (event.programs == race.program)
        if self._seen.get(event.memory.number) is race.seen and bool(own.any()):
            del self._reads[storage]
            if bool(race.seen.shared[race.index]):
                self.updates.append((number, event.op.place))

    def _look(
        self,
        event: events.Access,
        does: str,
        others: Tensor,
        there: Tensor | None,
        seen: _Seen,
        *,
        reads: bool = False,
    ) -> None:
        """Note a race with `others` that accessed the same elements, if the values differ."""
        programs = cast(event.programs, torch.int32)
        races = (others != _NOBODY) & (others != programs)
        storage = storage_of(event.memory.flat)
        if storage in self._raced or not bool(races.any()):
            return
        races &= ~self._waited[programs.long()]
        if there is not None:
            races &= _differ(there, event.value)
        if not bool(races.any()):
            return
        first = int(races.nonzero()[0, 0])
        who = int(programs[first]), int(others[first])
        who = who[::-1] if reads else who
        race = event.memory.name, "reads" if reads else does, *who, seen, int(event.index[first])
        if race[1] == "reads":
            self._reads[storage] = len(self.found)
        self._raced.add(storage)
        self.found.append(Race(event.op.place, storage, *race))


def storage_of(tensor: Tensor) -> int:
    """Return the address of a tensor's storage, which identifies it."""
    return int(torch.Tensor.untyped_storage(tensor).data_ptr())


def _differ(there: Tensor, values: Tensor) -> Tensor:
    if not values.dtype.is_floating_point:
        return there != values
    there, values = there.float(), values.float()
    finite = values[values.isfinite()].abs()
    close = _CLOSE * float(finite.max()) if finite.numel() else 0.0
    return ~torch.isclose(there, values, rtol=_CLOSE, atol=close, equal_nan=True)
