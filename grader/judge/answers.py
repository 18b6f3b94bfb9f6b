"""What came of one call of a case, before anybody judges it."""

from __future__ import annotations

import dataclasses
import functools
from concurrent.futures import ThreadPoolExecutor

from grader.checks import outcome
from grader.checks.correctness import Difference, Expected, expect, find_differences
from grader.isolate.evidence import CallEvidence
from grader.isolate.session import Session
from grader.spec.cases import Case
from grader.spec.inputs import Inputs, case_seed, make_inputs
from grader.spec.problem import Problem
from grader.spec.problem_tables import Check


@dataclasses.dataclass(frozen=True)
class Answer:
    """One call: its inputs, the outputs asked for, what happened, and how that compares.

    `idle` is the call with the same inputs before it, in which kernels did nothing. `failure` says
    why there are no outputs to compare; then there is nothing `expected`.
    """

    inputs: Inputs
    names: tuple[str, ...]
    idle: CallEvidence | None
    evidence: CallEvidence
    failure: outcome.CaseOutcome | None
    expected: Expected | None = None
    differences: tuple[Difference, ...] = ()

    @classmethod
    def of(
        cls,
        whole: Problem,
        seed: str,
        session: Session,
        check: Check,
        index: int,
        case: Case,
        call: int,
    ) -> Answer:
        """Make call number `call` of a case in `session`, and compare with the oracle.

        What is expected is computed while the worker computes.

        Args:
            whole: the problem, of which `check` may be about the bridge.
            seed: that of the run.
        """
        problem, names = whole.of(check), asked_for(whole, check)
        inputs = inputs_of(whole, seed, check, index, case, call)
        is_made = session.unusable is None and session.budget.used_up() is None
        waiting = _beside().submit(expect, problem, case, inputs, names) if is_made else None
        idle = None
        if call and problem.uses_triton:
            idle = session.call(case, inputs, names, idle=True)
        evidence = session.call(case, inputs, names)
        failure = outcome.of_call(evidence, problem.signature)
        if failure is not None:
            return cls(inputs, names, idle, evidence, failure)
        expected = waiting.result() if waiting else expect(problem, case, inputs, names)
        differences = find_differences(evidence.outputs, expected)
        return cls(inputs, names, idle, evidence, None, expected, tuple(differences))

    def wrong(self, judged: tuple[str, ...]) -> list[Difference]:
        """Return what is wrong about the outputs that are judged."""
        return [difference for difference in self.differences if difference.name in judged]


@functools.cache
def _beside() -> ThreadPoolExecutor:
    """Return the thread in which what is expected is computed."""
    return ThreadPoolExecutor(1, "expected")


def asked_for(whole: Problem, check: Check) -> tuple[str, ...]:
    """Return the outputs that the calls of a check bring.

    `out` tells what a forward pass did wrong, whose gradients are wrong for it.
    """
    problem, judged = whole.of(check), whole.judged(check)
    if not problem.gradients:
        return judged
    return tuple(dict.fromkeys((*problem.returns[:1], *judged)))


def inputs_of(
    whole: Problem, seed: str, check: Check, index: int, case: Case, call: int = 0
) -> Inputs:
    """Return the inputs of a call; they depend on the run's seed and the case alone."""
    problem = whole.of(check)
    place = (problem.id, check.id, index, *([call] if call else []))
    return make_inputs(problem, case, case_seed(seed, *place))
