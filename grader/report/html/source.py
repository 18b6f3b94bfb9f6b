"""A submission's source for the page: highlighted, wrong lines marked, distant lines collapsed."""

from __future__ import annotations

import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import SimpleNamespace

from markupsafe import Markup, escape

from grader.source.steps import step_regions

_CONTEXT = 8  # lines above and below a marked one
_NEAR, _MOST_EXCERPT = 4, 160  # lines of an excerpt: on either side of a marked one, and in all
_LINE_LIMIT = 240
# As HTML. Nine model answers together take 0.35 MB; the page stays below 1 MB.
_MOST_BYTES = 70 * 1024
_NEWLINE = re.compile(r"\r\n|\r|\n")  # as Python counts lines
# Names, operators and blanks have no colour of their own: half of the page would be their tags.
_UNCOLOURED = re.compile(r'<span class="(?:n|nb|nn|bp|fm|vm|o|p|w|err)">([^<]*)</span>')
# Cc control, Cf format (bidirectional overrides), Cs surrogates, Co private, Cn unassigned, and
# separators of lines and paragraphs: shown by their code points, so that no line hides any text.
_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of the source; `notes` say what is wrong there."""

    number: int
    code: Markup
    notes: tuple[str, ...] = ()


def view(
    data: bytes, notes: Mapping[int, Sequence[str]], steps: Sequence[int] = ()
) -> SimpleNamespace:
    """Return the view of the file `data`, with `notes` by line number, and `steps` shown whole.

    Lines far from both are collapsed. Of a file that is too long, lines near notes have priority,
    and `left_out` counts the missing ones.
    """
    text = data.decode("utf-8-sig", "replace")
    raw = _rows(text)
    count = len(raw)
    around = [(n - _CONTEXT, n + _CONTEXT) for n in notes if 1 <= n <= count]
    whole = [region for step, region in step_regions(text).items() if step in steps]
    shown = {n for first, last in around + whole for n in range(first, last + 1)}
    shown &= set(range(1, count + 1))
    codes = _highlighted(raw)
    kept, room = set(), _MOST_BYTES
    near = sorted(shown, key=lambda n: min((abs(n - m) for m in notes), default=0))
    for number in [*near, *(n for n in range(1, count + 1) if n not in shown)]:
        room -= len(codes[number - 1].encode()) + 40
        if room < 0:
            break
        kept.add(number)
    lines = [Line(n, codes[n - 1], tuple(notes.get(n, ()))) for n in sorted(kept)]
    parts = _parts(lines, shown)
    return SimpleNamespace(parts=parts, num_lines=count, left_out=count - len(kept))


def _parts(lines: Iterable[Line], shown: set[int]) -> list[SimpleNamespace]:
    """Return runs of consecutive lines that are all `shown` or all collapsed."""
    count = itertools.count()
    runs = itertools.groupby(lines, lambda x: (x.number - next(count), x.number not in shown))
    return [SimpleNamespace(lines=list(part), folded=folded) for (_, folded), part in runs]


def excerpt(data: bytes, marked: Collection[int]) -> list[SimpleNamespace]:
    """Return the lines near `marked` ones, and those of all steps as far as there is room."""
    text = data.decode("utf-8-sig", "replace")
    raw = _rows(text)
    around = {n + step for n in marked for step in range(-_NEAR, _NEAR + 1)}
    steps = {n for first, last in step_regions(text).values() for n in range(first, last + 1)}
    shown = {n for n in (sorted(around) + sorted(steps))[:_MOST_EXCERPT] if 1 <= n <= len(raw)}
    codes = _highlighted(raw)
    return _parts((Line(n, codes[n - 1]) for n in sorted(shown)), shown)


def _rows(text: str) -> list[str]:
    """Return the lines of a text made visible, without blank ones at the end."""
    raw = [_visible(line) for line in _NEWLINE.split(text)]
    while len(raw) > 1 and not raw[-1].strip():
        raw.pop()
    return raw


def _visible(line: str) -> str:
    """Return a line, cut to the limit, with tabs expanded and unsafe characters as code points."""
    cut = len(line) > _LINE_LIMIT
    chars = []
    for char in line[:_LINE_LIMIT].rstrip():
        if char == "\t":
            chars.append("    ")
        elif unicodedata.category(char) in _UNSAFE:
            chars.append(f"\\u{ord(char):04x}")
        else:
            chars.append(char)
    return "".join(chars) + (" [...]" if cut else "")


def _highlighted(lines: Sequence[str]) -> list[Markup]:
    """Return each line as HTML, without colours where the file is too long for them."""
    if sum(map(len, lines)) > _MOST_BYTES:
        return [escape(line) for line in lines]
    # A late import: nothing else needs Pygments.
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    lexer = PythonLexer(stripnl=False, ensurenl=False)
    text = highlight("\n".join(lines), lexer, HtmlFormatter(nowrap=True))
    found = [Markup(line) for line in _UNCOLOURED.sub(r"\1", text).split("\n")]
    found += [Markup("")] * (len(lines) - len(found))
    return found[: len(lines)]
