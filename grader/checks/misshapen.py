"""What has another shape than its step asks for, when a call raised: there the mistake lies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from pydantic import TypeAdapter, ValidationError

from grader.checks.outcome import CaseOutcome
from grader.source.feeding import Spot
from grader.source.submission import Source
from grader.spec.problem import Problem
from grader.spec.protocol import Reply

_Size = int | list[int]
_Functions = TypeAdapter(list[tuple[int, dict[str, _Size]]])  # their lines, and what names hold


def of_error(
    failure: CaseOutcome, reply: Reply, problem: Problem, source: Source
) -> CaseOutcome | None:
    """Return what an error comes to if a step made a tensor of another shape, of these the first.

    None where all that the steps had made by then has the shapes that are due, or is not known.
    """
    try:
        functions = _Functions.validate_json(reply.shapes, strict=True)
    except ValidationError:  # none, or the submission has tampered with it
        return None
    for number, step in enumerate(problem.steps, start=1):
        for name, shape in step.shapes.items():
            for line, names in functions:
                made = source.set_before(line, name, number)
                got, due = names.get(name), _due(shape, names)
                if made and isinstance(got, list) and due is not None and got != list(due):
                    headline = f"{name} has shape {_said(got)}, expected {_said(due)}"
                    return CaseOutcome(
                        failure.verdict,
                        headline,
                        f"line {failure.line} fails: {failure.headline}",
                        made,
                        f"step {number} says what {name} holds: which of its axes is another?",
                        Spot(made, located=True),
                    )
    return None


def of_return(failure: CaseOutcome, reply: Reply, source: Source, entry: str) -> CaseOutcome:
    """Return what a wrong result comes to: where the step is at fault that makes it, its line.

    That is the last line of the entry that sets the name of the output, where it is of a step.
    """
    line = source.set_in(entry, reply.text.partition(":")[0])
    if not line or source.step_at(line) is None:
        return failure
    return dataclasses.replace(failure, line=line, spot=Spot(line, located=True))


def _due(shape: str, names: Mapping[str, _Size]) -> tuple[int, ...] | None:
    """Return the sizes that problem.toml asks for; None where a name in them is not known."""
    try:
        return tuple(eval(shape, {"__builtins__": {}}, names))  # the set's own text, of integers
    except (NameError, TypeError, IndexError):
        return None


def _said(sizes: Sequence[int]) -> str:
    return f"({', '.join(map(str, sizes))}{',' * (len(sizes) == 1)})"
