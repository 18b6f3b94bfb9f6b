"""Removes names and lines from the record of an opened case, which the student investigates."""

from __future__ import annotations

from pathlib import Path

from grader.spec.grade_record import CheckResult, GradeRecord, Message, ProblemResult
from grader.spec.trace_record import TraceRecord

SEAL = "case.json"  # in the folder of a case that `make case` has opened


def is_sealed(submission: Path) -> bool:
    """Whether a submission is an opened case."""
    return (submission / SEAL).is_file()


def unnamed(record: GradeRecord) -> GradeRecord:
    """Return a record without what names a bug or its place: what was seen is left."""
    return record.model_copy(update={"problems": tuple(map(_of_problem, record.problems))})


def unlined(trace: TraceRecord) -> TraceRecord:
    """Return a trace without the lines that make what is wrong."""
    parting = trace.parting and trace.parting.model_copy(update={"lines": ()})
    return trace.model_copy(update={"parting": parting})


def _of_problem(problem: ProblemResult) -> ProblemResult:
    checks = tuple(map(_of_check, problem.checks))
    update = {"checks": checks, "next_step": f"make case P={problem.id}"}
    return problem.model_copy(update=update)


def _of_check(check: CheckResult) -> CheckResult:
    message = check.message and _bare(check.message)
    return check.model_copy(update={"step": None, "diagnosis": None, "message": message})


def _bare(message: Message) -> Message:
    nowhere = dict.fromkeys(("test", "line", "step", "step_lines", "help", "repeat"))
    trace = message.trace and unlined(message.trace)
    return message.model_copy(update={**nowhere, "fed_by": (), "trace": trace})
