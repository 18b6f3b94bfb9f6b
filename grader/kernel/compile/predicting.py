"""Predicts the times of launches for the recorder of kernels, which runs none."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grader.kernel.compile.layouts import Accessed, accessed
from grader.kernel.compile.listing import Listing, listing
from grader.kernel.compile.model import (
    GPUS,
    CannotTell,
    Launched,
    cycles_of,
    expect_coalesced,
    expect_known,
    predict,
)
from grader.kernel.compile.requests import Requests, requests
from grader.kernel.compile.work import Work, work
from grader.kernel.machine import capture
from grader.kernel.machine.visits import Visited, addressed, visited

MAX_LAUNCHES = 32  # that differ
_MOST_ACCESSES = 6
_MOST_LINES = 3


@dataclasses.dataclass
class _Known:
    """A kernel's machine code, its layouts, and the compiler's figures."""

    code: Listing | None
    layouts: list[Accessed]
    figures: dict[str, Any]


class Predictor:
    """Predicts launches of the kernels of the submission at `path` for a chip's GPUs."""

    def __init__(self, path: str, capability: int) -> None:
        self._path = path
        self._gpus = [gpu for gpu in GPUS if gpu.chip.capability == capability]
        self._kernels: dict[capture.Kernel, _Known] = {}
        self._records: dict[tuple, dict[str, Any]] = {}
        self._more = 0  # launches beyond `MAX_LAUNCHES`

    def add(
        self, kernel: capture.Kernel, made: dict[str, Any], figures: dict[str, Any], folder: Path
    ) -> None:
        """Add a compiled kernel, with its TTGIR and cubin.

        `figures` are those of a KernelReport; `folder` caches the disassembly.
        """
        code = listing(made["cubin"], kernel.name, folder)
        self._kernels[kernel] = _Known(code, accessed(made["ttgir"]), figures)

    def launched(self, launch: capture.Launch, line: int) -> None:
        """Predict a launch of the kernel in `line`; only count one that equals an earlier one."""
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
        """Yield a record of each launch that differs from the others, and forget them."""
        yield from self._records.values()
        if self._more:
            why = f"more than {MAX_LAUNCHES} launches differ"
            yield {"kernel": "others", "line": 0, "launches": self._more, "programs": 0,
                   "unknown": why}  # fmt: skip
        self._records.clear()
        self._more = 0

    def known(self, launch: capture.Launch) -> tuple[Work, Launched]:
        """Return the model's inputs for a launch.

        Raises:
            NotMeasured: the model does not cover the launch, or its rounds are unknown.
        """
        return self._known(launch, *self._seen(launch))

    def _seen(self, launch: capture.Launch) -> tuple[Visited, dict[Requests, float]]:
        """Return the visits of a launch, and how many requests of each kind all programs make."""
        kernel, programs = self._kernels.get(launch.kernel), math.prod(launch.grid)
        if kernel is None or kernel.code is None:
            raise CannotTell("its machine code could not be read")
        asked = launch.kernel.text, launch.grid, launch.arguments
        visits = visited(*asked)
        seen = addressed(*asked, sorted({0, programs // 2, programs - 1}))
        often = visits.counts.sum(1).tolist()
        found = requests(kernel.code, kernel.layouts, seen)
        return visits, {one: one.requests * often[one.seen.region] for one in found}

    def _known(
        self, launch: capture.Launch, visits: Visited, found: dict[Requests, float]
    ) -> tuple[Work, Launched]:
        kernel = self._kernels[launch.kernel]
        assert kernel.code is not None
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
        expect_coalesced(found, self._path)
        expect_known(done, launched)
        return done, launched

    def _predicted(self, launch: capture.Launch) -> dict[str, Any]:
        record: dict[str, Any] = {}
        try:
            visits, found = self._seen(launch)
            record["accesses"] = self._accesses(found)
            done, launched = self._known(launch, visits, found)
        except Exception as error:  # of whatever kind: nothing depends on a prediction
            why = " ".join(str(error).split())[:300] or type(error).__name__
            return record | {"unknown": why}
        times = [
            {"gpu": gpu.name, **dataclasses.asdict(predict(done, launched, gpu))}
            for gpu in self._gpus
        ]
        cycles = {line: cycles_of(mix) for line, mix in done.by_line.items()}
        total = sum(cycles.values()) or 1.0
        dearest = sorted(cycles, key=lambda place: -cycles[place])[:_MOST_LINES]
        costs = [
            {"file": self._shown(file), "line": line, "share": cycles[file, line] / total}
            for file, line in dearest
        ]
        return record | {"times": times, "costs": costs}

    def _accesses(self, found: dict[Requests, float]) -> list[dict[str, Any]]:
        """Return records of the accesses with the most needless sectors, then the most sectors."""
        ordered = sorted(
            found,
            key=lambda one: (one.sectors - one.least) * found[one] * 1e6 + one.sectors * found[one],
            reverse=True,
        )
        shown: dict[tuple[Any, ...], dict[str, Any]] = {}
        for one in ordered:
            line = one.seen.op.place.line_in(self._path)
            file = "" if line else self._shown(one.seen.op.place.file)
            line = line or one.seen.op.place.line
            record = {"file": file, "line": line, "kind": one.seen.kind, "sectors": one.sectors}
            record |= {"least": one.least, "lane_bytes": one.bytes, "apart": one.apart}
            record |= {"lanes": one.lanes, "taken": one.taken, "needed": one.needed}
            shown.setdefault((file, line, one.seen.kind, one.bytes, one.apart), record)
        return list(shown.values())[:_MOST_ACCESSES]

    def _shown(self, file: str) -> str:
        return "" if file == self._path else "/".join(file.split("/")[-2:])
