"""What is looked for in every call: programs that race, and dots that a GPU rounds."""

from __future__ import annotations

from typing import Any

from grader.kernel.lines import running_line
from grader.kernel.machine import events
from grader.kernel.observers.races import Races

_ROUNDING = {"tf32": "TF32", "bf16x3": "bf16x3"}


class Watch:
    """Watches the launches of one call of the submission at `path`.

    `rounds` is the first dot of fp32 operands that a GPU rounds: its line, and TF32 or bf16x3.
    `race` is the line of the first race, and what races in words.
    """

    def __init__(self, path: str) -> None:
        self.rounds: tuple[int, str] | None = None
        self.race: tuple[int, str] | None = None
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
        if self.race is None:
            self._races(event)
            for race in self._races.found[:1]:
                text = (
                    f"programs of one launch race for {race.name}; program"
                    f" {self._program(race.program)} {race.does} an element that program"
                    f" {self._program(race.writer)} stores to"
                )
                self.race = self._line(race.place), text

    def _line(self, place: Any) -> int:
        return place.line_in(self._path) or self._launch

    def _program(self, number: int) -> tuple[int, int, int]:
        x, y, _ = self._grid
        return number % x, number // x % y, number // (x * y)
