"""The hints of a problem, from its HINTS.md: per step a nudge, then the answer in words, in parts.

A part is a paragraph, so that a student can take half an answer; one that ends in a colon goes with
what follows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from grader.spec.problem import ManifestError, Problem

FILE = "HINTS.md"
_STEP = re.compile(r"^## Step (\d+): .+$", re.MULTILINE)
_FORMULA = re.compile(r"\$([^$\n]+)\$")
_WORDS = {r"\infty": "infinity", r"\delta": "delta", r"\times": "x", r"\cdot": "*"}


def hints_of(problem: Problem) -> Mapping[int, tuple[str, ...]]:
    """Return the hints of each step, in Markdown, the nudge first.

    Raises:
        ManifestError: HINTS.md is missing, or has none for a step.
    """
    path = Path(problem.folder) / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ManifestError(f"{path}: {why}; copy the file from the release again") from None
    parts = _STEP.split(text)
    found = {
        int(number): tuple(_hints(section))
        for number, section in zip(parts[1::2], parts[2::2], strict=True)
    }
    for step in range(1, len(problem.steps) + 1):
        if not found.get(step):
            raise ManifestError(f"{path}: got no hint for step {step}, expected one or more")
    return found


def plain_formulas(text: str) -> str:
    """Return Markdown with its short TeX formulas as a terminal can show them."""

    def plain(match: re.Match[str]) -> str:
        formula = match[1]
        for tex, word in _WORDS.items():
            formula = formula.replace(tex, word)
        return re.sub(r"\^\{([^{}]*)\}", _exponent, formula)

    return _FORMULA.sub(plain, text)


def _exponent(match: re.Match[str]) -> str:
    return f"^{match[1]}" if match[1].isalnum() else f"^({match[1]})"


def _hints(section: str) -> list[str]:
    hints: list[str] = []
    goes_on = False
    for block in re.split(r"\n\s*\n", section.strip()):
        if block.startswith("### "):
            goes_on = False
            continue
        if goes_on or (hints and block.startswith(("- ", "    ", "```", "$$", "|"))):
            hints[-1] += f"\n\n{block}"
        else:
            hints.append(block)
        goes_on = block.endswith(":")
    return hints
