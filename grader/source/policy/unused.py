"""Which bodies of a module wait until something names them: of functions and of classes.

Whatever Python runs when the file is imported does not wait: decorators, defaults, bases, and all
of a class but the bodies of its methods. Those wait only where nothing can call them behind the
back of the text, as a decorator, a metaclass or an enumeration could.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from grader.source.policy import tables

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WRAP_METHODS = ("classmethod", "property", "staticmethod")


class Unused:
    """Tells of a module's statements what in them waits, by what binds the file's names."""

    def __init__(self, tree: ast.Module) -> None:
        self._bound: dict[str, set[ast.AST | str]] = {}  # a path where an import binds the name
        for node in ast.walk(tree):
            for name, what in _binds(node):
                self._bound.setdefault(name, set()).add(what)
        self._inert: dict[ast.ClassDef, bool] = {}  # of those that were asked about

    def waiting(self, node: ast.stmt) -> list[ast.AST]:
        """Return what in `node` matters only if something names it; ask in the order of the file.

        These are the functions whose bodies wait, and the bases of a class.
        """
        if isinstance(node, _FUNCTIONS):
            waits = not (node.decorator_list or _is_dunder(node.name))
            return [node] if waits else []
        if isinstance(node, ast.ClassDef):
            self._inert[node] = self._is_inert(node)
            return [*_methods(node), *node.bases] if self._inert[node] else []
        return []

    def _is_inert(self, node: ast.ClassDef) -> bool:
        """Whether making a class calls no method of it, and hands none and not the class on."""
        methods = _methods(node)
        decorators = [d for method in methods for d in method.decorator_list]
        return (
            not (node.decorator_list or node.keywords or getattr(node, "type_params", ()))
            and all(map(self._is_inert_base, node.bases))
            and all(self._builtin(d) in _WRAP_METHODS for d in decorators)
            and not {m.name for m in methods} & names([node], without=methods)
        )

    def _is_inert_base(self, base: ast.expr) -> bool:
        if name := self._builtin(base):
            kind = getattr(builtins, name, None)
            return type(kind) is type and not issubclass(kind, type)
        bound = self._bound.get(base.id, ()) if isinstance(base, ast.Name) else ()
        if len(bound) == 1 and isinstance(node := next(iter(bound)), ast.ClassDef):
            return self._inert.get(node, False)
        return self._path(base) in tables.EXTENSIBLE

    def _builtin(self, node: ast.expr) -> str:
        """Return the name of what can only be a builtin, "" for all else."""
        return node.id if isinstance(node, ast.Name) and node.id not in self._bound else ""

    def _path(self, node: ast.expr) -> str:
        """Return the dotted path that an expression stands for beyond doubt, "" for all else."""
        tail: list[str] = []
        while isinstance(node, ast.Attribute):
            tail.append(node.attr)
            node = node.value
        bound = self._bound.get(node.id, ()) if isinstance(node, ast.Name) else ()
        root = next(iter(bound)) if len(bound) == 1 else None
        return ".".join([root, *reversed(tail)]) if isinstance(root, str) else ""


def names(nodes: list[ast.AST], without: list[ast.AST] = ()) -> set[str]:
    """Return the names in `nodes`, but for those in `without`: of a function, in its body."""
    left_out = {part for node in without for part in getattr(node, "body", [node])}
    found, waiting = set[str](), list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in left_out:
            waiting += ast.iter_child_nodes(node)
            found |= {node.id} if isinstance(node, ast.Name) else set()
    return found


def _methods(node: ast.ClassDef) -> list[ast.AST]:
    return [method for method in node.body if isinstance(method, _FUNCTIONS)]


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _binds(node: ast.AST) -> Iterator[tuple[str, ast.AST | str]]:
    """Yield each name that a node binds, with the path of what is imported or with the node."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            path = alias.name if alias.asname else alias.name.partition(".")[0]
            yield alias.asname or path, path
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            path = f"{'.' * node.level}{node.module or ''}.{alias.name}"
            yield alias.asname or alias.name, path
    elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id, node
    elif not isinstance(node, (ast.alias, ast.keyword)):
        for field in ("name", "arg", "rest"):
            if isinstance(name := getattr(node, field, None), str):
                yield name, node
