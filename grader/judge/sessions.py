"""The sessions of one problem: on the machine and on the GPU, of each entry point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from grader.isolate.compiled import call_of
from grader.isolate.compilers import Compilers
from grader.isolate.session import Budget, Session
from grader.judge.case import CheckCase
from grader.source.submission import Source
from grader.spec.cases import Case
from grader.spec.problem import Problem
from grader.spec.problem_tables import Check


class Sessions:
    """Starts a session for the cases that need it; all share one budget.

    Before one starts on the GPU, of this `capability`, `compile_workers` compile kernels, and
    `have_gpu` reserves it. The folder `kernels` keeps what the machine runs.
    """

    def __init__(
        self,
        problem: Problem,
        source: Source,
        device: str,
        budget: Budget,
        *,
        have_gpu: Callable[[], bool] = lambda: True,
        compile_workers: int = 1,
        capability: int | None = None,
        kernels: Path | None = None,
    ) -> None:
        self.budget = budget
        self._problem, self._source, self._device = problem, source, device
        self._have_gpu = have_gpu
        self._compile_workers, self._capability = compile_workers, capability
        self._kernels = kernels
        self._open: dict[tuple[str, bool], Session] = {}  # by entry, and whether on a GPU
        self._compilers: Compilers | None = None

    def of(self, at: CheckCase) -> Session:
        """Return the session that runs a case: on the GPU where it should be and can be."""
        on_gpu = self._device == "cuda" and (at.case.gpu or not at.problem.uses_triton)
        if on_gpu and self._compilers is not None:
            compilers, self._compilers = self._compilers, None
            compilers.wait()
        if on_gpu:
            self._have_gpu()
        return self.open(at.problem, on_gpu=on_gpu)

    def open(self, problem: Problem, *, on_gpu: bool = False) -> Session:
        """Return the session of an entry point on the machine, or on the GPU."""
        key = (problem.entry, on_gpu)
        if key not in self._open:
            device, machine = "cuda" if on_gpu else "cpu", problem.uses_triton and not on_gpu
            where = {"device": device, "machine": machine, "budget": self.budget}
            self._open[key] = Session(problem, self._source, kernels=self._kernels, **where)
        return self._open[key]

    @property
    def has_started(self) -> bool:
        """Whether a worker has started, which may have imported the submission by now."""
        return any(session.has_started for session in self._open.values())

    def compile(self, cases: list[tuple[Check, Case]]) -> None:
        """Begin to compile what cases on the GPU need, and start the worker that will call it."""
        problem = self._problem
        if not problem.uses_triton or self._source.verdict is not None or self.budget.used_up():
            return
        valid = [(case, problem.judged(check)) for check, case in cases if case.invalid is None]
        calls = [call_of(problem, case, outputs) for case, outputs in valid]
        where = (problem, self._source, calls)
        self._compilers = Compilers(*where, self._compile_workers, self._capability)
        self.open(problem, on_gpu=True).start()

    def leave_gpu(self) -> None:
        for (_, on_gpu), session in self._open.items():
            if on_gpu:
                session.close()

    def close(self) -> None:
        if self._compilers is not None:
            self._compilers.wait(0.0)
        for session in self._open.values():
            session.close()
