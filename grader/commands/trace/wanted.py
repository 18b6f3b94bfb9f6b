"""Reads which case and which program of a problem `trace` follows."""

from __future__ import annotations

import dataclasses
import re

from grader.commands.options import UsageError
from grader.spec.problem import Problem
from grader.spec.problem_tables import Check
from grader.spec.trace_record import TRACED, UNTRACED

_CASE = re.compile(r"(\w{1,60})(?::(\d{1,4}))?")
_PROGRAM = re.compile(r"(\d{1,9})(?:,(\d{1,9}))?(?:,(\d{1,9}))?")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The wanted case, by check and number from 1, and program; None stands for any."""

    check: str | None = None
    number: int | None = None
    program: tuple[int, int, int] | None = None

    @classmethod
    def of(cls, problem: Problem, case: str | None, program: str | None) -> Wanted:
        """Parse the options --case and --program.

        Raises:
            UsageError: an option cannot be used.
        """
        check_id, number, ids = None, None, None
        if case:
            match = _CASE.fullmatch(case)
            checks = [check.id for check in problem.checks if why_not(check) is None]
            known = [check.id for check in (*problem.checks, problem.counted) if check]
            if match is None or match[1].removeprefix("test_") not in known:
                raise UsageError(
                    f"--case: got {case!r}, expected a check and a number, such as"
                    f" {checks[0]}:2; the checks are {', '.join(checks)}"
                )
            check_id = match[1].removeprefix("test_")
            number = int(match[2]) if match[2] else None
            why = why_not(problem.check(check_id))
            if why is not None:
                raise UsageError(f"--case: got {check_id}, {why}")
        if program and not problem.uses_triton:
            raise UsageError(f"--program: got {program!r}; {problem.id} is PyTorch, without any")
        if program:
            match = _PROGRAM.fullmatch(program.replace(" ", ""))
            if match is None:
                raise UsageError(f"--program: got {program!r}, expected ids such as 1,0,0")
            ids = (int(match[1]), int(match[2] or 0), int(match[3] or 0))
        return cls(check_id, number, ids)


def expect_traceable(problem_ids: tuple[str, ...]) -> str:
    """Return the one problem to trace.

    Raises:
        UsageError: several problems are named, or one that cannot be traced.
    """
    id, *others = problem_ids
    if others or id not in TRACED:
        why = "" if others else f": {UNTRACED.get(id, 'it is no forward pass')}"
        raise UsageError(
            f"--only: got {', '.join(problem_ids)}, expected one of {', '.join(TRACED)}{why}"
        )
    return id


def why_not(check: Check) -> str | None:
    """Return why the cases of a check have no program to trace, None where they have one."""
    if check.bridge:
        return "whose function has no queries and keys; expected a check of attention"
    if check.judges != "numbers":
        return "which judges no numbers; expected a check of numbers"
    if check.compiles:
        return "which compiles and computes nothing; expected a check of numbers"
    if any(case.invalid is not None for case in check.cases):
        return "whose calls have to be refused; expected a check of numbers"
    return None
