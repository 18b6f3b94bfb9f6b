"""Plain text that is safe on a terminal: cleaning hostile strings, wrapping, numbers with units.

Whatever a submission printed, raised or named may hold escape sequences, bidirectional overrides
or a million characters. Every string of a record goes through `clean` or `clean_lines` first.
"""

from __future__ import annotations

import io
import math
import re
import unicodedata
from collections.abc import Container, Iterable
from typing import Any

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.table import Table
from rich.text import Text

LINE_LIMIT = 300
OUTPUT_LINES = 10
OUTPUT_LIMIT = 160
MAX_COMBINING = 2
CUT = " [...]"

# Whole sequences go, so that "\x1b[31m" does not leave "[31m" behind: CSI, the string sequences
# (OSC, DCS, SOS, PM, APC) up to their terminator, then ESC with one more character.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_LINE_BREAKS = re.compile(r"\r\n|[\n\r\v\f\x85\u2028\u2029]")
# Cc control, Cf format (bidirectional overrides, zero width, tags), Cs lone surrogates,
# Co private use, Cn unassigned.
_UNSAFE_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn"}


def finite(value: Any) -> float | None:
    """Return `value` as a finite float; None when it is missing, not a number, NaN or infinite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def clean(text: Any, limit: int = LINE_LIMIT) -> str:
    """Return `text` as one line of at most `limit` characters that no terminal interprets."""
    raw, cut = _bounded(text, 8 * limit)
    line = _printable(_LINE_BREAKS.sub(" ", _ESCAPES.sub("", raw))).strip()
    return _shorten(line, limit, cut)


def clean_lines(text: Any, lines: int = OUTPUT_LINES, limit: int = OUTPUT_LIMIT) -> list[str]:
    """Return the last `lines` lines of `text`, each cleaned, without blank lines at the ends."""
    raw = str(text)[-8 * limit * lines :]
    rows = [_printable(row).rstrip() for row in _LINE_BREAKS.split(_ESCAPES.sub("", raw))]
    while rows and not rows[-1]:
        rows.pop()
    rows = rows[-lines:]
    while rows and not rows[0]:
        rows.pop(0)
    return [_shorten(row, limit, False) for row in rows]


def _bounded(text: Any, limit: int) -> tuple[str, bool]:
    raw = "" if text is None else str(text)
    return raw[:limit], len(raw) > limit


def _printable(text: str) -> str:
    kept, combining = [], 0
    for char in text:
        if char == "\t":
            char = " "
        category = unicodedata.category(char)
        if category in _UNSAFE_CATEGORIES:
            continue
        # A pile of combining marks climbs over the lines above it.
        combining = combining + 1 if category in ("Mn", "Me") else 0
        if combining <= MAX_COMBINING:
            kept.append(" " if category == "Zs" else char)
    return "".join(kept)


def _shorten(line: str, limit: int, cut: bool) -> str:
    if len(line) > limit or cut:
        return line[: max(limit - len(CUT), 0)].rstrip() + CUT
    return line


def wrap(text: str, width: int, first: str = "", rest: str | None = None) -> list[str]:
    """Wrap one line to `width` cells; `first` leads it, `rest` (default blanks) the others."""
    rest = " " * cell_len(first) if rest is None else rest
    room = max(width - max(cell_len(first), cell_len(rest)), 8)
    lines, current = [], ""
    for token in re.findall(r" +|[^ ]+", text):
        if cell_len(current) + cell_len(token) <= room:
            current += token
            continue
        if current.strip():
            lines.append(current.rstrip())
        current = ""
        if token.isspace():
            continue
        *whole, current = chop_cells(token, room)
        lines.extend(whole)
    if current.strip() or not lines:
        lines.append(current.rstrip())
    return [(rest if i else first) + line for i, line in enumerate(lines)]


def fit(text: str, width: int) -> str:
    """Cut `text` to `width` cells, with ".." where something was cut, and pad it with blanks."""
    if cell_len(text) > width:
        text = chop_cells(text, max(width - 2, 1))[0].rstrip() + ".."
    return text + " " * max(width - cell_len(text), 0)


def points(value: Any) -> str:
    """Return points with one decimal unless it is 0: 6, 2.5; "?" for what is not a number."""
    number = finite(value)
    return "?" if number is None else f"{number:.1f}".removesuffix(".0")


def milliseconds(value: Any) -> str | None:
    """Return a time given in milliseconds with three digits; None for what is not a number."""
    number = finite(value)
    if number is None:
        return None
    return f"{number / 1000:.3g} s" if abs(number) >= 1000 else f"{number:.3g} ms"


def times(ratio: float | None, digits: int) -> str:
    """Return a ratio as a factor, 41.2x; blank for None."""
    if ratio is None:
        return ""
    return f"{ratio:.{digits}f}x" if abs(ratio) < 1e6 else f"{ratio:.1e}x"


def byte_size(value: Any) -> str | None:
    """Return a number of bytes in binary units; None for what is not a number."""
    number = finite(value)
    if number is None:
        return None
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            break
        number /= 1024
    else:
        unit = "TiB"
    if abs(number) >= 10_000:
        return f"{number:.3g} {unit}"
    digits = 0 if unit == "B" or abs(number) >= 100 else 1
    return f"{number:.{digits}f} {unit}"


def plural(count: int, noun: str) -> str:
    """Return "1 check", "2 checks"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def styled(parts: Iterable[Any], width: int, *, color: bool) -> str:
    """Render parts: texts, (text, style) pairs and tables, each text in a line of any length."""
    console = text_console(width, color=color)
    for part in parts:
        part = (part,) if isinstance(part, str) else part
        part = Text(*part) if isinstance(part, tuple) else part
        console.print(part, soft_wrap=isinstance(part, Text))
    return "".join(line.rstrip() + "\n" for line in console.file.getvalue().splitlines())


def plain_table(
    header: Iterable[str], rows: Iterable[Iterable[str]], left: Container[str] = (), gap: int = 2
) -> Table:
    """Return a table without rules; columns that are not in `left` are aligned to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for name in header:
        side = "left" if name in left else "right"
        table.add_column(name, justify=side, no_wrap=True, header_style="")
    for row in rows:
        table.add_row(*row)
    return table


def text_console(width: int, *, color: bool) -> Console:
    """Return a console that writes into a `StringIO` and does not depend on the terminal."""
    return Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        legacy_windows=False,
        emoji=False,
        highlight=False,
        markup=False,
        _environ={},
    )


def markdown(text: str, width: int, *, color: bool) -> list[str]:
    """Return Markdown as lines for a terminal."""
    from rich.markdown import Markdown  # it loads Pygments

    console = text_console(width, color=color)
    console.print(Markdown(text, code_theme="ansi_dark" if color else "bw"))
    return [line.rstrip() for line in console.file.getvalue().strip("\n").splitlines()]
