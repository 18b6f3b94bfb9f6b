"""How pointers walk: from row to row, from column to column, from tile to tile."""

from __future__ import annotations

import numpy as np

from grader.kernel.observers import trace
from grader.kernel.observers.operands import Operand


class Walking:
    """Notes the loads of each line and operand, for the table of accesses."""

    def __init__(self) -> None:
        self._accesses: dict[tuple, dict[str, int]] = {}
        self._last_base: dict[tuple, int] = {}

    def program_begins(self) -> None:
        """Begin with a program: its first tile follows on none."""
        self._last_base.clear()

    def note(
        self,
        line: int,
        kernel: int,
        addresses: np.ndarray,
        itemsize: int,
        operand: Operand,
        axis: int | None,
        *,
        misaligned: bool,
    ) -> None:
        """Note a load of `operand` whose rows lie along `axis`, None where they lie along none."""
        key = (line, kernel, trace.OPERANDS.index(operand.name) + 1)
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
            if operand.name == "w":  # the other axis is none of its own
                noted["along"] = noted["column_stride"]
        elif operand.name == "w" and lanes.size > 1:
            noted["across"] = int(np.diff(lanes.ravel()[:2])[0]) // itemsize
            noted["along"], noted["size"] = noted["column_stride"], lanes.size
        base = int(lanes.flat[0])
        last = self._last_base.get(key)
        if last is not None and base != last and not noted["step"]:
            noted["step"] = (base - last) // itemsize
        self._last_base[key] = base

    def write(self, table: np.ndarray) -> None:
        """Write the table."""
        for row, (key, noted) in zip(table, self._accesses.items(), strict=False):
            row[:] = [*key, *(noted[name] for name in trace.ACCESS[3:])]
