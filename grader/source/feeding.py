"""Which lines make what a line works with: through assignments, and arguments of calls.

A mistake often shows in a line that was given: a loop over tiles whose bounds a step computes, a
load by a pointer that one moves.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping

from grader.source.loops import FUNCTIONS, lines_of
from grader.spec.problem import GIVEN

_MOST = 400  # names that are followed
_COMPOUND = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With)


def lines_feeding(tree: ast.Module, line: int, ends: Callable[[int], bool]) -> set[int]:
    """Return the lines on which a line depends and for which `ends` is true.

    What one that assigns depends on in its turn is not followed; what one that calls hands on is.
    Of a line that stores, what its address and its mask depend on counts, and not what is stored.
    """
    found: set[int] = set()
    inner = _function_at(tree, line)
    if inner is None:
        return found
    waiting = [(inner, name) for name in _used_at(tree, inner, line)]
    seen = set(waiting)
    while waiting and len(seen) < _MOST:
        function, name = waiting.pop()
        more: list[tuple[ast.FunctionDef, str]] = []
        assigned = list(_assigned(function, name))
        own = {number for number, _ in assigned if ends(number)}
        found |= own
        for number, value in assigned:
            if number not in own and value is not None:
                more += [(function, used) for used in _names(value)]
        if name in (parameters := _parameters(function)) and not own:
            for caller, call in _calls(tree, function.name):
                value = _argument(call, parameters.index(name), name)
                if value is not None:
                    found |= {call.lineno} if ends(call.lineno) else set()
                    more += [(caller, used) for used in _names(value)]
        waiting += [place for place in more if place not in seen]
        seen.update(more)
    return found


def bare_loads(tree: ast.Module) -> list[int]:
    """Return the lines of loads that have a mask, and no value for the lanes that it turns off."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    loads = [n for n in calls if getattr(n.func, "attr", "") == "load" and n.args]
    named = [(n, len(n.args), {k.arg for k in n.keywords}) for n in loads]
    return [n.lineno for n, m, k in named if (m > 1 or "mask" in k) and not (m > 2 or "other" in k)]


def _function_at(tree: ast.Module, line: int) -> ast.FunctionDef | None:
    around = [n for n in ast.walk(tree) if isinstance(n, FUNCTIONS) and line in lines_of(n)]
    return max(around, key=lambda n: n.lineno, default=None)


def _used_at(tree: ast.Module, function: ast.FunctionDef, line: int) -> set[str]:
    """Return the names that the innermost statement at a line reads, of a loop its head's."""
    around = [n for n in ast.walk(function) if isinstance(n, ast.stmt) and line in lines_of(n)]
    inner = max(around, key=lambda n: (n.lineno, -(n.end_lineno or n.lineno)))
    if isinstance(inner, (ast.For, ast.AsyncFor)):
        return _names(inner.iter)
    if isinstance(inner, _COMPOUND):
        return _names(getattr(inner, "test", None))
    if isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Call):
        return _names_of_address(inner.value, _functions(tree))
    return set() if isinstance(inner, FUNCTIONS) else _names(inner)


def _names_of_address(call: ast.Call, functions: Mapping[str, ast.FunctionDef]) -> set[str]:
    """Return the names that make address and mask of a call that stores; all, if it is no store."""
    called = getattr(call.func, "attr", None) or getattr(call.func, "id", "")
    if (called == "store" or called.startswith("atomic_")) and call.args:
        said = [*call.args[:1], *call.args[2:], *(k.value for k in call.keywords)]
        return set().union(*map(_names, said))
    if called not in functions:
        return _names(call)
    function = functions[called]
    stores = [n.value for n in ast.walk(function) if isinstance(n, ast.Expr)]
    inside = [_names_of_address(n, {}) for n in stores if isinstance(n, ast.Call)]
    waiting = list(set().union(*inside))
    for name in waiting:
        values = [value for _, value in _assigned(function, name) if value is not None]
        waiting += set().union(*map(_names, values)) - set(waiting)
    handed = [_argument(call, n, p) for n, p in enumerate(_parameters(function)) if p in waiting]
    return set().union(*map(_names, handed)) if inside else _names(call)


def _functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """Return the functions of a file, and those that it imports from `given`, by name."""
    found = {}
    for node in tree.body:
        path = GIVEN / f"{str(getattr(node, 'module', '')).rpartition('.')[2]}.py"
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("given."):
            if path.is_file():
                found |= _functions(ast.parse(path.read_text("utf-8")))
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = node
    return found


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


def _parameters(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


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
