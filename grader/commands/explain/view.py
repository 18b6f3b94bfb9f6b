"""A page of docs/errors as text for the terminal."""

from __future__ import annotations

import re

from grader.commands.hint.view import markdown
from grader.report.cause_pages import Explanation

_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
# The target of a link means something in a browser alone; the terminal shows its text.
_LINK = re.compile(r"\[([^\]\n]+)\]\([^)\n]+\)")
_TEST = re.compile(r"^    pytest problems/(p\d\d) .*\n", re.MULTILINE)


def render(page: Explanation, *, width: int = 80, color: bool = False) -> str:
    """Return the page at `width` columns, with the commands of its problem where that is known."""
    text = _LINK.sub(r"\1", _COMMENT.sub("", page.text))
    if page.problem is not None:
        text = _TEST.sub(lambda test: test[0] if test[1] == page.problem else "", text)
        text = text.replace("P=pNN", f"P={page.problem}")
    elif "P=pNN" in text:
        text += "\n\n`pNN` stands for the problem; with `P=p04` the commands name it.\n"
    if page.check is not None:
        command = f"pytest problems/{page.problem} -x -k {page.check}"
        text += f"\n\nHere it is the check `{page.check}` of {page.problem}:\n\n    {command}\n"
    return "\n".join(markdown(text, width, color=color)) + "\n"
