"""Runs source code through the judge's own rooms, in this process: what many tests begin with."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable

import torch

from grader.diagnose import Casebook
from grader.findings import CauseFound, Finding
from grader.judge import CaseRun, Trial
from grader.manifest import ROOT, Problem, load_problem
from grader.model import CheckResult, ComponentResult, Verdict
from grader.running.session import Budget, Session
from grader.scoring import score_correctness
from grader.source import Source
from grader.testrun import Findings, check_results

SEED = "5eed"


@functools.cache
def model_answer(problem_id: str) -> str:
    """Source of the model answer."""
    return (ROOT / "solutions" / problem_id / load_problem(problem_id).file).read_text("utf-8")


@dataclasses.dataclass
class Judged:
    """What the judge made of one source: findings by check and case, causes, scored checks."""

    problem: Problem
    findings: Findings
    checks: list[CheckResult]

    def of(self, check_id: str) -> CheckResult:
        """The result of one check."""
        return next(check for check in self.checks if check.id == check_id)

    @property
    def wrong(self) -> dict[tuple[str, int], Finding]:
        """The cases that did not pass."""
        return {p: f for p, f in self.findings.cases.items() if f.verdict is not Verdict.PASS}

    @property
    def named(self) -> set[str]:
        """Ids of the causes that were named, without the problem's prefix."""
        return {c.diagnosis.id.partition("-")[2] for c in self.findings.causes}

    @property
    def correctness(self) -> ComponentResult:
        """Correctness as it is scored; checks that were left out count as not passed."""
        return score_correctness(self.checks, self.problem.points.correctness)[0]


def judge(
    source: str,
    problem: Problem,
    *,
    checks: Iterable[str] | None = None,
    seed: str = SEED,
    device: str = "cpu",
    enough: Callable[[dict[tuple[str, int], Finding]], bool] = lambda findings: False,
) -> Judged:
    """Judge `source` in the cases of `checks`, until `enough` findings are in.

    By default those of all checks but of the one that compiles, which counts as passed.

    On the CPU kernels run in Triton's interpreter; on cuda all cases run on the GPU.
    """
    torch.set_num_threads(1)
    budget = Budget(problem.limits)
    interpret = problem.uses_triton and device == "cpu"
    data = Source(problem.id, source.encode())
    session = Session(problem, data, device=device, interpret=interpret, budget=budget)
    trial = Trial(problem, seed, Casebook(problem))
    findings = Findings()
    wanted = set(checks) if checks is not None else {check.id for check in problem.checks}
    try:
        for check in problem.checks:
            if check.id not in wanted:
                continue
            if check.compiles and checks is None:
                findings.cases[(check.id, 0)] = Finding(verdict=Verdict.PASS)
                continue
            for index, case in problem.cases(check, seed, device).items():
                finding = CaseRun(trial, session, check, index, case).judge()
                findings.cases[(check.id, index)] = finding
                if enough(findings.cases):
                    break
        causes = trial.casebook.settle(data.step_at)
    finally:
        session.close()
    findings.causes = [CauseFound(**vars(cause)) for cause in causes]
    return Judged(problem, findings, check_results(problem, findings, device=device, seed=seed))
