"""What a run of one problem changed since the run before it."""

from __future__ import annotations

import dataclasses

from grader.spec.grade_record import Points, ProblemResult, Verdict

_NOT_BROKEN = (Verdict.PASS, Verdict.SKIPPED, Verdict.NOT_MEASURED)
# One that does not end would use up, before the others, the time that such calls may take in all.
_NOT_FIRST = (*_NOT_BROKEN, Verdict.TIMEOUT)


@dataclasses.dataclass(frozen=True)
class Changes:
    """Ids of checks that pass now, fail now, and failed before too; the points before."""

    passes: tuple[str, ...]
    fails: tuple[str, ...]
    still: tuple[str, ...]
    before: Points | None


def changes(before: ProblemResult | None, now: ProblemResult) -> Changes:
    """Compare two runs; a file that could not be run has no checks to compare."""
    earlier = {} if before is None else {c.id: c.verdict for c in before.checks}
    broken = [c.id for c in now.checks if c.verdict not in _NOT_BROKEN]
    passes = [
        c.id
        for c in now.checks
        if c.verdict is Verdict.PASS and earlier.get(c.id, Verdict.PASS) is not Verdict.PASS
    ]
    was_broken = {id for id, verdict in earlier.items() if verdict not in _NOT_BROKEN}
    return Changes(
        tuple(passes),
        tuple(id for id in broken if id not in was_broken),
        tuple(id for id in broken if id in was_broken),
        None if before is None else before.points,
    )


def first_checks(result: ProblemResult | None, dependent: frozenset[str]) -> tuple[str, ...]:
    """Return the checks that go first in the next run: those that failed in `result`.

    Not so the `dependent` ones, which are judged by what came of earlier calls (what compiles, what
    refuses arguments), and not those that did not end.
    """
    if result is None or result.message is not None:
        return ()
    failed = [c.id for c in result.checks if c.verdict not in _NOT_FIRST]
    return tuple(id for id in failed if id not in dependent)
