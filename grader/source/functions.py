"""The functions of a submission: what they assign, and where they are called."""

from __future__ import annotations

import ast
import collections
import functools
from collections.abc import Iterator
from typing import NamedTuple

from grader.source.expressions import names_in, names_of, parameters_of
from grader.source.loops import function_at, nodes_of
from grader.spec.problem import GIVEN


def functions_of(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """Return the functions of a file, and those that it imports from `given`, by name."""
    found = {}
    for node in tree.body:
        path = GIVEN / f"{str(getattr(node, 'module', '')).rpartition('.')[2]}.py"
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("given."):
            if path.is_file():
                found |= _of_text(path.read_text("utf-8"))
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = node
    return found


@functools.lru_cache(32)
def _of_text(text: str) -> dict[str, ast.FunctionDef]:
    return functions_of(ast.parse(text))


def assigned_in(
    tree: ast.Module | None, function: ast.FunctionDef, name: str
) -> Iterator[tuple[int, ast.AST | None]]:
    """Yield the lines at which a function gives a name a value, each with what it is made of.

    Other methods of a class may change an argument of a method, such as PyTorch's ctx.
    """
    if tree is not None and name in parameters_of(function):
        classes = (n for n in tree.body if isinstance(n, ast.ClassDef) and function in n.body)
        for node in (n for c in classes for n in ast.walk(c) if isinstance(n, ast.stmt)):
            changed = [n for n in _changed(node) if isinstance(n, ast.Attribute)]
            if any(name in names_in(n) for n in changed):
                yield node.lineno, None
    for names, node in _assignments(function):
        if name in names:
            yield node.lineno, getattr(node, "value", None) or getattr(node, "iter", None)


@functools.lru_cache(64)
def _assignments(function: ast.FunctionDef) -> list[tuple[set[str], ast.AST]]:
    """Return what gives names a value in a function, each with those names."""
    nodes = [n for n in nodes_of(function) if not isinstance(n, ast.comprehension)]
    made = ((n, getattr(n, "targets", None) or [getattr(n, "target", None)]) for n in nodes)
    return [({*names_of(target)}, n) for n, targets in made for target in targets if target]


def _changed(node: ast.stmt) -> list[ast.AST]:
    """Return what a statement assigns, or the method that it calls for its effect."""
    called = getattr(node.value, "func", None) if isinstance(node, ast.Expr) else None
    return [*getattr(node, "targets", ()), *([called] if called else ())]


def values_of(function: ast.FunctionDef) -> dict[str, ast.AST]:
    """Return the values of those names that a function assigns once."""
    assigns = [n for n in ast.walk(function) if isinstance(n, ast.Assign)]
    names = [(name, n.value) for n in assigns for name in names_of(n.targets[0])]
    counts = collections.Counter(name for name, _ in names)
    return {name: value for name, value in names if counts[name] == 1}


def calls_of(tree: ast.Module, name: str) -> Iterator[tuple[ast.FunctionDef, ast.Call]]:
    """Yield the calls and launches of a function, each with the function that makes it."""
    for node in nodes_of(tree, ast.Call):
        called = node.func.value if isinstance(node.func, ast.Subscript) else node.func
        if isinstance(called, ast.Name) and called.id == name:
            caller = function_at(tree, node.lineno)
            if caller is not None:
                yield caller, node


def argument_of(call: ast.Call, index: int, name: str) -> ast.AST | None:
    """Return what a call passes for a parameter, which has an index and a name."""
    if index < len(call.args) and not any(isinstance(a, ast.Starred) for a in call.args[:index]):
        return call.args[index]
    return next((k.value for k in call.keywords if k.arg == name), None)


class Exchanged(NamedTuple):
    """A call of a function in which `one` is passed as `other`, and `other` as `one`."""

    line: int
    function: str
    one: str
    other: str


def exchanged(tree: ast.Module) -> Exchanged | None:
    """Return the two arguments that a file passes in each other's places, if it does so once.

    Each is a plain name, that of the parameter which the other is passed for. A function that is
    also called in the order of its parameters may be meant for both orders.
    """
    functions = functions_of(tree)
    found, straight = list[Exchanged](), set[str]()
    for call in nodes_of(tree, ast.Call):
        called = call.func.value if isinstance(call.func, ast.Subscript) else call.func
        function = functions.get(getattr(called, "id", ""))
        if function is None or any(isinstance(a, ast.Starred) for a in call.args):
            continue
        passed = [*zip(parameters_of(function), call.args, strict=False)]
        passed += [(k.arg or "", k.value) for k in call.keywords]
        named = {name: a for name, a in passed if isinstance(a, ast.Name)}
        places = {name: place for place, name in enumerate(named)}
        pairs = [
            Exchanged(a.lineno, function.name, one, a.id)
            for one, a in named.items()
            if places[one] < places.get(a.id, 0) and named[a.id].id == one
        ]
        found += pairs
        straight |= set() if pairs else {function.name}
    return found[0] if len(found) == 1 and found[0].function not in straight else None


def altering(tree: ast.Module, name: str) -> int:
    """Return the only line that sets `name`, or passes something else as it; 0 if none or several.

    What a starred argument passes is not known.
    """
    lines = {n for f in nodes_of(tree, ast.FunctionDef) for n, _ in assigned_in(None, f, name)}
    for function in functions_of(tree).values():
        if name in (parameters := parameters_of(function)):
            calls = [call for _, call in calls_of(tree, function.name)]
            values = (argument_of(call, parameters.index(name), name) for call in calls)
            seen = (v for v in values if v is not None and not isinstance(v, ast.Starred))
            lines |= {v.lineno for v in seen if getattr(v, "id", "") != name}
    return lines.pop() if len(lines) == 1 else 0


def lines_setting(tree: ast.Module | None, line: int, name: str) -> list[int]:
    """Return the lines of the function at a line that give a name a value."""
    function = function_at(tree, line) if tree is not None else None
    return [n for n, _ in assigned_in(None, function, name)] if function is not None else []


def functions_called(tree: ast.Module, line: int) -> list[int]:
    """Return the first lines of the functions of the file that a line calls."""
    calls = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call) and n.lineno == line]
    names = {n.id for n in calls if isinstance(n, ast.Name)}
    return [n.lineno for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in names]


def bare_loads(tree: ast.Module) -> dict[int, str]:
    """Return the lines of loads that leave lanes undefined, each with the argument that it lacks.

    They turn lanes off, by a mask or a block pointer's boundary_check, and give them no value.
    """
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    loads = [n for n in calls if getattr(n.func, "attr", "") == "load" and n.args]
    named = [(n.lineno, len(n.args), {k.arg for k in n.keywords}) for n in loads]
    masked = [(n, m > 2 or "other" in k) for n, m, k in named if m > 1 or "mask" in k]
    checked = [(n, "padding_option" in k) for n, _, k in named if "boundary_check" in k]
    found = {n: "padding_option" for n, is_given in checked if not is_given}
    return found | {n: "other" for n, is_given in masked if not is_given}
