"""Requests for another look: regrade.md, which a student packs with the answers.

A heading with its id names a problem, what stands below it is the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from grader.base.text import clean
from grader.spec.problem import problem_ids

NAME = "regrade.md"
MOST = 2000  # characters of a reason
_HEADING = re.compile(r"^#{1,6}[ \t]*[`*]{0,3}(p\d\d)\b.*$", re.MULTILINE | re.IGNORECASE)


def found(data: bytes | None, say: Callable[[str], None]) -> dict[str, str]:
    """Return the reasons by problem, none for None; pass notes on what cannot be used to `say`.

    What a student writes is cleaned text of at most MOST characters.
    """
    if data is None:
        return {}
    known = problem_ids()
    parts = _HEADING.split(data.decode("utf-8", "replace"))
    reasons: dict[str, str] = {}
    for name, text in zip(map(str.lower, parts[1::2]), parts[2::2], strict=True):
        if name not in known:
            say(f"{NAME} asks for {name}, which is no problem here")
        elif reason := clean(text, MOST):
            reasons[name] = reason
    if not reasons:
        say(f"{NAME} has no request: expected a heading `# {known[0]}`, the reason below it")
    return reasons
