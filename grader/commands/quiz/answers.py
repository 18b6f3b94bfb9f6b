"""Parses what the user typed, and compares it with the answer.

Numbers are read as people write them: 5, 5.0, 5e0, 1/3, 2^20, 2.1 x 10^6, 49.8 %, 2,097,152 or
2 097 152, with a unit after them or none. A unit is converted where that is possible.
"""

from __future__ import annotations

import math
import re

from grader.commands.quiz.questions import Choice, Number

EXAMPLES = "a number such as 5, 0.12, 1/3, 49.8 % or 2,097,152"
LONGEST = 60

_DIGITS = r"[+-]?(?:[0-9]{1,3}(?:[ ,_'][0-9]{3})+(?![0-9])|[0-9]+)?(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?"
_SHAPE = re.compile(rf"({_DIGITS})(?:\s*(/|\^|\*\*)\s*({_DIGITS}))?\s*(.*)")
_TIMES_TEN = re.compile(r"\s*[x*\u00d7]\s*10\s*(?:\^|\*\*)\s*([+-]?[0-9]+)")
_ALIKE = str.maketrans({"\u2212": "-", "\u2009": " ", "\u202f": " ", "\u00a0": " "})
_BINARY = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTES = {"b": 1, "byte": 1, "bytes": 1} | _BINARY | _DECIMAL
_SCALES = {"k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6, "bn": 1e9, "billion": 1e9}
_TIMES = ("times", "time", "x", "\u00d7", "fold", "-fold")


class Unreadable(Exception):
    """The text cannot be parsed as an answer; the message says got and expected."""


def letter(question: Choice, typed: str) -> str:
    """Return the letter of the option that was typed: b, B, b) and (b) are all b."""
    found = typed.strip().strip("().").lower()
    if found not in question.lettered:
        raise Unreadable(f"got {typed.strip()!r}, expected one of {', '.join(question.lettered)}")
    return found


def is_right(question: Number, typed: str) -> bool:
    """Whether the typed number is within the tolerance, in any reading of its unit."""
    distances = (abs(value - question.answer) for value in readings(typed, question.unit))
    # The factor absorbs rounding where a typed number lies exactly on the edge of the tolerance.
    return min(distances) <= question.tolerance * (1 + 1e-9)


def readings(typed: str, unit: str) -> tuple[float, ...]:
    """Return the values in `unit` that `typed` may mean.

    There are several where usage differs: MB may be 2^20 bytes, and where percent are expected a
    share may be written as 0.5.
    """
    text = _TIMES_TEN.sub(r"e\1", typed.translate(_ALIKE).strip().lower()).lstrip("~=\u2248 ")
    shape = _SHAPE.fullmatch(text) if len(text) <= LONGEST else None
    if shape is None:
        raise Unreadable(f"got {typed.strip()!r}, expected {EXAMPLES}")
    first, operator, second, suffix = shape.groups()
    try:
        value = _number(first)
        if operator == "/":
            value /= _number(second)
        elif operator:
            value **= _number(second)
    except (ValueError, ArithmeticError):
        value = math.nan
    if isinstance(value, complex) or not math.isfinite(value):
        raise Unreadable(f"got {typed.strip()!r}, expected {EXAMPLES}")
    factors = _factors(suffix.strip().rstrip("."), unit)
    if factors is None:
        after = f"{unit!r} or nothing" if unit else "nothing"
        raise Unreadable(f"got {suffix.strip()!r} after the number, expected {after}")
    return tuple(value * factor for factor in factors)


def _number(text: str) -> float:
    return float(re.sub(r"[ ,_']", "", text))


def _factors(suffix: str, unit: str) -> tuple[float, ...] | None:
    """Return the factors that may convert a number with `suffix` to `unit`; None if none does."""
    wanted = unit.lower()
    if suffix == wanted or (suffix and suffix == wanted.removesuffix("s")):
        return (1,)
    if wanted in _BYTES:
        if suffix == "":
            return (1,)
        sizes = [_BYTES[suffix]] if suffix in _BYTES else []
        if suffix in _DECIMAL:
            sizes.append(_BINARY[suffix[0] + "ib"])
        return tuple(size / _BYTES[wanted] for size in sizes) or None
    if suffix in ("%", "percent"):
        return (1,) if wanted == "%" else (0.01,)
    if suffix == "":
        return (1, 100) if wanted == "%" else (1,)
    if wanted == "times" and suffix in _TIMES:
        return (1,)
    scale, _, rest = suffix.partition(" ")
    if scale in _SCALES and rest in ("", wanted):
        return (_SCALES[scale],)
    return None
