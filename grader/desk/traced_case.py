"""Follows one program of a kernel on one case, tile by tile, beside the oracle."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from grader.cases import Case
from grader.checks import outcome
from grader.checks.correctness import Difference, Expected, element_errors, expect, find_differences
from grader.checks.rounds import compare
from grader.desk import tracing
from grader.desk.conclusion import conclusion_of
from grader.desk.trace_command import TraceError, Wanted, why_not
from grader.inputs import Inputs, case_seed, make_inputs
from grader.manifest import Check, Problem
from grader.model import Message
from grader.running.evidence import CallEvidence
from grader.running.rounds import RoundsShape
from grader.running.session import Budget, Session
from grader.running.trace import traceable
from grader.source import Source, read_source
from grader.traced import TraceRecord


def run(
    problem: Problem,
    submission: Path,
    wanted: Wanted,
    seed: str,
    on_case: Callable[[str], None] = lambda text: None,
) -> TraceRecord:
    """Find the case, follow the program, and return what was seen.

    Raises:
        TraceError: there is no such case.
    """
    _expect_case(problem, wanted, seed)
    source = read_source(problem, submission)
    if source.verdict is not None:
        return _unusable(problem, source, seed)
    torch.set_num_threads(1)
    budget = Budget(problem.limits)
    session = Session(problem, source, device="cpu", interpret=True, budget=budget)
    try:
        call = _find(problem, session, wanted, seed, on_case)
        on_case(f"{call.place}: following one program")
        return _follow(call, session, wanted)
    finally:
        session.close()


@dataclasses.dataclass(frozen=True)
class _Call:
    """One case, called: its inputs, the oracle, what came of it, and where that is wrong."""

    problem: Problem
    check: Check
    number: int
    case: Case
    seed: str
    inputs: Inputs
    expected: Expected
    evidence: CallEvidence
    failure: outcome.Outcome | None
    differences: list[Difference]

    @property
    def place(self) -> str:
        return f"{self.check.id}:{self.number}"

    def worst(self) -> tuple[int, int]:
        """Return the row of q, over batch and heads, of the worst element, and its column.

        Where all is right: the last query. Where nothing came back, -1: that of the program that
        ran last is not known.
        """
        if self.failure is not None:
            return -1, 0
        if not self.differences:
            return self.case.seqlen_q - 1, 0
        name = self.differences[0].name
        truth = self.expected.truth[name]
        errors = element_errors(name, self.evidence.outputs[name], truth, self.expected)
        place = np.unravel_index(int(errors.argmax()), tuple(truth.shape))
        batch, head, row = (int(i) for i in place[:3])
        plane = batch * self.case.num_q_heads + head
        return plane * self.case.seqlen_q + row, int(place[3]) if len(place) > 3 else 0

    def are_wrong(self, queries: np.ndarray) -> bool:
        """Whether some result of these rows of q is wrong."""
        for difference in self.differences:
            wrong = difference.wrong.flatten(0, 2)  # out has elements in a row, lse has one
            rows = wrong.any(1) if wrong.dim() > 1 else wrong
            if rows.numpy()[queries[queries >= 0]].any():
                return True
        return False


def _find(
    problem: Problem,
    session: Session,
    wanted: Wanted,
    seed: str,
    on_case: Callable[[str], None],
) -> _Call:
    """Call the case that is wanted; by default one after the other until one is wrong."""
    first: _Call | None = None
    for check, index, case in _cases(problem, wanted, seed):
        on_case(f"{check.id}:{index + 1}")
        call = _call(problem, session, check, index, case, seed)
        if call.failure is not None or call.differences or wanted.number is not None:
            return call
        first = first or call
    assert first is not None
    return first


def _cases(problem: Problem, wanted: Wanted, seed: str) -> Iterator[tuple[Check, int, Case]]:
    for check in problem.checks:
        if why_not(check) is not None or wanted.check not in (None, check.id):
            continue
        for index, case in problem.cases(check, seed, "cpu").items():
            if wanted.number in (None, index + 1) and traceable(case):
                yield check, index, case


def _expect_case(problem: Problem, wanted: Wanted, seed: str) -> None:
    """Refuse the number of a case that there is not, or that runs on a GPU alone."""
    if wanted.check is None or next(_cases(problem, wanted, seed), None) is not None:
        return
    cases = problem.cases(problem.check(wanted.check), seed, "cpu")
    numbers = "; ".join(f"{index + 1}: {case}" for index, case in cases.items())
    raise TraceError(
        f"--case: got {wanted.check}:{wanted.number}, and the cases of {wanted.check} that run"
        f" without a GPU are {numbers}"
    )


def _call(
    problem: Problem, session: Session, check: Check, index: int, case: Case, seed: str
) -> _Call:
    inputs = make_inputs(problem, case, case_seed(seed, problem.id, check.id, index))
    names = problem.judged(check)
    expected = expect(problem, case, inputs, names)
    evidence = session.call(case, inputs, names)
    failure = outcome.of_call(evidence, problem.signature)
    differences = [] if failure else find_differences(evidence.outputs, expected)
    parts = (inputs, expected, evidence, failure, differences)
    return _Call(problem, check, index + 1, case, seed, *parts)


def _follow(call: _Call, session: Session, wanted: Wanted) -> TraceRecord:
    """Call the case once more, follow the program, and compare."""
    problem, case = call.problem, call.case
    row, column = call.worst()
    lines = session.source.num_lines
    shape = RoundsShape.of(case, lines, row=row, program=wanted.program)
    evidence = session.call(
        case, call.inputs, tuple(call.expected.truth), traced=True, follow=shape
    )
    failure = call.failure or outcome.of_call(evidence, problem.signature)
    result = "failed" if failure else "wrong" if call.differences else "right"
    told = {
        "problem": problem.id,
        "file": problem.file,
        "check": call.check.id,
        "number": call.number,
        "case": str(case),
        "seed": call.seed,
        "result": result,
        "failure": " ".join(failure.headline.split())[:600] if failure else None,
    }
    rounds = evidence.rounds
    if rounds is None or not (rounds.queries >= 0).any():
        asked = (row, wanted.program)
        return TraceRecord(**told, conclusion=_nothing_seen(case, *asked))
    wrong = call.are_wrong(rounds.queries)
    compared = compare(problem.id, case, call.inputs, rounds, wrong=wrong)
    corner = tracing.Corner.of(case, rounds, compared, (row, column))
    program = tracing.program_of(case, rounds, corner)
    queries = program.shown_queries
    conclusion, notes = conclusion_of(
        rounds, compared, evidence.trace, failed=failure is not None, wrong=wrong
    )
    return TraceRecord(
        **told,
        program=program,
        tiles=len(rounds) + rounds.more,
        rounds=tracing.rounds_of(rounds, compared, corner, queries, wrong=wrong),
        parting=tracing.parting_of(rounds, compared, session.source),
        conclusion=conclusion,
        notes=notes,
    )


def _nothing_seen(case: Case, row: int, program: tuple[int, int, int] | None) -> str:
    """Say that no program was followed, and what that may mean."""
    if program is not None:
        ids = ",".join(map(str, program))
        return (
            f"program {ids} multiplied no tile of queries with a tile of keys: is it in the grid,"
            " and do your kernels multiply tiles of q and k with tl.dot?"
        )
    if row < 0:
        return "the call ended before any program had multiplied queries with a tile of keys"
    plane, query = divmod(row, case.seqlen_q)
    batch, head = divmod(plane, case.num_q_heads)
    where = f"query {query} of head {head}, batch entry {batch},"
    return (
        f"no program multiplied {where} with a tile of keys: either its loop over keys has no"
        " round, or no program loads this row of q, or what tl.dot multiplies are not rows of q and"
        " of k"
    )


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
