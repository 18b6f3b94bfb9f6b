"""The steps that are marked in a file: their lines, which of them have code, and what is given."""

from __future__ import annotations

import functools
import hashlib
import re

_BEGIN = re.compile(r"^\s*# >>> step (\d{1,3})\b")
_END = re.compile(r"^\s*# <<< step (\d{1,3})\b")
_PASS = re.compile(r"pass\s*(#.*)?")
_UNTIL = re.compile(r"#.*\b[Uu]ntil step (\d{1,3})\b")
RAISE = "raise NotImplementedError"


def lines_of_text(text: str) -> list[str]:
    """Split as Python counts lines: a form feed or U+2028 ends none."""
    return re.split(r"\r\n|\r|\n", text)


@functools.lru_cache(16)
def step_regions(text: str) -> dict[int, tuple[int, int]]:
    """Return for each marked step its first and last line (1-based, the markers' own lines)."""
    regions: dict[int, tuple[int, int]] = {}
    begin: dict[int, int] = {}
    for number, line in enumerate(lines_of_text(text), start=1):
        if match := _BEGIN.match(line):
            begin[int(match[1])] = number
        elif (match := _END.match(line)) and int(match[1]) in begin:
            regions[int(match[1])] = (begin[int(match[1])], number)
    return regions


def given_digest(text: str) -> str:
    """Return a hash of the code outside of all steps, without comments and indentation."""
    steps = {n for first, last in step_regions(text).values() for n in range(first, last + 1)}
    code = (line.strip() for n, line in enumerate(lines_of_text(text), start=1) if n not in steps)
    given = "\n".join(line for line in code if line and not line.startswith("#"))
    return hashlib.sha256(given.encode("utf-8", "replace")).hexdigest()[:16]


def steps_begun(text: str) -> tuple[int, ...]:
    """Return the marked steps that hold code of their own, which no step of a stub does."""
    code = code_of_steps(text)
    return tuple(n for n, lines in code.items() if lines and not lines[0][1].startswith(RAISE))


def first_empty_step(text: str) -> int | None:
    """Return the first step whose region holds no code but a NotImplementedError, if any."""
    for step, code in code_of_steps(text).items():
        if not code or code[0][1].startswith(RAISE):
            return step
    return None


def code_of_steps(text: str) -> dict[int, list[tuple[int, str]]]:
    """Return for each step, in order, number and text of its lines of code."""
    lines, found = lines_of_text(text), {}
    for step, (first, last) in sorted(step_regions(text).items()):
        inside = ((n, lines[n - 1].strip()) for n in range(first + 1, last))
        found[step] = [
            (n, line)
            for n, line in inside
            if line and not line.startswith("#") and not _PASS.fullmatch(line)
        ]
    return found


def defaults_of_steps(text: str) -> dict[int, int]:
    """Return the given lines that stand in for a step until it is written: line -> step.

    Those from a comment that says "until step 3" to the marker of that step, and the line before a
    marker, if it sets None or the step has no code.
    """
    code, lines, found = code_of_steps(text), lines_of_text(text), {}
    for step, (first, _) in step_regions(text).items():
        begin = first - 1
        while begin and not _BEGIN.match(lines[begin - 1]) and not _END.match(lines[begin - 1]):
            match = _UNTIL.search(lines[begin - 1])
            if match and int(match[1]) == step:
                found |= dict.fromkeys(range(begin, first), step)
            begin -= 1
        if not code[step] or lines[first - 2].endswith("= None"):
            found[first - 1] = step
    return found
