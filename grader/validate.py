"""What values problem.toml may hold; each mistake is a ValueError: key, got, expected."""

from __future__ import annotations

from typing import Any


def one_of(name: str, got: str, expected: tuple[str, ...]) -> None:
    """Require one of a few words."""
    if got not in expected:
        raise ValueError(f"{name}: got {got!r}, expected one of {', '.join(expected)}")


def keys(where: str, table: Any, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    """Require a table with all of `required`, and nothing but these and `optional`."""
    lead = f"{where}: " if where else ""
    if not isinstance(table, dict):
        raise ValueError(f"{lead}got {table!r}, expected a table")
    missing = [name for name in required if name not in table]
    if missing:
        raise ValueError(f"{lead}{missing[0]}: got nothing, expected a value")
    unknown = [name for name in table if name not in required and name not in optional]
    if unknown:
        expected = ", ".join((*required, *optional))
        raise ValueError(f"{lead}{unknown[0]}: got an unknown key, expected one of {expected}")


def typed(name: str, got: Any, kind: type) -> Any:
    """Return `got` when it is a `kind`."""
    if not isinstance(got, kind):
        raise ValueError(f"{name}: got {got!r}, expected a {kind.__name__}")
    return got


def whole(name: str, got: Any, smallest: int) -> int:
    """Return `got` when it is a whole number from `smallest` on."""
    if not isinstance(got, int) or isinstance(got, bool) or got < smallest:
        raise ValueError(f"{name}: got {got!r}, expected a whole number >= {smallest}")
    return got


def positive(name: str, got: Any) -> float:
    """Return `got` when it is a finite number above 0."""
    number = float(got) if isinstance(got, (int, float)) else 0.0
    if not 0.0 < number < float("inf"):
        raise ValueError(f"{name}: got {got!r}, expected a number above 0")
    return number
