"""What pytest's cases share: the run, as the command line or the judge wants it, and its problems.

torch and the judge's rooms are imported when a case needs them: pytest also runs without cases.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from grader.isolate.pipe import EventPipe, read_request
from grader.source.submission import Source, read_source
from grader.spec.cases import Case
from grader.spec.findings import (
    Alive,
    CaseBegins,
    Evidence,
    Finding,
    TestRequest,
    WorkCounted,
    write_event,
)
from grader.spec.grade_record import Verdict
from grader.spec.problem import Problem
from grader.spec.problem_tables import WORK, Check

if TYPE_CHECKING:
    pass


class PytestRun:
    """What was asked for, from the command line or by the judge, and where events go."""

    def __init__(self, config: pytest.Config) -> None:
        self.request: TestRequest | None = None
        self.pipe: EventPipe | None = None
        self.seed = config.getoption("--seed") or os.urandom(8).hex()
        self._wanted = config.getoption("--device")
        self.submission = Path(config.getoption("--submission"))
        self.trials: dict[str, ProblemTrial] = {}
        self._gpu = contextlib.ExitStack()
        self._has_gpu = False
        request_fd = config.getoption("--request-fd")
        if request_fd is not None:
            self.request = TestRequest.model_validate_json(read_request(request_fd))
            self.seed, self._wanted = self.request.seed, self.request.device
            alive = write_event(Alive(), self.request.token)
            self.pipe = EventPipe(config.getoption("--events-fd"), alive)

    @property
    def device(self) -> str:
        """Where kernels run: cuda or cpu."""
        if self._wanted == "auto":
            import torch

            self._wanted = "cuda" if torch.cuda.is_available() else "cpu"
        return self._wanted

    def have_gpu(self, wait_s: float) -> bool:
        """Keep measurements of other gradings off the GPU from now on; return whether they are.

        Before that, no worker of this process starts there.
        """
        from grader.timing import device_lock

        uuid = self.request.device_uuid if self.request else None
        if not self._has_gpu and uuid is not None:
            lock = device_lock.held(uuid, alone=False, wait_s=wait_s)
            self._has_gpu = self._gpu.enter_context(lock)
        return self._has_gpu or uuid is None

    def close(self) -> None:
        """End all workers and leave the GPU to others."""
        for trial in self.trials.values():
            with contextlib.suppress(OSError):
                trial.close()
        self._gpu.close()
        self._has_gpu = False

    def send(self, event: Any) -> None:
        """Tell the judge, if it listens."""
        if self.pipe and self.request:
            self.pipe.send(write_event(event, self.request.token))

    def source(self, problem: Problem) -> Source:
        """Return the submission's file, as the judge read it."""
        if self.request is not None:
            return Source(problem.id, self.request.source.data, policy=self.request.policy)
        return read_source(problem, self.submission)

    def trial(self, problem: Problem) -> ProblemTrial:
        """Return what the cases of a problem share."""
        if problem.id not in self.trials:
            self.trials[problem.id] = ProblemTrial(self, problem)
        return self.trials[problem.id]


class ProblemTrial:
    """One problem under test: its sessions on the device and on the machine, its casebook."""

    def __init__(self, run: PytestRun, problem: Problem) -> None:
        import torch

        from grader.causes.diagnose import Casebook
        from grader.isolate.session import Budget
        from grader.judge.trial import Trial

        torch.set_num_threads(1)
        self.run = run
        self.problem = problem
        self.source = run.source(problem)
        kernels = run.request.kernels if run.request else None
        how = {"compiles_ahead": True, "shrinks": 2, "kernels": kernels}
        self.judged = Trial(problem, run.seed, Casebook(problem), **how)
        spent = (run.request.spent_s, run.request.lost_s) if run.request else (0.0, 0.0)
        self.budget = Budget(problem.limits, *spent)
        self.calls = 0
        self.failed: set[str] = set()  # checks
        self.passed: dict[tuple[str, int], Finding] = {}
        self._sessions: dict[tuple[str, bool], Any] = {}  # by entry point, and whether on a GPU
        self._to_compile: list[tuple[Check, Case]] = []
        self._compilers: Any = None

    def session(self, check: Check, case: Case) -> Any:
        """Return the session that runs `case`: on the GPU where it should be and can be."""
        from grader.isolate.session import Session
        from grader.timing import device_lock

        problem = self.problem.of(check)
        triton = problem.uses_triton
        on_gpu = self.run.device == "cuda" and (case.gpu or not triton)
        key = (problem.entry, on_gpu)
        if on_gpu:
            self.run.have_gpu(device_lock.WAIT_S)
            self._begin_to_compile()
        if key not in self._sessions:
            self._sessions[key] = Session(
                problem,
                self.source,
                device="cuda" if on_gpu else "cpu",
                machine=triton and not on_gpu,
                budget=self.budget,
            )
        if on_gpu and self._compilers is not None:
            compilers, self._compilers = self._compilers, None
            compilers.wait()
        return self._sessions[key]

    def compile_ahead(self, cases: list[tuple[Check, Case]]) -> None:
        """Compile what the cases on the GPU need, on several cores: when the GPU is had."""
        self._to_compile = cases
        if self.run.have_gpu(wait_s=0.0):
            self._begin_to_compile()

    def _begin_to_compile(self) -> None:
        cases, self._to_compile = self._to_compile, []
        if not cases or not self.problem.uses_triton or self.source.verdict is not None:
            return
        if self.budget.used_up() is not None:
            return
        from grader.isolate.compilers import Compilers

        workers = self.run.request.compile_workers if self.run.request else 1
        self._compilers = Compilers(self.problem, self.source, cases, workers)

    @property
    def counts_work(self) -> bool:
        """Whether work is counted as far as is known: no check that it rests on has failed."""
        return self.problem.work is not None and not self.failed & set(self.problem.rests_on.work)

    def count_work(self) -> None:
        """Count the work of a submission if the checks that it rests on pass."""
        from grader.isolate.session import Session
        from grader.judge.work_run import WorkRun

        request, problem = self.run.request, self.problem
        if request is None or not self.counts_work:
            return
        key = (problem.entry, False)
        if key not in self._sessions:
            where = {"device": "cpu", "machine": problem.uses_triton, "budget": self.budget}
            self._sessions[key] = Session(problem, self.source, **where)
        session = self._sessions[key]
        self.run.send(CaseBegins(check=WORK, index=0))
        self.budget.check = WORK
        if self.budget.used_up() is None:
            session.start()
        try:
            evidence = WorkRun(self.judged, session).judge()
        except Exception as error:  # the judge's own: the cases are told all the same
            reason = f"the judge failed: {type(error).__name__}: {error}"[:600]
            evidence = Evidence(verdict=Verdict.INTERNAL, reason=reason)
        self.run.send(WorkCounted(evidence=evidence))

    def close(self) -> None:
        """End all workers."""
        if self._compilers is not None:
            self._compilers.wait(0.0)
        for session in self._sessions.values():
            session.close()
