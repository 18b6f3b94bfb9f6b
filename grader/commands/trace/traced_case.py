"""Traces one program of a kernel on one case, tile by tile, beside the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from grader.causes.state.program import Called
from grader.checks import outcome
from grader.checks.correctness import expect, find_differences
from grader.commands.options import UsageError
from grader.commands.trace.wanted import Wanted, why_not
from grader.isolate.session import Budget, Session
from grader.kernel.observers.trace import traceable
from grader.source.submission import Source, read_source
from grader.spec.cases import Case
from grader.spec.grade_record import Message
from grader.spec.inputs import case_seed, make_inputs
from grader.spec.problem import Problem
from grader.spec.problem_tables import Check
from grader.spec.trace_record import TraceRecord


def run(
    problem: Problem,
    submission: Path,
    wanted: Wanted,
    seed: str,
    on_case: Callable[[str], None] = lambda text: None,
) -> TraceRecord:
    """Find the case, trace the program, and return its record.

    Raises:
        UsageError: the wanted case does not exist.
    """
    _expect_case(problem, wanted, seed)
    source = read_source(problem, submission)
    if source.verdict is not None:
        return _unusable(problem, source, seed)
    torch.set_num_threads(1)
    budget = Budget(problem.limits)
    session = Session(problem, source, device="cpu", machine=problem.uses_triton, budget=budget)
    try:
        call = _find(problem, session, wanted, seed, on_case)
        on_case(f"{call.place}: following one program")
        return _follow(call, session, wanted)
    finally:
        session.close()


def _find(
    problem: Problem, session: Session, wanted: Wanted, seed: str, on_case: Callable[[str], None]
) -> Called:
    """Call the wanted case, or by default one case after another until one is wrong."""
    first: Called | None = None
    for check, index, case in _cases(problem, wanted, seed):
        on_case(f"{check.id}:{index + 1}")
        call = _call(problem, session, check, index, case, seed)
        if call.failure is not None or call.differences or wanted.number is not None:
            return call
        first = first or call
    assert first is not None
    return first


def _cases(problem: Problem, wanted: Wanted, seed: str) -> Iterator[tuple[Check, int, Case]]:
    for check in problem.checks if wanted.check is None else [problem.check(wanted.check)]:
        if why_not(check) is not None:
            continue
        for index, case in problem.cases(check, seed).items():
            if wanted.number in (None, index + 1) and traceable(case):
                yield check, index, case


def _expect_case(problem: Problem, wanted: Wanted, seed: str) -> None:
    """Refuse the number of a case that does not exist, or that only runs on a GPU."""
    if wanted.check is None or next(_cases(problem, wanted, seed), None) is not None:
        return
    cases = problem.cases(problem.check(wanted.check), seed)
    numbers = "; ".join(f"{index + 1}: {case}" for index, case in cases.items())
    raise UsageError(
        f"--case: got {wanted.check}:{wanted.number}, and the cases of {wanted.check} that run"
        f" without a GPU are {numbers}"
    )


def _call(
    problem: Problem, session: Session, check: Check, index: int, case: Case, seed: str
) -> Called:
    inputs = make_inputs(problem, case, case_seed(seed, problem.id, check.id, index))
    names = problem.judged(check)
    expected = expect(problem, case, inputs, names)
    evidence = session.call(case, inputs, names)
    failure = outcome.of_call(evidence, problem.signature)
    differences = [] if failure else find_differences(evidence.outputs, expected)
    place = (problem, session.source, check, index + 1, case, seed)
    return Called(*place, inputs, expected, evidence, differences, failure)


def _follow(call: Called, session: Session, wanted: Wanted) -> TraceRecord:
    """Call the case again with one program traced, and compare it with the reference."""
    shape = call.to_follow(wanted.program)
    names = tuple(call.expected.truth)
    evidence = session.call(call.case, call.inputs, names, traced=True, follow=shape)
    return call.report(evidence, wanted.program).record


def _unusable(problem: Problem, source: Source, seed: str) -> TraceRecord:
    message = source.message or Message(headline="the file cannot be graded")
    return TraceRecord(
        problem=problem.id,
        file=problem.file,
        check="plain",
        number=1,
        case="",
        seed=seed,
        result="failed",
        failure=message.headline,
        conclusion=f"nothing was run; make grade P={problem.id} says more",
    )
