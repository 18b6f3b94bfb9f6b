"""`python -m grader trace`: one program of a kernel, tile by tile, beside the oracle."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from grader.cases import Case
from grader.checks import outcome
from grader.checks.correctness import expect, find_differences
from grader.following.program import TRACED, Called
from grader.inputs import case_seed, make_inputs
from grader.manifest import Check, ManifestError, Problem
from grader.model import Message
from grader.running.session import Budget, Session
from grader.running.trace import traceable
from grader.source import Source, read_source
from grader.traced import TraceRecord

_WHY_NOT = {
    "p01": "p01 is PyTorch, which has no programs to follow: print the running state in your loop,"
    " and compare it with torch.softmax over the keys so far",
    "p02": "the kernels of p02 have no running maximum and no accumulator of attention:"
    " make grade P=p02 says which elements took part",
    **dict.fromkeys(
        ("p08", "p09"),
        "a backward kernel sums gradients over tiles, and has no state that a tile alone makes"
        " right or wrong: make grade MAP=1 shows the tiles it visits",
    ),
}
_CASE = re.compile(r"(\w{1,60})(?::(\d{1,4}))?")
_PROGRAM = re.compile(r"(\d{1,9})(?:,(\d{1,9}))?(?:,(\d{1,9}))?")


class TraceError(ManifestError):
    """An option of `trace` cannot be used."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `trace`."""
    parser.add_argument("--only", metavar="p06", help="the problem, one of p03 to p07")
    parser.add_argument(
        "--case",
        metavar="CHECK[:N]",
        help="a check, and which of its cases, from 1 (default: the first that is wrong)",
    )
    parser.add_argument(
        "--program",
        metavar="X,Y,Z",
        help="the program's ids (default: the one with the worst wrong element)",
    )
    parser.add_argument(
        "--seed", metavar="HEX", help="repeat a run's inputs (default: fresh and secret)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what is shown as JSON")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What is asked for: a case by check and number from 1, and a program, each None for any."""

    check: str | None = None
    number: int | None = None
    program: tuple[int, int, int] | None = None

    @classmethod
    def of(cls, problem: Problem, case: str | None, program: str | None) -> Wanted:
        """Read the options.

        Raises:
            TraceError: one cannot be used.
        """
        check_id, number, ids = None, None, None
        if case:
            match = _CASE.fullmatch(case)
            checks = [check.id for check in problem.checks if _why_not(check) is None]
            known = [check.id for check in problem.checks]
            if match is None or match[1].removeprefix("test_") not in known:
                raise TraceError(
                    f"--case: got {case!r}, expected a check and a number, such as"
                    f" {checks[0]}:2; the checks are {', '.join(checks)}"
                )
            check_id = match[1].removeprefix("test_")
            number = int(match[2]) if match[2] else None
            why = _why_not(problem.check(check_id))
            if why is not None:
                raise TraceError(f"--case: got {check_id}, {why}")
        if program:
            match = _PROGRAM.fullmatch(program.replace(" ", ""))
            if match is None:
                raise TraceError(f"--program: got {program!r}, expected ids such as 1,0,0")
            ids = (int(match[1]), int(match[2] or 0), int(match[3] or 0))
        return cls(check_id, number, ids)


def expect_traceable(problem_ids: tuple[str, ...]) -> str:
    """Return the one problem to trace.

    Raises:
        TraceError: several were named, or one that is not traced.
    """
    if len(problem_ids) != 1:
        raise TraceError(
            f"--only: got {', '.join(problem_ids)}, expected one of {', '.join(TRACED)}"
        )
    if problem_ids[0] not in TRACED:
        raise TraceError(
            f"--only: got {problem_ids[0]}, expected one of {', '.join(TRACED)}:"
            f" {_WHY_NOT.get(problem_ids[0], 'it is no forward kernel')}"
        )
    return problem_ids[0]


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


def _find(
    problem: Problem,
    session: Session,
    wanted: Wanted,
    seed: str,
    on_case: Callable[[str], None],
) -> Called:
    """Call the case that is wanted; by default one after the other until one is wrong."""
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
    for check in problem.checks:
        if _why_not(check) is not None or wanted.check not in (None, check.id):
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


def _why_not(check: Check) -> str | None:
    """Say why the cases of a check have no program to follow, None where they have."""
    if check.bridge:
        return "whose function has no queries and keys; expected a check of attention"
    if check.compiles:
        return "which compiles and computes nothing; expected a check of numbers"
    if any(case.invalid is not None for case in check.cases):
        return "whose calls have to be refused; expected a check of numbers"
    return None


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
    """Call the case once more, follow the program, and compare."""
    shape = call.to_follow(wanted.program)
    names = tuple(call.expected.truth)
    evidence = session.call(call.case, call.inputs, names, traced=True, follow=shape)
    return call.told(evidence, wanted.program).record


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
