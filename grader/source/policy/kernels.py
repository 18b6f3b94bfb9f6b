"""Which functions of a file are kernels beyond doubt, so that Python never runs their bodies."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from grader.source.policy.bindings import Bindings
from grader.source.policy.names import Names, Place

MAKERS = frozenset(["triton.jit"])
_PARTIAL = frozenset(["functools.partial"])
_DEEPEST = 8  # a name for what a call with options returns
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Kernels:
    """The kernels of a file. No entry point is one, since the judge calls it as a function."""

    def __init__(self, entries: set[str], names: Names, bindings: Bindings) -> None:
        self._bindings = bindings
        self._nodes = {n for n in self._made(names) if n.name not in entries}

    def hold(self, place: Place) -> bool:
        """Whether a place is inside a kernel."""
        return any(scope.node in self._nodes for scope in place.scope.chain())

    def _made(self, names: Names) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Yield the functions that triton.jit takes first, as their last decorator or by name.

        One that is handed over by name is a kernel only if the file does nothing else with it.
        """
        functions: list[Place] = []
        made, named = Counter[str](), Counter[str]()
        for place in names.places:
            node = place.node
            if isinstance(node, _FUNCTIONS):
                functions.append(place)
            elif isinstance(node, ast.Name):
                named[node.id] += 1
            elif isinstance(node, ast.Call) and self._is_maker(node.func):
                made.update(arg.id for arg in node.args if isinstance(arg, ast.Name))
        for function in functions:
            node, around = function.node, function.scope.node
            if node.decorator_list:
                if self._is_maker(node.decorator_list[-1]):
                    yield node
            elif made[node.name] == named[node.name] > 0 and not isinstance(around, ast.ClassDef):
                yield node  # a class would hand on what it holds

    def _is_maker(self, node: ast.expr, depth: int = _DEEPEST) -> bool:
        """Whether an expression is triton.jit, with some of its options or without."""
        if not depth:
            return False
        if isinstance(node, ast.Call):
            if self._bindings.stands_for(node.func, _PARTIAL):
                return len(node.args) == 1 and self._is_maker(node.args[0], depth - 1)
            return not node.args and self._is_maker(node.func, depth - 1)
        if self._bindings.stands_for(node, MAKERS):
            return True
        value = self._bindings.value(node)
        return value is not None and self._is_maker(value, depth - 1)
