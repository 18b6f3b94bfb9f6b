"""Finds the mistake behind an error: a step makes a wrong shape, no tensor or nothing at all, a
pointer has become a number, or a gradient has another shape than its input.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from pydantic import TypeAdapter, ValidationError

from grader.checks.outcome import CaseOutcome
from grader.source.feeding import Spot
from grader.source.functions import lines_setting
from grader.source.origins import lost_pointer, names_read, returned_from
from grader.source.submission import Source
from grader.spec.problem import Problem
from grader.spec.protocol import Reply

_Size = int | list[int] | str  # a str says what stands in place of a tensor
_Functions = TypeAdapter(list[tuple[int, dict[str, _Size]]])  # their lines, and what names hold
_UNSET = re.compile(r"UnboundLocalError|NameError")
_BOUNDS = "For loop bounds and step must all be ints"
_OF_LAUNCH = {"index out of range": "launch+index", "`if` conditionals": "launch"}
_GRADIENT = re.compile(r"returned an invalid gradient at index (\d+)")


def of_error(
    failure: CaseOutcome, reply: Reply, problem: Problem, source: Source
) -> CaseOutcome | None:
    """Return an outcome that blames the line behind an error, such as that of a wrong shape.

    None where all that the steps had made by then has the shapes that are due, or is not known.
    """
    lost = _of_pointer(failure, source) or _of_gradient(failure, source)
    lost = lost or _of_nothing(failure, source) or _of_launch(failure, source)
    if lost is not None:
        return lost
    try:
        functions = _Functions.validate_json(reply.shapes, strict=True)
    except ValidationError:  # none, or the submission has tampered with it
        return None
    for number, step in enumerate(problem.steps, start=1):
        for name, shape in step.shapes.items():
            for line, names in functions:
                made = source.set_before(line, name, number)
                got, due = names.get(name), _due(shape, names)
                headline, help = "", ""
                if made and isinstance(got, list) and due is not None and got != list(due):
                    headline = f"{name} has shape {_said(got)}, expected {_said(due)}"
                    help = f"step {number} says what {name} holds: which of its axes is another?"
                elif made and isinstance(got, str) and due:
                    headline = f"{name} is {got}, expected a tensor"
                    help = f"step {number} says what {name} holds"
                elif not made and ((isinstance(got, str) and due) or _is_unset(name, failure)):
                    own = source.step_at(failure.line) == number  # the step itself reads it
                    made = 0 if own else _first_line(source, number, line, name)
                    headline = f"{name} is not set in step {number}"
                    help = f"the code behind step {number} works with {name}: is it spelled so?"
                if made and headline:
                    return _instead(failure, headline, made, help)
    return None


def _instead(failure: CaseOutcome, headline: str, line: int, help: str) -> CaseOutcome:
    """Return a failure with the headline, line and help of its reason, which is at another line."""
    extent = f"line {failure.line} fails: {failure.headline}" if failure.line else failure.headline
    spot = Spot(line, located=True)
    return CaseOutcome(failure.verdict, headline, extent, line, help, spot)


def _is_unset(name: str, failure: CaseOutcome) -> bool:
    return bool(_UNSET.search(failure.headline)) and name in re.findall(r"\w+", failure.headline)


def _first_line(source: Source, step: int, line: int, name: str) -> int:
    """Return the first line of a step, 0 if it sets the name in the function at `line`."""
    lines = source.lines_of_step(step)
    sets = any(source.step_at(n) == step for n in lines_setting(source.tree, line, name))
    return lines[0] if lines and not sets else 0


def _of_nothing(failure: CaseOutcome, source: Source) -> CaseOutcome | None:
    """Say which name a step leaves at None, where a launch passes that to the line that fails."""
    if "'NoneType' object" not in failure.headline:
        return None
    passed = Spot(failure.line, part="launch")
    left = [source.left_as_given[n] for n in source.fed_by(passed) if n in source.left_as_given]
    if not left:
        return None
    step, name = left[0]
    help = f"set {name} in step {step}: the launch passes it to the kernel"
    found = _instead(failure, f"{name} is None: step {step} does not set it", failure.line, help)
    return dataclasses.replace(found, spot=passed)


def _of_launch(failure: CaseOutcome, source: Source) -> CaseOutcome | None:
    """Say that given code fails by what a launch passes: too few numbers, or no constant.

    Or that the bounds of a loop are no integers, wherever they are made.
    """
    if _BOUNDS in failure.headline:
        return dataclasses.replace(failure, spot=Spot(failure.line, part="bounds"))
    part = next((part for text, part in _OF_LAUNCH.items() if text in failure.headline), None)
    if part is None or source.step_at(failure.line) is not None:
        return None
    return dataclasses.replace(failure, spot=Spot(failure.line, part=part))


def _of_pointer(failure: CaseOutcome, source: Source) -> CaseOutcome | None:
    """Say where the pointer of a line became a number, or that a launch passes a number for it."""
    if "Unsupported ptr type" not in failure.headline or source.tree is None:
        return None
    lost = lost_pointer(source.tree, failure.line)
    if lost is None:
        passed = any("ptr" in name for name in names_read(source.tree, failure.line))
        spot = Spot(failure.line, located=not passed, part="launch" if passed else "")
        return dataclasses.replace(failure, spot=spot)
    line, name = lost
    help = "an address is a pointer plus offsets: `+=` adds the offsets and keeps the pointer"
    return _instead(failure, f"{name} is a number here, not a pointer", line, help)


def _of_gradient(failure: CaseOutcome, source: Source) -> CaseOutcome | None:
    """Say where a gradient is made that PyTorch refuses for its shape."""
    found = _GRADIENT.search(failure.headline)
    made = returned_from(source.tree, "backward", int(found[1])) if found and source.tree else None
    if made is None:
        return None
    line, name = made
    help = "a gradient has the shape of what it belongs to: over which axes is it summed?"
    found = _instead(failure, f"{name} has another shape than its input", line, help)
    return found if source.step_at(line) else dataclasses.replace(found, spot=Spot(line))


def of_return(failure: CaseOutcome, reply: Reply, source: Source, entry: str) -> CaseOutcome:
    """Return the failure of a wrong result, at the line of a step that makes it, if one does.

    That is the last line of the entry that sets the name of the output, if it is of a step.
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
