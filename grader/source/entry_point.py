"""The entry point of a file: whether it is there, how it differs, and whether it is written yet."""

from __future__ import annotations

import ast
import unicodedata

from grader.base.functions import is_reached
from grader.source.steps import RAISE, code_of_steps
from grader.spec.problem import Problem


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


def raised_at(
    problem: Problem, tree: ast.Module, entry: ast.FunctionDef, text: str
) -> tuple[int, str] | None:
    """Return line and text of the NotImplementedError that every call raises, if there is one."""
    return _unconditional(entry) or _untouched(problem, tree, text)


def _unconditional(entry: ast.FunctionDef) -> tuple[int, str] | None:
    """Return line and text of a top-level `raise NotImplementedError` that no return precedes."""
    for statement in entry.body:
        if isinstance(statement, ast.Raise) and statement.exc is not None:
            call = statement.exc
            name = call.func if isinstance(call, ast.Call) else call
            if isinstance(name, ast.Name) and name.id == "NotImplementedError":
                args = call.args if isinstance(call, ast.Call) else []
                text = args[0].value if args and isinstance(args[0], ast.Constant) else ""
                return statement.lineno, text if isinstance(text, str) else ""
        if any(isinstance(n, (ast.Return, ast.Yield, ast.YieldFrom)) for n in ast.walk(statement)):
            return None
    return None


def _untouched(problem: Problem, tree: ast.Module, text: str) -> tuple[int, str] | None:
    """Return line and text of the `raise NotImplementedError` of a stub of which no step is done.

    None if a step is done, or if no entry point reaches that line: a student with a kernel of his
    own may have left the stub's lines in the file.
    """
    code = [line for lines in code_of_steps(text).values() for line in lines]
    raised = [(number, line) for number, line in code if line.startswith(RAISE)]
    own = [number for number, line in code if not line.startswith((RAISE, '"', ")"))]
    if not raised or own:
        return None
    entries = {problem.entry, *([problem.bridge.entry] if problem.bridge else [])}
    number = raised[0][0]
    return (number, "") if is_reached(tree, entries, number) else None
