"""Which lines make what a line works with: through assignments, and arguments of calls.

A mistake often shows in a line that was given: a loop over tiles whose bounds a step computes, a
load by a pointer that one moves.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from grader.source.loops import FUNCTIONS, lines_of

_MOST = 400  # names that are followed
_COMPOUND = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With)


def lines_feeding(tree: ast.Module, line: int, ends: Callable[[int], bool]) -> set[int]:
    """Return the lines on which a line depends and for which `ends` is true.

    What one that assigns depends on in its turn is not followed; what one that calls hands on is.
    """
    found: set[int] = set()
    inner = _function_at(tree, line)
    if inner is None:
        return found
    waiting = [(inner, name) for name in _used_at(inner, line)]
    seen = set(waiting)
    while waiting and len(seen) < _MOST:
        function, name = waiting.pop()
        more: list[tuple[ast.FunctionDef, str]] = []
        for number, value in _assigned(function, name):
            if ends(number):
                found.add(number)
            elif value is not None:
                more += [(function, used) for used in _names(value)]
        if name in (parameters := [a.arg for a in _arguments(function)]):
            for caller, call in _calls(tree, function.name):
                value = _argument(call, parameters.index(name), name)
                if value is not None:
                    found |= {call.lineno} if ends(call.lineno) else set()
                    more += [(caller, used) for used in _names(value)]
        waiting += [place for place in more if place not in seen]
        seen.update(more)
    return found


def _function_at(tree: ast.Module, line: int) -> ast.FunctionDef | None:
    around = [n for n in ast.walk(tree) if isinstance(n, FUNCTIONS) and line in lines_of(n)]
    return max(around, key=lambda n: n.lineno, default=None)


def _used_at(function: ast.FunctionDef, line: int) -> set[str]:
    """Return the names that the innermost statement at a line reads, of a loop its head's."""
    around = [n for n in ast.walk(function) if isinstance(n, ast.stmt) and line in lines_of(n)]
    inner = max(around, key=lambda n: (n.lineno, -(n.end_lineno or n.lineno)))
    if isinstance(inner, (ast.For, ast.AsyncFor)):
        return _names(inner.iter)
    if isinstance(inner, _COMPOUND):
        return _names(getattr(inner, "test", None))
    return set() if isinstance(inner, FUNCTIONS) else _names(inner)


def _names(node: ast.AST | None) -> set[str]:
    nodes = ast.walk(node) if node is not None else ()
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _assigned(function: ast.FunctionDef, name: str) -> Iterator[tuple[int, ast.AST | None]]:
    """Yield the lines at which a function gives a name a value, each with what it is made of."""
    for node in ast.walk(function):
        targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
        for target in filter(None, targets):
            stored = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
            if name in stored and not isinstance(node, ast.comprehension):
                yield node.lineno, getattr(node, "value", None) or getattr(node, "iter", None)


def _arguments(function: ast.FunctionDef) -> list[ast.arg]:
    arguments = function.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def _calls(tree: ast.Module, name: str) -> Iterator[tuple[ast.FunctionDef, ast.Call]]:
    """Yield the calls and launches of a function, each with the function that it stands in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.value if isinstance(node.func, ast.Subscript) else node.func
            if isinstance(called, ast.Name) and called.id == name:
                caller = _function_at(tree, node.lineno)
                if caller is not None:
                    yield caller, node


def _argument(call: ast.Call, index: int, name: str) -> ast.AST | None:
    if index < len(call.args) and not any(isinstance(a, ast.Starred) for a in call.args[:index]):
        return call.args[index]
    return next((k.value for k in call.keywords if k.arg == name), None)
