"""Calls one submission's entry point case by case, in a worker that is replaced when it dies."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import torch

from grader.isolate import plan
from grader.isolate.arena import POISON, UNWRITTEN, Arena, Call, Layout
from grader.isolate.evidence import CallEvidence
from grader.isolate.operators import READS
from grader.isolate.placing import place
from grader.isolate.sandbox import PATIENCE, Sandbox
from grader.kernel.marks import marked
from grader.kernel.observers.rounds import Rounds, RoundsShape
from grader.kernel.observers.trace import Trace, TraceShape
from grader.source.policy.operators import MOST_READ, opened
from grader.source.submission import Source
from grader.spec.cases import Case
from grader.spec.inputs import Inputs
from grader.spec.problem import Problem
from grader.spec.problem_tables import Limits
from grader.spec.protocol import Ended, Reply, Status, failed

# After a first call that did not come back, a call may take this long, or ten times the slowest
# that did: what loops forever in one case does so in many.
_PATIENCE_S = 2.5
_PATIENCE_FACTOR = 10.0
# After these a worker is replaced: what ran at exit may have done harm, a CUDA context is lost, and
# host memory stays full. That of a GPU does not, and a worker there takes seconds to start.
_SPENT = {"cuda": {Status.EXITED, Status.DEVICE_FAULT}}
_SPENT["cpu"] = {*_SPENT["cuda"], Status.OUT_OF_MEMORY}
# A worker that does not start this often, one after the other, will not for the next case either.
_STARTS = 3
# On a GPU a call may still compile, or autotune, what was not compiled beforehand.
_COMPILE_FACTOR = 3.0
# Share of a call's time that one launch may take on the machine, which then names the loop.
_SHARE = 0.8
_NOTED: dict[str, Any] = {"trace": Trace, "rounds": Rounds}


class Budget:
    """Seconds that the calls of one problem may take; those that do not come back have a limit too.

    When they reach it, a check goes on if no call of it was lost and some call has come back.
    `check` is the one whose calls are made now.
    """

    def __init__(self, limits: Limits, spent_s: float = 0.0, lost_s: float = 0.0) -> None:
        self._limits = limits
        self.spent_s = spent_s
        self.lost_s = lost_s
        self.check = ""
        self._lost: set[str] = set()  # checks of which a call did not come back
        self._slowest_s = 0.0

    def used_up(self) -> str | None:
        """Return why no further call is made, None while there is time left."""
        if self.lost_s >= self._limits.lost_s and (not self._slowest_s or self.check in self._lost):
            return (
                f"calls that did not come back took {self.lost_s:.0f} s"
                f" of {self._limits.lost_s:g} s that they may take in this problem"
            )
        if self.spent_s >= self._limits.total_s:
            return f"the calls of this problem took {self.spent_s:.0f} s, all that they may take"
        return None

    @property
    def left_s(self) -> float:
        return self._limits.total_s - self.spent_s

    def call_s(self, *, compiles: bool) -> float:
        """Return how long the next call may take."""
        limit = self._limits.call_s * (_COMPILE_FACTOR if compiles else 1.0)
        if self.lost_s:
            limit = min(limit, max(_PATIENCE_S, _PATIENCE_FACTOR * self._slowest_s))
        return limit

    def count(self, seconds: float, *, came_back: bool, start_s: float = 0.0) -> None:
        """Charge the seconds of one call, of which `start_s` went into starting a worker."""
        self.spent_s += seconds
        if came_back:
            self._slowest_s = max(self._slowest_s, seconds - start_s)
        else:
            self.lost_s += seconds
            self._lost.add(self.check)


class Session:
    """One problem of one submission on one device.

    A call that ends the worker costs its own case: the next starts another worker, until the
    budget is used up. `unusable` is why no call can ever succeed: the file cannot be imported, or
    nothing in it is implemented. The folder `kernels`, of this submission alone, stores what
    Triton's front end makes for the machine.
    """

    def __init__(
        self,
        problem: Problem,
        source: Source,
        *,
        device: str,
        machine: bool,
        budget: Budget,
        kernels: Path | None = None,
    ) -> None:
        self.problem = problem
        self.source = source
        self.device = device
        self.machine = machine
        self.budget = budget
        self._kernels = kernels
        self.unusable: CallEvidence | None = None
        self._answered = False  # at least one call came back with outputs
        self._unstarted: list[CallEvidence] = []  # of workers in a row that did not start
        # One that calls; on the machine one that plans, and one that carries plans out.
        self._workers: list[Sandbox] = []
        self._carried_out = True  # whether the last plan was
        self._ready = False
        self._starved_s = 0.0  # how long the last call waited for a core

    def start(self) -> None:
        """Start a worker and return at once; the first call waits for it."""
        if not self._workers:
            self._ready = False
            for role in ("plan", "carry out") if self.machine else ("call",):
                self._workers.append(self._worker(role))

    @property
    def has_started(self) -> bool:
        """Whether there is a worker, perhaps one of two."""
        return bool(self._workers)

    def _worker(self, role: str) -> Sandbox:
        return Sandbox(
            self.source.data,
            self.problem.file,
            self.problem.entry,
            device=self.device,
            role=role,
            count_launches=self.problem.uses_triton,
            # While it waits for a GPU, it imports what it can.
            held=self.device == "cuda",
            differentiates=bool(self.problem.gradients),
            # A bridge's code in PyTorch shares a file with kernels.
            answers_for_gpu=self.device == "cpu" and self.problem.bridge is not None,
            operators=opened(self.problem) if self.source.policy else None,
            translated=str(self._kernels) if self._kernels and role == "plan" else None,
        )

    def close(self) -> None:
        while self._workers:
            self._workers.pop().close()

    def call(
        self,
        case: Case,
        inputs: Inputs,
        outputs: tuple[str, ...],
        *,
        traced: bool = False,
        idle: bool = False,
        lenient: bool = False,
        rounding: tuple[int, ...] | None = None,
        follow: RoundsShape | None = None,
    ) -> CallEvidence:
        """Call the entry point on `inputs`, and return what happened to `outputs`.

        With `traced` the machine also writes down what the kernels do, and with `follow` the
        rounds of one tile of queries, of a call that is traced or of a function of PyTorch. With
        `idle` kernels are launched and do nothing; with `lenient` a load without `other` finds 0
        where its mask is false, and an access outside a tensor is left out. With `rounding` the
        call is exact but for the sites with these keys, and its outputs are fp64, see `Exact`.
        """
        if self.unusable is not None:
            return CallEvidence(not_run=self.unusable)
        why = self.budget.used_up()
        if why is not None:
            return CallEvidence(over_budget=why)
        if len(self._unstarted) >= _STARTS:
            return self._unstarted[-1]
        start, self._starved_s = time.monotonic(), 0.0
        evidence = self._import()
        start_s = time.monotonic() - start
        if evidence is None:
            noted: dict[str, TraceShape | RoundsShape] = {}
            if traced and self.machine:
                noted["trace"] = TraceShape.of(case, self.source.num_lines)
            if follow:
                noted["rounds"] = follow
            how = {"idle": idle, "lenient": lenient, "rounding": rounding}
            evidence = self._exchange(case, inputs, outputs, noted, **how)
        reply = evidence.result
        if isinstance(reply, Reply) or reply.started:  # what never started is no call
            seconds = time.monotonic() - start - self._starved_s
            came_back = isinstance(reply, Reply) and reply.status != Status.STOPPED
            if isinstance(reply, Ended) and reply.compiling:  # another case may compile in time
                self.budget.spent_s += seconds
            else:
                self.budget.count(seconds, came_back=came_back, start_s=start_s)
        if isinstance(reply, Reply):
            unfinished = reply.status == Status.NOT_IMPLEMENTED and not self._answered
            self._answered |= reply.status == Status.OK
            if unfinished:
                self.unusable = evidence
            if reply.status in _SPENT[self.device]:
                self.close()
        return evidence

    def _import(self) -> CallEvidence | None:
        """Make sure that the workers have imported the submission; return what prevents it."""
        self.start()
        if self._ready:
            return None
        for worker in self._workers:
            result = worker.ready()
            if failed(result):
                evidence = self._ended(result, "import")
                if isinstance(result, Ended) and not result.started:
                    self._unstarted.append(evidence)
                else:
                    self.unusable = evidence
                self.close()
                return evidence
        self._ready, self._unstarted = True, []
        return None

    def _exchange(
        self,
        case: Case,
        inputs: Inputs,
        outputs: tuple[str, ...],
        shapes: dict[str, TraceShape | RoundsShape],
        **how: Any,
    ) -> CallEvidence:
        """Make a call in shared memory of its own, with a block for each record of `shapes`."""
        differentiates = any(name in self.problem.gradients for name in outputs)
        if not differentiates:
            inputs = dataclasses.replace(inputs, dout=None)
        layout = place(case, inputs, outputs, wide=how.get("rounding") is not None)
        call_s = self.budget.call_s(compiles=self.device != "cpu")
        fields = {
            **{name: dataclasses.asdict(shape) for name, shape in shapes.items()},
            **Call(layout, case.kwargs, self.problem.returns, differentiates)._asdict(),
            "exact": self.problem.asks_ieee(case),
            "seconds": _SHARE * call_s,
            "far": case.layout == "far",
            **how,
        }
        with contextlib.ExitStack() as stack:
            arena = stack.enter_context(Arena(layout.total_bytes))
            blocks = {n: stack.enter_context(Arena(s.total_bytes)) for n, s in shapes.items()}
            arena.memory.fill_(POISON)
            _write_inputs(arena, layout, inputs)
            before = arena.memory[: layout.inputs_end].clone()
            fds = (arena.fd, *(block.fd for block in blocks.values()))
            if self.machine:
                result = self._plan_and_carry_out(call_s, fds, fields)
            else:
                result = self._ask(self._workers[0], "call", call_s, fds, fields)
            after = arena.memory.clone()
            noted = {
                name: _NOTED[name].of(shapes[name], block.memory.numpy())
                for name, block in blocks.items()
            }
        if not isinstance(result, Reply) or result.status != Status.OK:
            return dataclasses.replace(self._ended(result, "call"), rounds=noted.get("rounds"))
        outputs = {view.name: view.of(after) for view in layout.outputs}
        return CallEvidence(
            result=result,
            outputs=outputs,
            unwritten={name: marked(values, UNWRITTEN) for name, values in outputs.items()},
            left_over={name: marked(values) for name, values in outputs.items()},
            **noted,
            **_changed(before, after, layout),
            output=self._output(),
        )

    def _plan_and_carry_out(
        self, call_s: float, fds: tuple[int, ...], fields: dict[str, Any]
    ) -> Reply | Ended:
        """Have the submission plan a call, and carry the plan out, from question to question.

        The judge itself limits the values in answers, since the worker that plans is not trusted to
        count them: with all of them it could compute the result, and hand it in as a constant.
        """
        planner, executor = self._workers
        answers: list[Any] = []
        while sum(len(a) if isinstance(a, list) else 1 for a in answers) <= MOST_READ:
            with Arena(plan.MAX_BYTES) as text:
                more = {"answers": answers, "carried_out": self._carried_out}
                planned = self._ask(planner, "plan", call_s, (text.fd,), fields | more)
                self._carried_out = False
                if isinstance(planned, Ended):
                    return planned
                asks = planned.status is Status.ASKS
                if failed(planned) and not asks and not plan.is_written(text.memory):
                    return planned
                both = (fds[0], text.fd, *fds[1:])
                done = self._ask(executor, "carry_out", call_s, both, fields)
            if failed(done):  # also where the host code that launched such a kernel failed later
                return done
            self._carried_out = True
            if not asks:
                if fields.get("idle"):  # no plan holds launches that do nothing
                    done = dataclasses.replace(done, launches=planned.launches)
                return planned if failed(planned) else done
            answers.append(json.loads(done.text))
        text = f"values of tensors are read into Python; {MOST_READ} of a call are allowed"
        return Reply(planned.nonce, Status.FORBIDDEN_OPERATOR, error_type=READS, text=text)

    def _ask(
        self,
        worker: Sandbox,
        what: str,
        call_s: float,
        fds: tuple[int, ...],
        fields: dict[str, Any],
    ) -> Reply | Ended:
        result = worker.ask(what, call_s, fds, patience=PATIENCE, **fields)
        self._starved_s += worker.starved_s
        return result

    def _output(self) -> str:
        """Return what the workers printed for the last request."""
        return "\n".join(filter(None, (worker.output() for worker in self._workers)))

    def _ended(self, result: Reply | Ended, what: str) -> CallEvidence:
        output = self._output()
        if isinstance(result, Ended):
            self.close()
        return CallEvidence(result=result, what=what, output=output)


def _write_inputs(arena: Arena, layout: Layout, inputs: Inputs) -> None:
    for view in layout.inputs:
        source = inputs.all[view.name]
        if view.stride and 0 in view.stride:  # expanded: along stride 0 all are one in memory
            source = source[tuple(slice(1 if step == 0 else None) for step in view.stride)]
            view = view._replace(size=tuple(source.shape))
        view.of(arena.memory).copy_(source)


def _changed(before: torch.Tensor, after: torch.Tensor, layout: Layout) -> dict[str, str]:
    """Say which input was `overwritten`, and what was `changed` outside of all of them."""
    changed = before != after[: layout.inputs_end]
    found: dict[str, str] = {}
    for view in layout.inputs:
        its_own = changed[view.offset_bytes : view.offset_bytes + view.extent_bytes]
        if its_own.any():
            found.setdefault("overwritten", view.name)
            its_own.zero_()
    outside = torch.nonzero(changed).flatten()
    if outside.numel():
        first = int(outside[0])
        near = min(layout.inputs, key=lambda v: abs(first - v.offset_bytes - v.extent_bytes))
        found["changed"] = (
            f"memory outside a tensor was written: {outside.numel()} bytes near {near.name}"
        )
    return found
