"""The report on an opened case, which the student is to investigate: without names and places."""

from __future__ import annotations

from pathlib import Path

from grader.spec.grade_record import CheckResult, GradeRecord, Message, ProblemResult

SEAL = "case.json"  # in the folder of a case that `make case` has opened


def sealed(record: GradeRecord, submission: Path) -> GradeRecord:
    """Return a record without what names a bug, where the submission is an opened case.

    What is left is what was seen: which checks fail, and which numbers are wrong.
    """
    if record.mode == "official" or not (submission / SEAL).is_file():
        return record
    problems = tuple(_unnamed(problem) for problem in record.problems)
    return record.model_copy(update={"problems": problems})


def _unnamed(problem: ProblemResult) -> ProblemResult:
    checks = tuple(map(_of_check, problem.checks))
    update = {"checks": checks, "next_step": f"make case P={problem.id}"}
    return problem.model_copy(update=update)


def _of_check(check: CheckResult) -> CheckResult:
    message = check.message and _bare(check.message)
    return check.model_copy(update={"step": None, "diagnosis": None, "message": message})


def _bare(message: Message) -> Message:
    nowhere = dict.fromkeys(("test", "line", "step", "help", "repeat", "trace"))
    return message.model_copy(update={**nowhere, "fed_by": ()})
