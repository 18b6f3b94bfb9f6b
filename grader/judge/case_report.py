"""One case of one check, and how a student is told what came of it."""

from __future__ import annotations

import dataclasses
from typing import Any

from grader.checks import outcome
from grader.isolate.evidence import CallEvidence
from grader.isolate.session import Session
from grader.judge.answers import inputs_of
from grader.judge.trial import Trial
from grader.spec.cases import Case
from grader.spec.findings import Finding
from grader.spec.grade_record import Message, Verdict
from grader.spec.inputs import Inputs
from grader.spec.problem_tables import Check
from grader.spec.protocol import Reply, Status

_HEADLINE_LIMIT = 600


class ToldCase:
    """One case of one check of a trial, on the device of `session`."""

    def __init__(
        self, trial: Trial, session: Session, check: Check, index: int, case: Case
    ) -> None:
        self.trial = trial
        self.session = session
        self.problem = trial.problem.of(check)
        self.check = check
        self.index = index
        self.case = case.small if session.machine else case

    def inputs(self, call: int = 0) -> Inputs:
        """Return the inputs of a call; they depend on the run's seed and the case alone."""
        trial = self.trial
        return inputs_of(trial.problem, trial.seed, self.check, self.index, self.case, call)

    def _failure(self, failure: outcome.CaseOutcome, evidence: CallEvidence) -> Finding:
        reply = evidence.result
        unmodelled = isinstance(reply, Reply) and reply.status == Status.NOT_MODELLED
        unmodelled = unmodelled and reply.error_type != "NoRoom"  # which is the system's choice
        if unmodelled and self.trial.launched.on_machine:  # a file may not choose what counts
            help = "other cases run here: launch kernels of the same operations in all of them"
            change = {"headline": failure.headline.removeprefix("not measured: "), "help": help}
            failure = dataclasses.replace(failure, verdict=Verdict.ERROR, **change)
        return self._finding(
            failure.verdict,
            failure.headline,
            line=failure.line,
            extent=failure.extent,
            help=failure.help or self._of_given_code(failure),
            elsewhere=failure.elsewhere,
            looping=failure.looping,
            output=evidence.output,
            not_run=evidence.result is None,
        )

    def _of_given_code(self, failure: outcome.CaseOutcome) -> str | None:
        """Say of an error outside of all steps that what a step computed may have led to it."""
        source = self.session.source
        line = failure.line if failure.verdict is Verdict.ERROR else 0
        if not 0 < line <= source.num_lines or not source.has_steps:
            return None
        if source.step_at(line) is not None:
            return None
        return (
            "this line is in no step: if you did not change it, look at what your steps pass to it"
        )

    def _step(self, line: int, *, elsewhere: bool, looping: bool) -> int | None:
        """Return the step of a line, if the mistake lies there; a bridge is a step of its own.

        A call that does not end was stopped somewhere in its loop: all of that has to be one step.
        """
        if self.check.bridge and self.trial.problem.bridge is not None:
            return self.trial.problem.bridge.step
        source = self.session.source
        if not line or (elsewhere and source.step_at(line) is not None):
            return None
        return source.step_of_loops_at(line) if looping else source.step_behind(line)

    def _finding(
        self,
        verdict: Verdict,
        headline: str,
        *,
        line: int = 0,
        elsewhere: bool = False,
        looping: bool = False,
        output: str = "",
        wrong_outputs: tuple[str, ...] = (),
        margin: float | None = None,
        **details: Any,
    ) -> Finding:
        problem = self.problem
        line = line if line <= self.session.source.num_lines else 0
        message = Message(
            headline=" ".join(headline.split())[:_HEADLINE_LIMIT],
            test=self.check.test_name,
            file=problem.file,
            line=line or None,
            fed_by=self.session.source.fed_by(line),
            step=self._step(line, elsewhere=elsewhere, looping=looping),
            input=str(self.case),
            output=output or None,
            repeat=f"make grade P={problem.id} SEED={self.trial.seed}",
            **details,
        )
        return Finding(verdict=verdict, message=message, wrong_outputs=wrong_outputs, margin=margin)
