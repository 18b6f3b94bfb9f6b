"""What is looked for in every call: programs that race, dots that a GPU rounds, sums in 16 bits."""

from __future__ import annotations

from typing import Any

import torch

from grader.kernel.lines import running_line
from grader.kernel.machine import events
from grader.kernel.machine.tensors import Memory
from grader.kernel.observers.races import Races

_ROUNDING = {"tf32": "TF32", "bf16x3": "bf16x3"}
_FEWEST = 32  # numbers, which are no numbers of 16 bits by chance


class Watch:
    """Watches the launches of one call of the submission at `path`.

    `rounds` is the first dot of fp32 operands that a GPU rounds: its line, and TF32 or bf16x3.
    `race` is the line of the first race, and what races in words; `sum` that of the first sum that
    is rounded to 16 bits on its way.
    """

    def __init__(self, path: str, queries: int = 0) -> None:
        """Watch a call in which there are so many `queries` over batch and heads, if any."""
        self.rounds: tuple[int, str] | None = None
        self.race: tuple[int, str] | None = None
        self.sum: tuple[int, str] | None = None
        self._queries = queries
        self._path = path
        self._launch = 0  # the line that launches
        self._grid = 1, 1, 1
        self._races = Races()

    def __call__(self, event: events.Event) -> Any:
        """Look at one event."""
        if isinstance(event, events.Multiplied):
            precision = event.op.attributes.get("inputPrecision", "")
            wide = event.left.dtype.itemsize == 4
            if self.rounds is None and wide and precision in _ROUNDING:
                self.rounds = self._line(event.op.place), _ROUNDING[precision]
            return
        if isinstance(event, events.Launched):
            self._launch, self._grid = running_line(self._path), event.grid
            self.sum = self.sum or self._rounded(event)
        if self.race is None:
            self._races(event)
            race = self._races.found
            if race is not None:
                text = (
                    f"programs of one launch race for {race.name}; program"
                    f" {self._program(race.program)} {race.does} an element that program"
                    f" {self._program(race.writer)} stores to"
                )
                self.race = self._line(race.place), text

    def _rounded(self, event: events.Launched) -> tuple[int, str] | None:
        for place in event.rounded_sums:
            return self._line(place), f"{place.name or 'a sum'} is rounded to 16 bits in each step"
        for memory in event.memories:
            if memory.flat.numel() == self._queries >= _FEWEST and _is_rounded(memory):
                return self._launch, f"the number of each query in {memory.name} has 16 bits"
        return None

    def _line(self, place: Any) -> int:
        return place.line_in(self._path) or self._launch

    def _program(self, number: int) -> tuple[int, int, int]:
        x, y, _ = self._grid
        return number % x, number // x % y, number // (x * y)


def _is_rounded(memory: Memory) -> bool:
    """Whether what lies there has 16 bits, or had them before a kernel reads it in 32."""
    values = memory.flat
    if values.dtype in (torch.float16, torch.bfloat16):
        return True
    if values.dtype is not torch.float32 or memory.may_change or bool((values == values[0]).all()):
        return False
    return any(torch.equal(values.to(d).float(), values) for d in (torch.float16, torch.bfloat16))
