"""Runs the cases of one problem against one submission, and turns what happened into findings."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import torch

import reference
from grader.arena import Arena, LayoutBuilder
from grader.checks.correctness import Expected, find_difference
from grader.checks.inputs import (
    Inputs,
    case_seed,
    invalidate,
    make_inputs,
    output_shapes,
    place_inputs,
)
from grader.diagnose import candidates
from grader.findings import CaseFailed, Finding, how_ended, of_reply
from grader.manifest import Case, Check, Problem
from grader.model import Message, Verdict
from grader.policy import Source
from grader.protocol import Reply, Status
from grader.sandbox import Ended, Sandbox

_MAX_SLOW = 2  # a timeout, or memory filled to the limit, takes many seconds each time
_MAX_DEATHS = 4
_COMPILE_FACTOR = 3.0  # on a GPU a first call compiles (or autotunes) before it runs


class Session:
    """One problem of one submission: its worker, restarted when it dies, and its verdicts.

    `stopped` is the reason why no further case is run: the file cannot be used at all, or the
    worker timed out, ran out of memory or died too often.
    """

    def __init__(
        self, problem: Problem, source: Source, *, device: str, interpret: bool, seed: str
    ) -> None:
        self.problem = problem
        self.source = source
        self.device = device
        self.interpret = interpret
        self.seed = seed
        self.stopped: str | None = None
        self._slow = 0
        self._deaths = 0
        self._answered = False  # at least one call came back with outputs
        self._raised: set[tuple[str, int]] = set()
        self._fault: Finding | None = None
        self._sandbox: Sandbox | None = None
        self._ready = False
        if source.verdict is None:
            self._start()

    def _start(self) -> None:
        self._sandbox = Sandbox(
            self.source.data,
            self.problem.file,
            self.problem.entry,
            device=self.device,
            interpret=self.interpret,
        )
        self._ready = False

    def close(self) -> None:
        """End the worker."""
        if self._sandbox:
            self._sandbox.close()
            self._sandbox = None

    # -- one case -----------------------------------------------------------------------------

    def compare(self, check: Check, case: Case, index: int, oracle: Any) -> None:
        """Call the submission on `case` and compare every output with `oracle`.

        Raises:
            CaseFailed: the call failed or an output is outside its tolerance.
        """
        seed = case_seed(self.seed, self.problem.id, check.id, index)
        inputs = make_inputs(self.problem, case, seed)
        got = self._outputs(check, case, inputs)
        expected = expect(self.problem, case, inputs, oracle)
        difference = find_difference(got, expected, case, self.problem.tolerance_factor)
        if difference is None:
            return
        causes = candidates(self.problem, case, inputs, got, expected)
        headline = causes[0].title if len(causes) == 1 else f"{difference.name} is wrong"
        if difference.unwritten and not causes:
            headline = f"{difference.name} is NaN: never written, or computed from NaN or infinity"
        message = self._message(
            headline, check, case, first=difference.first, extent=difference.extent
        )
        raise CaseFailed(Finding(Verdict.FAIL, message, tuple(causes), difference.margin))

    def expect_value_error(self, check: Check, case: Case, index: int) -> None:
        """Call the submission on an unsupported argument; it must raise ValueError naming it."""
        seed = case_seed(self.seed, self.problem.id, check.id, index)
        inputs = invalidate(make_inputs(self.problem, case, seed), case.mutate)
        _, reply = self._exchange(check, case, inputs)
        name = case.invalid
        wanted = f"expected ValueError naming {name!r} for {case.mutate or _option(case)}"
        if reply.status == Status.OK or reply.status == Status.BAD_RETURN:
            raise self._failure(Verdict.FAIL, f"no error was raised: {wanted}", check, case)
        if reply.status not in (Status.EXCEPTION, Status.COMPILE_FAILED):
            raise self._from_reply(reply, check, case)
        if reply.error_type != "ValueError":
            if (reply.error_type, reply.line) in self._raised:  # by supported arguments too
                raise self._from_reply(reply, check, case)
            headline = f"got {reply.error_type or reply.status.name}: {reply.text}; {wanted}"
            raise self._failure(Verdict.FAIL, headline, check, case, reply.line)
        if not re.search(rf"\b{re.escape(name or '')}\b", reply.text):
            headline = f"ValueError does not name the argument: got {reply.text!r}; {wanted}"
            raise self._failure(Verdict.FAIL, headline, check, case, reply.line)

    def _outputs(self, check: Check, case: Case, inputs: Inputs) -> dict[str, torch.Tensor]:
        got, reply = self._exchange(check, case, inputs)
        if reply.status != Status.OK:
            self._raised.add((reply.error_type, reply.line))
            raise self._from_reply(reply, check, case)
        self._answered = True
        return got

    def _exchange(
        self, check: Check, case: Case, inputs: Inputs
    ) -> tuple[dict[str, torch.Tensor], Reply]:
        """Send one call; return private copies of the outputs, and the worker's reply."""
        sandbox = self._alive(check)
        builder = LayoutBuilder()
        place_inputs(builder, case, inputs)
        layout = builder.finish(output_shapes(self.problem, inputs))
        arena = Arena(layout.total_bytes)
        try:
            arena.poison()
            for view in layout.inputs:
                source = inputs.all[view.name]
                if view.stride and 0 in view.stride:
                    source = source[:, :, :1]
                    view = dataclasses.replace(view, size=tuple(source.shape))
                view.of(arena.memory).copy_(source)
            before = arena.memory[: layout.inputs_end].clone()
            timeout_s = self.problem.call_timeout_s
            if not self.interpret:
                timeout_s *= _COMPILE_FACTOR
            result = sandbox.ask(
                "call",
                timeout_s,
                (arena.fd,),
                layout=layout.to_json(),
                kwargs=case.kwargs,
                returns=list(self.problem.returns),
                gradients=bool(self.problem.gradients) and case.invalid is None,
            )
            if isinstance(result, Ended):
                raise self._died(result, check, case)
            after = arena.snapshot()
        finally:
            arena.close()
        if result.status == Status.OK:
            self._check_unchanged(before, after, layout, check, case)
        return {view.name: view.of(after) for view in layout.outputs}, result

    def _check_unchanged(self, before: Any, after: Any, layout: Any, check: Any, case: Any) -> None:
        changed = torch.nonzero(before != after[: layout.inputs_end]).flatten()
        if changed.numel() == 0:
            return
        first = int(changed[0])
        for view in layout.inputs:
            if view.offset_bytes <= first < view.offset_bytes + view.extent_bytes:
                headline = f"the input {view.name} was overwritten: inputs are never written"
                raise self._failure(Verdict.FAIL, headline, check, case)
        near = min(layout.inputs, key=lambda v: abs(first - v.offset_bytes - v.extent_bytes))
        headline = f"memory outside a tensor was written: {changed.numel()} bytes near {near.name}"
        raise self._failure(Verdict.FAIL, headline, check, case)

    # -- the worker's life --------------------------------------------------------------------

    def _alive(self, check: Check) -> Sandbox:
        """Return a worker with the submission imported, or raise what keeps it from being so."""
        if self._fault:
            raise CaseFailed(self._fault)
        if self.stopped:
            raise CaseFailed(Finding(Verdict.SKIPPED, Message(self.stopped)))
        if self.source.verdict is not None:
            self.stopped = f"not run: {self.source.message.headline}"
            raise CaseFailed(Finding(self.source.verdict, self.source.message))
        if self._sandbox is None:
            self._start()
        assert self._sandbox is not None
        if not self._ready:
            result = self._sandbox.ready()
            if isinstance(result, Ended):
                finding = self._died(result, check, None, what="import").finding
                self.stopped = f"not run: {finding.message.headline}"
                raise CaseFailed(finding)
            if result.status != Status.OK:
                failure = self._from_reply(result, check, None)
                self.stopped = f"not run: {failure.finding.message.headline}"
                raise failure
            self._ready = True
        return self._sandbox

    def _count_death(self, what: str) -> None:
        self._deaths += 1
        if self._deaths >= _MAX_DEATHS:
            self.stopped = f"not run: {what} ended the worker {self._deaths} times before"

    def _count_slow(self, what: str) -> None:
        self._slow += 1
        if self._slow >= _MAX_SLOW:
            self.stopped = f"not run: {self._slow} earlier calls {what}"

    def _died(
        self, ended: Ended, check: Check, case: Case | None, what: str = "call"
    ) -> CaseFailed:
        sandbox, self._sandbox = self._sandbox, None
        output = sandbox.output() if sandbox else ""
        if sandbox:
            sandbox.close()
        failure = functools.partial(self._failure, check=check, case=case, output=output)
        if not ended.started:
            headline = "the judge's worker did not start: " + how_ended(ended, "start")
            self._fault = failure(Verdict.INTERNAL, headline).finding
            return CaseFailed(self._fault)
        headline = how_ended(ended, what)
        if ended.timeout:
            self._count_slow("did not return in time")
            return failure(Verdict.TIMEOUT, headline, line=ended.line)
        self._count_death("a crash")
        if ended.signal_name == "SIGKILL":
            headline += ": was the machine out of memory?"
            return failure(Verdict.OUT_OF_MEMORY, headline)
        return failure(Verdict.CRASH, headline, line=ended.line)

    def _from_reply(self, reply: Reply, check: Check, case: Case | None) -> CaseFailed:
        verdict, headline, extent = of_reply(reply, self.problem.signature)
        output = self._sandbox.output() if self._sandbox else ""
        if reply.status == Status.NOT_IMPLEMENTED and not self._answered:
            self.stopped = f"not run: {headline}"
        elif reply.status == Status.OUT_OF_MEMORY:
            self._count_slow("ran out of memory")
        elif reply.status in (Status.EXITED, Status.DEVICE_FAULT):
            self.close()
            self._count_death("exit" if reply.status == Status.EXITED else "a CUDA error")
        return self._failure(verdict, headline, check, case, reply.line, output, extent)

    def _failure(
        self,
        verdict: Verdict,
        headline: str,
        check: Check,
        case: Case | None,
        line: int = 0,
        output: str = "",
        extent: str | None = None,
    ) -> CaseFailed:
        message = self._message(headline, check, case, line, output, extent=extent)
        return CaseFailed(Finding(verdict, message))

    def _message(
        self,
        headline: str,
        check: Check,
        case: Case | None,
        line: int = 0,
        output: str = "",
        first: str | None = None,
        extent: str | None = None,
    ) -> Message:
        step = f" step {check.step}" if check.step else ""
        where = f"{self.problem.id}{step}, {check.test_name}"
        where += f", {self.problem.file}" + (f" line {line}" if line else "")
        return Message(
            headline=" ".join(headline.split())[:600],
            where=where,
            input=None if case is None else str(case),
            first=first,
            extent=extent,
            output=output or None,
            repeat=f"make grade P={self.problem.id} SEED={self.seed}",
        )


def expect(problem: Problem, case: Case, inputs: Inputs, oracle: Any) -> Expected:
    """Return truth, honest result and magnitudes of `case`, computed from the judge's inputs."""
    options = case.kwargs
    exact = {name: t.double() for name, t in inputs.tensors.items()}

    def run(tensors: dict[str, torch.Tensor], dout: torch.Tensor | None) -> dict:
        if problem.gradients:
            return reference.gradients(oracle, tensors, dout, **options)
        returned = oracle(**tensors, **options)
        values = returned if isinstance(returned, tuple) else (returned,)
        return dict(zip(problem.returns, values, strict=True))

    dout = None if inputs.dout is None else inputs.dout.double()
    return Expected(
        truth=run(exact, dout),
        honest=run(inputs.tensors, inputs.dout),
        magnitude=reference.magnitudes(problem.id, inputs.tensors, inputs.dout, **options),
    )


def _option(case: Case) -> str:
    return ", ".join(f"{k}={v}" for k, v in case.options) or str(case)
