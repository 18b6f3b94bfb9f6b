"""Whether a file has the entry point that is asked for, and how it differs from that."""

from __future__ import annotations

import ast
import unicodedata


def look_alike(got: str, expected: str) -> str | None:
    """Say which character of a name only looks like the one expected, None where none does."""
    if len(got) != len(expected) or got.isascii():
        return None
    pairs = [(a, b) for a, b in zip(got, expected, strict=True) if a != b]
    if any(a.isascii() for a, _ in pairs):
        return None
    char, wanted = pairs[0]
    name = unicodedata.name(char, "a character without a name").capitalize()
    return f"the {char} in {got} is U+{ord(char):04X} ({name}), expected {wanted}"


def binds(tree: ast.Module, name: str) -> bool:
    """Whether a file gives a name a value, by whatever means."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.alias) and (node.asname or node.name) in (name, "*"):
            return True
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return True
    return False


def signature_difference(entry: ast.FunctionDef | ast.AsyncFunctionDef, expected: str) -> str:
    """Return how the entry point's parameters differ from problem.toml's, or an empty string."""
    wanted = ast.parse(f"def {expected}: ...").body[0].args
    got = entry.args
    if isinstance(entry, ast.AsyncFunctionDef):
        return f"got an async function, expected def {expected}"
    if got.vararg or got.kwarg:
        return ""  # accepts anything; the worker finds out
    if got.posonlyargs:
        names = ", ".join(a.arg for a in got.posonlyargs)
        return f"{names}: got positional-only, expected {expected}"
    got_positional = [a.arg for a in got.args]
    want_positional = [a.arg for a in wanted.args]
    optional = set(got_positional[len(got_positional) - len(got.defaults) :])
    optional |= {a.arg for a, d in zip(got.kwonlyargs, got.kw_defaults, strict=True) if d}
    want_optional = {a.arg for a, d in zip(wanted.kwonlyargs, wanted.kw_defaults, strict=True) if d}
    if got_positional[: len(want_positional)] != want_positional:
        return f"got ({', '.join(got_positional)}, ...), expected {expected}"
    have = set(got_positional) | {a.arg for a in got.kwonlyargs}
    missing = [a.arg for a in wanted.kwonlyargs if a.arg not in have]
    if missing:
        return f"missing {', '.join(missing)}, expected {expected}"
    names = set(want_positional) | {a.arg for a in wanted.kwonlyargs}
    required = [n for n in have if n not in names and n not in optional]
    required += [n for n in have if n in want_optional and n not in optional]
    if required:
        return f"{', '.join(sorted(required))} has no default, expected {expected}"
    return ""
