"""HTML pages of a class: one file each, without scripts, and nothing in them leads elsewhere.

Templates are in templates/. Whatever they show is cleaned and escaped, so that text of students is
text; the pages forbid a browser scripts and requests on top of that.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from grader.base.text import clean, clean_lines, milliseconds, plural, points

_LINE_LIMIT = 160


def page(template: str, **values: Any) -> str:
    """Return the page that a template makes of `values`."""
    return _environment().get_template(template).render(values)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("classroom"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_cleaned,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "points": points,
        "milliseconds": lambda value: milliseconds(value) or "",
        "lines": _lines,
        "verbatim": _verbatim,
        "width": _width,
    }
    environment.globals |= {"plural": plural}
    return environment


def _cleaned(value: Any) -> Any:
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _lines(rows: Sequence[str]) -> Markup:
    """Return rows for a <pre>."""
    return Markup("\n").join(_verbatim(row) for row in rows)


def _verbatim(row: str) -> Markup:
    """Return one line for a <pre>, with its indentation."""
    return escape("".join(clean_lines(row, 1, _LINE_LIMIT)))


def _width(count: float, of: float) -> str:
    """Return a share in percent, for the length of a bar."""
    return f"{100 * count / of:.1f}" if of else "0"
