"""Predicts the launches of calls that launch nothing, for the recorder of kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from grader.kernel.compile.listing import Listing, listing
from grader.kernel.compile.model import (
    GPUS,
    CannotTell,
    Launched,
    cycles_of,
    expect_known,
    predict,
)
from grader.kernel.compile.work import Work, work
from grader.kernel.machine import capture
from grader.kernel.machine.visits import visited

MAX_LAUNCHES = 32  # that differ
_MOST_LINES = 3


@dataclasses.dataclass
class _Known:
    """A kernel's machine code, and what the compiler says of it."""

    code: Listing | None
    figures: dict[str, Any]


class Predictor:
    """Predicts launches of the kernels of the submission at `path` for a chip's GPUs."""

    def __init__(self, path: str, capability: int) -> None:
        self._path = path
        self._gpus = [gpu for gpu in GPUS if gpu.chip.capability == capability]
        self._kernels: dict[capture.Kernel, _Known] = {}
        self._records: dict[tuple, dict[str, Any]] = {}
        self._more = 0  # launches that are not looked at

    def add(self, kernel: capture.Kernel, cubin: bytes, figures: dict[str, Any]) -> None:
        """Note a kernel that was compiled; `figures` are those of a KernelReport."""
        self._kernels[kernel] = _Known(listing(cubin, kernel.name), figures)

    def launched(self, launch: capture.Launch, line: int) -> None:
        """Predict a launch of the kernel in `line`; one like an earlier one is counted."""
        arguments = tuple(
            (name, tuple(value.shape) if hasattr(value, "shape") else value)
            for name, value in launch.arguments
        )
        key = (launch.kernel, launch.grid, arguments)
        if key in self._records:
            self._records[key]["launches"] += 1
        elif len(self._records) < MAX_LAUNCHES:
            x, y, z = launch.grid
            record = {"kernel": launch.kernel.fn.__name__, "line": line, "launches": 1}
            self._records[key] = record | {"programs": x * y * z} | self._predicted(launch)
        else:
            self._more += 1

    def records(self) -> Iterator[dict[str, Any]]:
        """Give a record of each launch that differs from the others, and forget them."""
        yield from self._records.values()
        if self._more:
            why = f"more than {MAX_LAUNCHES} launches differ"
            yield {"kernel": "others", "line": 0, "launches": self._more, "programs": 0,
                   "unknown": why}  # fmt: skip
        self._records.clear()
        self._more = 0

    def known(self, launch: capture.Launch) -> tuple[Work, Launched]:
        """Return what the model is given of a launch.

        Raises:
            NotMeasured: it does not cover this one, or its rounds are not known.
        """
        kernel = self._kernels.get(launch.kernel)
        if kernel is None or kernel.code is None:
            raise CannotTell("its machine code could not be read")
        visits = visited(launch.kernel.text, launch.grid, launch.arguments)
        figures = kernel.figures
        done = work(kernel.code, visits, figures["num_warps"])
        tensors = [value for _, value in launch.arguments if hasattr(value, "element_size")]
        launched = Launched(
            figures["num_warps"],
            figures.get("registers", 0),
            figures["shared_bytes"],
            figures.get("stack_bytes", 0),
            sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        )
        expect_known(done, launched)
        return done, launched

    def _predicted(self, launch: capture.Launch) -> dict[str, Any]:
        try:
            done, launched = self.known(launch)
        except Exception as error:  # of whatever kind: nothing depends on a prediction
            return {"unknown": " ".join(str(error).split())[:300] or type(error).__name__}
        times = [
            {"gpu": gpu.name, **dataclasses.asdict(predict(done, launched, gpu))}
            for gpu in self._gpus
        ]
        cycles = {line: cycles_of(mix) for line, mix in done.by_line.items()}
        total = sum(cycles.values()) or 1.0
        dearest = sorted(cycles, key=lambda place: -cycles[place])[:_MOST_LINES]
        costs = [
            {"file": "" if file == self._path else "/".join(file.split("/")[-2:]), "line": line,
             "share": cycles[file, line] / total}
            for file, line in dearest
        ]  # fmt: skip
        return {"times": times, "costs": costs}
