"""What the cases of one problem share while a submission is judged."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from grader.causes.diagnose import Casebook, Cause, StepAt
from grader.causes.rules.sighting import Sighting
from grader.isolate.compiled import Call, Compiled, compile_calls, unavailable
from grader.isolate.session import Session
from grader.judge.launched import MOST, Launched, Ran, lines_compiled
from grader.source.submission import Source
from grader.spec.cases import Case
from grader.spec.problem import Problem

_FEWEST = 16  # numbers, of which other values make others


@dataclasses.dataclass
class Trial:
    """What the cases of one problem share: the run's seed, and what was seen in earlier cases."""

    problem: Problem
    seed: str
    casebook: Casebook
    raised: set[tuple[str, int]] = dataclasses.field(default_factory=set)
    # Whether a call was traced, by check that came out wrong.
    looked_at: dict[str, bool] = dataclasses.field(default_factory=dict)
    # Calls that are being compiled.
    compiling: dict[str, Future[list[Compiled]]] = dataclasses.field(default_factory=dict)
    # By headline of a race, what the programs were seen to do.
    races: dict[str, Sighting | None] = dataclasses.field(default_factory=dict)
    followed: bool = False  # one program of a kernel, tile by tile
    # Whether to compile beside the tests, from the first call on that came back with a result.
    compiles_ahead: bool = False
    shrinks: int = 0  # wrong cases of which the smallest that is wrong is still looked for
    kernels: Path | None = None  # where what is compiled is kept for the next run
    called: bool = False  # a case that asks for a result was run
    bridge_casebook: Casebook | None = None  # what came of the bridge, if there is one
    overwritten: str | None = None  # what a call wrote to and may not
    launched: Launched = dataclasses.field(default_factory=Launched)
    _right: set[bytes] = dataclasses.field(default_factory=set)  # digests of outputs

    def __post_init__(self) -> None:
        if self.problem.bridge is not None:
            self.bridge_casebook = type(self.casebook)(self.problem, bridge=True)

    def causes(self, step_at: StepAt) -> list[Cause]:
        """Return the causes of what came out wrong, see `Casebook.settle`."""
        of_bridge = self.bridge_casebook.settle(step_at) if self.bridge_casebook else []
        return of_bridge + self.casebook.settle(step_at)

    def answered(self, session: Session, *, bridge: bool = False) -> None:
        """Begin, once a call came back, to compile for GPUs that are not there; no bridge."""
        if bridge or not self.compiles_ahead or self.compiling:
            return
        if not session.machine or unavailable():
            return
        cases = [
            case
            for check in self.problem.checks
            if check.compiles
            for case in self.problem.cases(check, self.seed).values()
        ]
        for case in cases:
            self.compile_ahead(session.source, self.call_of(case))

    def was_right_before(self, output: torch.Tensor) -> bool:
        """Whether an earlier call returned this very output, byte for byte, and it was right."""
        return _digest(output) in self._right

    def note_right(self, output: torch.Tensor) -> None:
        """Remember an output that is right for the values of its call and for no others."""
        if output.numel() >= _FEWEST and bool((output != output.flatten()[0]).any()):
            self._right.add(_digest(output))

    def call_of(self, case: Case) -> Call:
        """Return the call that is compiled of a case."""
        return Call.of(self.problem, case, self.problem.outputs)

    def compile_more(self, session: Session) -> None:
        """Begin to compile a kernel that no call launched that was compiled, as soon as one ran.

        One call at a time, and none behind one that was refused: that is told already.
        """
        begun = list(self.compiling.values())
        if not self.compiles_ahead or not 0 < len(begun) <= MOST or not session.source.policy:
            return
        if not all(future.done() and future.exception() is None for future in begun):
            return
        compiled = [chip for future in begun for chip in future.result()]
        left = self.launched.waiting(lines_compiled(compiled))
        if left and not any(chip.refused for chip in compiled):
            _, runs = left[0]
            self.compile_ahead(session.source, self.call_of(self.first(runs).case))

    def first(self, runs: list[Ran]) -> Ran:
        """Return the first of the cases that ran a kernel; one that is compiled goes before."""
        begun = (ran for ran in runs if repr(self.call_of(ran.case)) in self.compiling)
        return next(begun, runs[0])

    def compile_ahead(self, source: Source, call: Call) -> Future[list[Compiled]]:
        """Begin to compile what a call launches, or return what has begun."""
        if repr(call) not in self.compiling:
            pool = ThreadPoolExecutor(1)
            run = functools.partial(compile_calls, source, self.problem, kernels=self.kernels)
            self.compiling[repr(call)] = pool.submit(run, [call])
            pool.shutdown(wait=False)
        return self.compiling[repr(call)]


def _digest(output: torch.Tensor) -> bytes:
    values = output.cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.blake2b(values.numpy(), digest_size=16).digest()
