"""What one pytest was asked for, by the command line or by the judge, and the problems it runs.

torch and the judge's rooms are imported when a case needs them: pytest also runs without cases.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader.isolate.pipe import EventPipe, read_request
from grader.source.submission import Source, read_source
from grader.spec.cases import Case, resolve
from grader.spec.findings import (
    Alive,
    CaseEnds,
    CaseFailed,
    CauseFound,
    Finding,
    TestRequest,
    WorkCounted,
    write_event,
)
from grader.spec.grade_record import Message, Verdict
from grader.spec.problem import Problem
from grader.spec.problem_tables import Check

if TYPE_CHECKING:
    import pytest

    from grader.judge.case import CheckCase
    from grader.judge.problem_run import ProblemRun

_FAULTS_FROM_OUTSIDE = (OSError, MemoryError)
_TEXTS_FROM_OUTSIDE = ("start new thread", "allocate memory", "bad_alloc", "open files")


class PytestRun:
    """Runs the cases that pytest hands over, and sends events to the judge, if it listens."""

    def __init__(self, config: pytest.Config) -> None:
        self.runs: dict[str, ProblemRun] = {}
        self._config = config
        self._request_fd = config.getoption("--request-fd")
        self._failed: set[tuple[str, str]] = set()  # problems and their checks
        self._gpu = contextlib.ExitStack()
        self._has_gpu = False
        self.is_of_judge = self._request_fd is not None  # and not of a command line
        self._pipe: EventPipe | None = None
        if self.is_of_judge:
            alive = write_event(Alive(), self.request.token)
            self._pipe = EventPipe(config.getoption("--events-fd"), alive)

    @functools.cached_property
    def request(self) -> TestRequest:
        """What the judge asked for, or the same of a command line, which names no source."""
        if self._request_fd is not None:
            return TestRequest.model_validate_json(read_request(self._request_fd))
        device = self._config.getoption("--device")
        if device == "auto":
            import torch

            device = "cuda" if torch.cuda.is_available() else "cpu"
        seed = self._config.getoption("--seed") or os.urandom(8).hex()
        return TestRequest(device=device, seed=seed)

    def have_gpu(self, wait_s: float) -> bool:
        """Keep measurements of other gradings off the GPU from now on; return whether they are.

        Before that, no worker of this process starts there.
        """
        from grader.timing import device_lock

        uuid = self.request.device_uuid
        if not self._has_gpu and uuid is not None:
            lock = device_lock.held(uuid, alone=False, wait_s=wait_s)
            self._has_gpu = self._gpu.enter_context(lock)
        return self._has_gpu or uuid is None

    def _leave_gpu(self) -> None:
        for run in self.runs.values():
            run.sessions.leave_gpu()
        self._gpu.close()
        self._has_gpu = False

    def close(self) -> None:
        """End all workers and leave the GPU to others."""
        for run in self.runs.values():
            with contextlib.suppress(OSError):
                run.sessions.close()
        self._gpu.close()
        self._has_gpu = False

    def send(self, event: Any) -> None:
        """Send an event to the judge, if it listens."""
        if self._pipe:
            self._pipe.send(write_event(event, self.request.token))

    # -- cases ------------------------------------------------------------------------------------

    def cases(self, problem: Problem, check: Check) -> dict[str, tuple[int, Case]]:
        """Return the cases that no earlier pytest has run, with their numbers, by their names.

        A name has the length, the dtype, and what else is not as in the plain case.
        """
        usual = set(resolve(problem.of(check).base.given, "fp32", "").words)
        found: dict[str, tuple[int, Case]] = {}
        for index, case in problem.cases(check, self.request.seed).items():
            if (check.id, index) in self.request.done:
                continue
            sizes = ("seqlen", "rows", "cols")
            words = [w for w in case.words if w not in usual or w.startswith(sizes)]
            id = "-".join(w for w in words if w != "fp32")
            found[id if id not in found else f"{id}-{index}"] = index, case
        return found

    def rank(self, at: CheckCase | None) -> tuple[bool, bool]:
        """Return the sort key of a case: on a GPU those of the machine first, then by `first`."""
        first = self.request.first
        late = bool(first) and (at is None or at.check.id not in first)
        return self.request.device == "cuda" and at is not None and at.case.gpu, late

    def begin(self, cases: Iterable[CheckCase]) -> None:
        """On a GPU begin to compile what its cases need, and use the machine meanwhile."""
        waiting: dict[str, list[CheckCase]] = {}
        for at in cases if self.request.device == "cuda" else ():
            if at.case.gpu and not at.check.bridge:
                waiting.setdefault(at.whole.id, []).append(at)
        for of_problem in waiting.values():
            run = self.run(of_problem[0].whole)
            pairs = [(at.check, at.case) for at in of_problem]
            run.sessions.compile(pairs)

    def run(self, problem: Problem) -> ProblemRun:
        """Return the run of a problem, whose file is read once."""
        if problem.id not in self.runs:
            self.runs[problem.id] = self._run(problem)
        return self.runs[problem.id]

    def _run(self, problem: Problem) -> ProblemRun:
        from grader.isolate.session import Budget
        from grader.judge.problem_run import ProblemRun
        from grader.judge.sessions import Sessions
        from grader.timing import device_lock

        asked = self.request
        if asked.source is not None:
            source = Source(problem.id, asked.source.data, policy=asked.policy)
        else:
            source = read_source(problem, Path(self._config.getoption("--submission")))
        sessions = Sessions(
            problem,
            source,
            asked.device,
            Budget(problem.limits, asked.spent_s, asked.lost_s),
            have_gpu=lambda: self.have_gpu(device_lock.WAIT_S),
            compile_workers=asked.compile_workers,
            capability=asked.capability,
            kernels=asked.kernels,
        )
        how = {"compiles_ahead": True, "shrinks": 2, "send": self.send}
        how |= {"kernels": asked.kernels, "chips": asked.chips}
        return ProblemRun(problem, source, asked.seed, sessions, **how)

    def ended(
        self, at: CheckCase, came_to: Finding | BaseException, where: str, seconds: float
    ) -> Finding:
        """Send the judge the finding of a case, or its own error that ended the case in `where`.

        Such an error costs the student nothing, unless the student's code made it.
        """
        run = self.runs.get(at.whole.id)
        if isinstance(came_to, CaseFailed):
            finding = came_to.finding
        elif isinstance(came_to, Finding):
            finding = came_to
        else:
            outside = isinstance(came_to, _FAULTS_FROM_OUTSIDE)
            outside |= any(known in str(came_to) for known in _TEXTS_FROM_OUTSIDE)
            text = f"the judge failed in {where}: {type(came_to).__name__}: {came_to}"
            finding = Finding(
                verdict=Verdict.INTERNAL,
                message=Message(headline=text[:600]),
                after_calls=outside and run is not None and run.may_have_run,
            )
        if finding.verdict not in (Verdict.PASS, Verdict.NOT_MEASURED):
            self._failed.add((at.whole.id, at.check.id))
        finding = finding.model_copy(update={"duration_s": round(seconds, 3)})
        spent = run.sessions.budget if run is not None else self.request
        spent_s, lost_s, (check, index) = spent.spent_s, spent.lost_s, at.place
        self.send(
            CaseEnds(check=check, index=index, finding=finding, spent_s=spent_s, lost_s=lost_s)
        )
        return finding

    # -- the end ----------------------------------------------------------------------------------

    def finish(self, *, counts: bool, say: Callable[[str], None]) -> dict[Any, CauseFound]:
        """Count work where that `counts`, settle on causes, and end all workers.

        Return the cause of each wrong case, by problem, check and number. Failures of the judge's
        own are passed to `say`.
        """
        causes: dict[Any, CauseFound] = {}
        self._leave_gpu()  # work is counted on the machine
        for problem_id, run in self.runs.items():
            if counts and self.counts_work(run.problem):
                self.send(WorkCounted(evidence=run.count_work()))
            for found in _causes(run, say):
                self.send(found)
                causes |= {(problem_id, *place): found for place in found.cases}
            with contextlib.suppress(OSError):
                run.sessions.close()
        return causes

    def counts_work(self, problem: Problem) -> bool:
        """Whether work is counted: for the judge, where no check failed that it rests on."""
        rests_on = {(problem.id, check) for check in problem.rests_on.work}
        return self.is_of_judge and problem.work is not None and not self._failed & rests_on


def _causes(run: ProblemRun, say: Callable[[str], None]) -> list[CauseFound]:
    """Return the causes of wrong results; none where the judge itself failed to find them.

    They explain verdicts, which stand without them.
    """
    try:
        return run.causes()
    except Exception as error:
        say(f"{run.problem.id}: the judge failed to find causes: {type(error).__name__}: {error}")
        return []


class RunningCase:
    """One case of one check: a test says what must hold for it."""

    def __init__(self, run: PytestRun, at: CheckCase) -> None:
        self.finding = Finding(verdict=Verdict.PASS)
        self._run, self._at = run, at

    def agrees_with(self, oracle: Any) -> None:
        """The submission's outputs equal those of `oracle` within the derived tolerance."""
        expected = self._at.problem.oracle
        assert oracle.__name__ == expected, f"got {oracle.__name__}, problem.toml says {expected}"
        self._judge()

    def holds(self) -> None:
        """What the check judges instead of numbers (`judges` in problem.toml) is as promised."""
        assert self._at.check.judges != "numbers"
        self._judge()

    def compiles(self) -> None:
        """The kernels of the submission compile for the GPUs of grader/kernel/compile/chips.py."""
        assert self._at.check.compiles
        self._judge()

    def is_refused(self) -> None:
        """The submission raises ValueError naming the argument that the case makes invalid."""
        assert self._at.case.invalid is not None
        self._judge()

    def _judge(self) -> None:
        self.finding = self._run.run(self._at.whole).judge(self._at)
        if self.finding.verdict is not Verdict.PASS:
            raise CaseFailed(self.finding)

    def __repr__(self) -> str:
        return str(self._at.case)
