"""What the names of a file are bound to: classes that are written, and texts."""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Iterator
from string import Formatter

from grader.source.policy import tables
from grader.source.policy.names import Names, attribute_of

_DEEPEST = 8  # a name that is bound to a name


class Bindings:
    """What all bindings of a name have in common, in the code that is looked at."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._assigned = dict(self._assignments())
        self._bound: defaultdict[str, list[ast.AST]] = defaultdict(list)
        for name, node in names.binds:
            self._bound[name].append(node)
        self._known: dict[tuple[str, int], bool] = {}
        self._imported: dict[tuple[ast.AST, int], bool] = {}

    def of(self, name: str) -> list[ast.AST]:
        """Return what binds a name, anywhere in the file."""
        return self._bound.get(name, [])

    def stands_for(self, node: ast.expr, paths: frozenset[str]) -> bool:
        """Whether an expression is one of `paths`, and nothing else that its name is bound to."""
        found = self._names.paths(node)
        return bool(found) and found <= paths and self._is_imported(node)

    def _is_imported(self, node: ast.expr, depth: int = _DEEPEST) -> bool:
        """Whether imports, and names for what they bind, are all that binds the root of a path."""
        while part := attribute_of(node):
            node = part[0]
        if isinstance(node, ast.NamedExpr):
            return self._is_imported(node.value, depth)
        if not isinstance(node, ast.Name) or not depth:
            return False
        bound = self._names.binders(node)
        if not bound:
            return False
        asked = bound[0], len(bound)
        if asked not in self._imported:
            self._imported[asked] = False  # of a name that is bound to itself
            self._imported[asked] = all(self._binds_import(one, depth) for one in bound)
        return self._imported[asked]

    def _binds_import(self, node: ast.AST, depth: int) -> bool:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return True
        value = self._assigned.get(node)
        if isinstance(value, ast.Constant) and value.value is None:
            return True  # where the import failed
        return value is not None and self._is_imported(value, depth - 1)

    def value(self, node: ast.expr) -> ast.expr | None:
        """Return what a name is bound to, if one assignment is all that binds it."""
        bound = self._names.binders(node) if isinstance(node, ast.Name) else []
        return self._assigned.get(bound[0]) if len(bound) == 1 else None

    def names_class(self, base: ast.expr, depth: int = _DEEPEST) -> bool:
        """Whether all that an expression may stand for is named as a class, or made as a row is."""
        if isinstance(base, ast.Call):
            return self.stands_for(base.func, tables.ROW_MAKERS)
        base = base.value if isinstance(base, ast.Subscript) else base
        if self._names.paths(base) and self._is_imported(base):
            return True
        if not isinstance(base, ast.Name) or not depth:
            return False
        bound = self.of(base.id)
        if not bound:
            return hasattr(builtins, base.id)
        asked = base.id, depth
        if asked not in self._known:
            self._known[asked] = all(self._is_class(node, depth) for node in bound)
        return self._known[asked]

    def _is_class(self, node: ast.AST, depth: int) -> bool:
        if isinstance(node, ast.ClassDef):
            return self.is_written(node)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return True
        return node in self._assigned and self.names_class(self._assigned[node], depth - 1)

    def is_written(self, node: ast.ClassDef) -> bool:
        """Whether a class is what is written: decorator and metaclass may return another one."""
        made = (d.func if isinstance(d, ast.Call) else d for d in node.decorator_list)
        return all(self.stands_for(decorator, tables.OF_CLASSES) for decorator in made) and all(
            self.is_plain_keyword(keyword) for keyword in node.keywords
        )

    def is_plain_keyword(self, keyword: ast.keyword) -> bool:
        """Whether a keyword of a class is no metaclass, or one of Python's own."""
        if keyword.arg == "metaclass":
            return self.stands_for(keyword.value, tables.METACLASSES)
        return keyword.arg is not None

    def text(self, node: ast.AST) -> str | None:
        """Return the text that an expression is, or that is all its name is ever bound to."""
        if isinstance(node, ast.Name):
            bound = self.of(node.id)
            node = self._assigned.get(bound[0], node) if len(bound) == 1 else node
        value = node.value if isinstance(node, ast.Constant) else None
        return value if isinstance(value, str) else None

    def _assignments(self) -> Iterator[tuple[ast.AST, ast.expr]]:
        """Yield each name that an assignment binds by itself, with what it is bound to."""
        for place in self._names.places:
            node = place.node
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from ((t, node.value) for t in targets if isinstance(t, ast.Name))


def takes_parts(template: str) -> bool:
    """Whether a text for str.format has a field with an attribute or an index, or is none."""
    try:
        fields = [(field or "", spec or "") for _, field, spec, _ in Formatter().parse(template)]
    except ValueError:
        return True
    return any("." in field or "[" in field or takes_parts(spec) for field, spec in fields)
