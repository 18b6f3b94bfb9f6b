"""A page of docs/errors as text for the terminal."""

from __future__ import annotations

import re

from grader.desk.explain_command import Explanation
from grader.render.hint import markdown

_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
# The target of a link means something in a browser alone; the terminal shows its text.
_LINK = re.compile(r"\[([^\]\n]+)\]\([^)\n]+\)")


def render(page: Explanation, *, width: int = 80, color: bool = False) -> str:
    """Return the page at `width` columns."""
    text = _LINK.sub(r"\1", _COMMENT.sub("", page.text))
    grade = f"make grade P={page.problem} X=1"
    if page.check is not None:
        command = f"pytest problems/{page.problem} -x -k {page.check}"
        text += f"\n\nHere it is the check `{page.check}` of {page.problem}:\n\n    {command}\n"
    elif page.problem is not None and grade not in text:
        text += f"\n\nIn {page.problem}:\n\n    {grade}\n"
    return "\n".join(markdown(text, width, color=color)) + "\n"
