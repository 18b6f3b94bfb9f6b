"""The work of a submission that is right: calls under the judge's eyes, and what they did."""

from __future__ import annotations

from grader.checks import outcome
from grader.checks.correctness import expect, find_differences
from grader.checks.work import count_work, disbelieved
from grader.isolate.session import Session
from grader.judge import scoring
from grader.judge.trial import Trial
from grader.spec.findings import Evidence
from grader.spec.grade_record import Verdict
from grader.spec.inputs import case_seed, make_inputs
from grader.spec.problem_tables import WORK
from grader.spec.protocol import Reply, Status


class WorkRun:
    """Counts the work of a submission that is right, on the machine."""

    def __init__(self, trial: Trial, session: Session) -> None:
        self.trial = trial
        self.session = session

    def judge(self) -> Evidence:
        """Return the figures of the call in which the submission did most beyond what it needed."""
        problem, counted = self.trial.problem, []
        names = problem.outputs
        for index, case in enumerate(problem.work_cases(self.trial.seed)):
            inputs = make_inputs(problem, case, case_seed(self.trial.seed, problem.id, WORK, index))
            evidence = self.session.call(case, inputs, names, traced=True)
            failure = outcome.of_call(evidence, problem.signature)
            reply = evidence.result
            if isinstance(reply, Reply) and reply.status is Status.TRACE_FAILED:
                reason = f"the judge's tracer failed: {reply.text}"[:600]
                return Evidence(verdict=Verdict.INTERNAL, reason=reason)
            if failure is not None:
                return Evidence(verdict=failure.verdict, reason=f"{failure.headline} ({case})")
            if find_differences(evidence.outputs, expect(problem, case, inputs, names)):
                return Evidence(verdict=Verdict.FAIL, reason=f"the result is wrong ({case})")
            if evidence.trace is None:
                return Evidence(verdict=Verdict.NOT_MEASURED, reason="nothing was seen")
            reason = disbelieved(problem, case, evidence.trace)
            if reason is not None:
                return Evidence(verdict=Verdict.FAIL, reason=reason)
            counted.append(count_work(problem, case, evidence.trace))
        return Evidence(figures=min(counted, key=scoring.work_fraction))
