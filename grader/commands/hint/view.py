"""A hint as text for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markdown import Markdown

from grader.base.text import clean, plural, text_console, wrap
from grader.commands.hint.hints import FILE, plain_formulas
from grader.commands.hint.next_hint import Hint


def render(
    hint: Hint | None, notices: Sequence[str] = (), *, width: int = 80, color: bool = False
) -> str:
    """Return where the student is, the hint, and what to do after it."""
    lines = [row for notice in notices for row in wrap(clean(notice, 1000), width, "note: ")]
    if hint is None:
        lines.append("Every step has code and every test passes: no hint is left to give.")
        lines.append("next: make grade; docs/making-it-fast.md has more to try")
        return "\n".join(lines) + "\n"
    lines += _where(hint, width)
    if hint.text is not None:
        lines += ["", *markdown(plain_formulas(hint.text), width, color=color), ""]
    lines += _after(hint, width)
    return "\n".join(lines) + "\n"


def markdown(text: str, width: int, *, color: bool) -> list[str]:
    """Return Markdown as lines for a terminal."""
    console = text_console(width, color=color)
    console.print(Markdown(text, code_theme="ansi_dark" if color else "bw"))
    return [line.rstrip() for line in console.file.getvalue().strip("\n").splitlines()]


def _where(hint: Hint, width: int) -> list[str]:
    where, problem = hint.where, hint.where.problem
    if where.step is None:
        return wrap(f"{problem.id}: {clean(where.told)}", width, "", "    ")
    title = problem.steps[where.step - 1].title
    part = f", hint {hint.number} of {hint.count}" if hint.text is not None else ""
    lines = wrap(f"{problem.id} step {where.step}: {title}{part}", width, "", "    ")
    if where.seen:
        lines += wrap(clean(where.seen), width, "  a test says: ")
    if where.check:
        why = f"it names no step; test_{where.check} fails, which this step turns green"
        lines += wrap(why, width, "  ")
    return lines


def _after(hint: Hint, width: int) -> list[str]:
    where, id = hint.where, hint.where.problem.id
    if where.step is None:
        told = "Hints belong to steps, and which step this is about is not known. "
        return wrap(f"{told}The whole message: make grade P={id}{_explain(hint)}", width)
    if hint.text is None:
        lines = wrap(f"All {hint.count} hints of this step were shown. Read on:", width)
        lines.append(f"  problems/{id}/README.md   step {where.step}, and the idea before it")
        lines.append(f"  problems/{id}/{FILE}    all hints of the problem")
        lines.append("  docs/glossary.md         the words")
        if where.cause:
            lines.append(f"  make explain ID={where.cause}")
        lines.append(f"To see the hints again: make hint P={id} RESTART=1")
        return lines
    more = f"the next one: make hint P={id}" if hint.number < hint.count else "it was the last one"
    taken = f"{plural(hint.taken, 'hint')} taken in {id}; hints cost no points; {more}"
    explained = [f"the cause that the test names: make explain ID={where.cause}"]
    return [*(explained if where.cause else []), *wrap(taken, width)]


def _explain(hint: Hint) -> str:
    return f"; the cause: make explain ID={hint.where.cause}" if hint.where.cause else ""
