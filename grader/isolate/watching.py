"""Watches one call on the tile machine, and writes down what it sees. In a worker."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import torch

from grader.base.dtypes import DTYPE_NAMES
from grader.isolate import arena
from grader.kernel.machine.capture import plain
from grader.kernel.machine.engine import Engine, unseen
from grader.kernel.machine.exact import Exact
from grader.kernel.observers.rounds import RoundsShape
from grader.kernel.observers.stepping import Steps
from grader.kernel.observers.trace import TraceShape
from grader.kernel.observers.tracing import Tracing
from grader.kernel.observers.watch import Watch
from grader.spec.protocol import Reply, Status

_MOST_SITES = 12  # that are reported: the judge may make a call for each
_MOST_DOTS = 12  # lines that are named


class Watching(contextlib.ExitStack):
    """Watches the launches of one call while it is open.

    If the request asks for them, a trace and the rounds of one program are written to the blocks of
    memory that came with it.
    """

    def __init__(
        self, engine: Engine, request: dict, fds: list[int], source: bytes, inputs: dict[str, Any]
    ) -> None:
        """Watch a call on `inputs` of the submission with the text `source`."""
        super().__init__()
        self._exact = request["exact"]
        self._how = {name: request[name] for name in ("lenient", "far", "seconds")}
        if request["rounding"] is not None:
            self._how["exact"] = Exact(request["rounding"])
        self._engine = engine
        self._watch, self._trace, self._steps = Watch(engine.path), None, None
        self._races: list[tuple[int, str, list[str]]] = []
        if "rounds" in request:
            rounds = RoundsShape(**request["rounds"])
            self._steps = Steps(rounds, _block(rounds, fds[1]), engine.path)
        if "trace" in request:
            shape = TraceShape(**request["trace"])
            places = shape, _block(shape, fds[0]), engine.path, source, inputs
            self._trace = Tracing(*places, self._steps)

    def __enter__(self) -> Watching:
        super().__enter__()
        self._engine.reset(tf32=self._exact, **self._how)
        self.enter_context(self._engine.watched(self._watch, self._trace))
        if self._engine.exact:
            self.enter_context(self._engine.exact)
        return self

    def __exit__(self, *raised: Any) -> Any:
        if raised[0] is not None and self._steps:
            with unseen():
                self._steps.ends()
        return super().__exit__(*raised)

    @property
    def updated(self) -> set[int]:
        """The addresses of tensors to which a launch stored after it had read from them."""
        return self._engine.updated

    def unrounded(self, result: torch.Tensor) -> torch.Tensor:
        """Return a result as it was before it was rounded, in a call of exact mode."""
        with unseen():
            return self._engine.exact.of(result) if self._engine.exact else result

    def finish(self, results: dict[str, Any]) -> None:
        """Write the tables of a call that came back with `results`."""
        found = {n: plain(t) for n, t in results.items() if isinstance(t, torch.Tensor)}
        with unseen():
            self._races = self._watch.races_of(found)
            if self._trace:
                self._trace.finish(found)
            if self._engine.exact:
                self._engine.exact.ends(found.values())

    def reply(self, nonce: int) -> Reply:
        """Return what was seen of a call that came back."""
        if self._exact and self._watch.rounds:
            (line, text), *others = self._watch.rounds.items()
            if others:
                lines = ", ".join(str(number) for number, _ in sorted(others)[:_MOST_DOTS])
                text += f"; a GPU rounds that of line{'s'[: len(others) > 1]} {lines}, too"
            return Reply(nonce, Status.ROUNDING_DOT, line, text=text)
        if self._trace and self._trace.fault:
            return Reply(nonce, Status.TRACE_FAILED, text=self._trace.fault)
        line, text = (self._races[0][0], json.dumps(self._races)) if self._races else (0, "")
        if self._engine.exact:
            # First those that others are computed from: a right result hides no others.
            sites = sorted(self._engine.exact.found.values(), key=lambda site: site.key < 0)
            sites = sites[:_MOST_SITES]
            said = [(site.key, site.name, DTYPE_NAMES[site.dtype], site.use) for site in sites]
            line, text = 0, json.dumps(said)
        return Reply(nonce, Status.OK, line, error_type="race" if text else "", text=text)


def _block(shape: Any, fd: int) -> Any:
    return arena.attached(fd, shape.total_bytes).numpy()
