"""From what a grading wrote to results that count, and faults that decide nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from pydantic import ValidationError

from classroom.grading import GradingOutcome
from classroom.records import FileResult, Key, now
from grader.base.text import clean
from grader.judge.results import NOT_REACHED
from grader.spec.grade_record import Environment, GradeRecord, ProblemResult, Verdict

BUSY = "not measured: the machine is busy"
_WORDS = 300
_USAGE = 2  # the exit code of a command that was called wrongly, or with a set that is broken


@dataclasses.dataclass(frozen=True)
class Judged:
    """Results, and by key why there is none."""

    results: tuple[FileResult, ...] = ()
    faults: Mapping[Key, str] = dataclasses.field(default_factory=dict)


def judged(
    keys: Mapping[str, Key], outcome: GradingOutcome, machine: Environment, *, official: bool
) -> Judged:
    """Return what a grading of `keys`, by problem, came to on a machine that should be `machine`.

    A problem counts when it was graded to its end, from the bytes and on the device that its key
    says, without a fault of the judge. A record that ends early counts as far as it came.
    """
    ending = _ending(outcome)
    if outcome.record is None:
        return all_faults(keys, ending or "it wrote no record")
    try:
        record = GradeRecord.model_validate_json(outcome.record)
    except ValidationError as error:
        return all_faults(keys, f"its record is not valid: {error.errors()[0]['msg']}; {ending}")
    here, expected = record.environment, machine
    if (here.device, here.device_name) != (expected.device, expected.device_name):
        got = f"graded on {clean(here.device_name, 60)}"
        return all_faults(keys, f"{got}, expected {clean(expected.device_name, 60)}")
    if record.mode != ("official" if official else "local"):
        return all_faults(keys, f"graded in mode {record.mode}")
    found = {problem.id: problem for problem in record.problems}
    results, faults = [], {}
    for problem, key in keys.items():
        result = found.get(problem)
        why = _no_result(result, key) if result else "it is not in the record"
        if why or result is None:
            faults[key] = clean("; ".join(filter(None, (why, ending))), _WORDS)
            continue
        results.append(
            FileResult(
                key=key,
                result=result,
                mode=record.mode,
                seed=record.seed,
                environment=here,
                graded_at=now(),
            )
        )
    return Judged(tuple(results), faults)


def all_faults(keys: Mapping[str, Key], text: str) -> Judged:
    """Return that nothing of `keys` was graded, and why."""
    return Judged(faults=dict.fromkeys(keys.values(), clean(text, _WORDS)))


def refusal(outcome: GradingOutcome) -> str | None:
    """Return why the judge did not begin to grade; None if it did."""
    return _last_line(outcome) if outcome.exit_code == _USAGE and not outcome.record else None


def _last_line(outcome: GradingOutcome) -> str:
    lines = outcome.last_words.strip().splitlines()
    return clean(lines[-1], _WORDS).removeprefix("grader: ") if lines else "no message"


def _ending(outcome: GradingOutcome) -> str:
    """Say how a grading ended, if that was not in good order."""
    if outcome.exit_code is None:
        return f"the grading took longer than its limit ({outcome.seconds:.0f} s)"
    if outcome.exit_code < 0:
        return f"the grading was killed (signal {-outcome.exit_code})"
    if outcome.exit_code:
        return f"the grading ended with exit code {outcome.exit_code}: {_last_line(outcome)}"
    return ""


def _no_result(result: ProblemResult, key: Key) -> str | None:
    """Say why a problem of a record is no result; None if it is one."""
    if result.source_sha256 not in (None, key.sha256):
        return "other bytes were graded"
    parts = [(c.verdict, c.reason) for c in result.components.values()]
    parts += [(c.verdict, c.message.headline if c.message else None) for c in result.checks]
    parts.append((result.verdict, result.message.headline if result.message else None))
    for verdict, reason in parts:
        if reason == NOT_REACHED:
            return "it was not graded to its end"
    for verdict, reason in parts:
        if verdict is Verdict.INTERNAL and reason:
            return f"fault of the judge: {reason}"
        if verdict is Verdict.NOT_MEASURED and reason and reason.startswith(BUSY):
            return reason
    return "fault of the judge" if any(v is Verdict.INTERNAL for v, _ in parts) else None
