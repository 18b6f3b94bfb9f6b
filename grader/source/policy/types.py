"""What a file does with the class of an object, which the text does not name."""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict

from grader.source.policy.names import Names, Place

# A comparison by these is answered by the objects, whose class may be the file's.
_ASKING = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
_ANSWERING = frozenset(["__contains__", "__eq__", "__hash__"])
_LOOKING = frozenset(["isinstance", "issubclass", "print", "repr", "str"])


class Types:
    """The uses of `type(x)` in a file: where it is kept, it may be called by another name."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._bound = {name for name, _ in names.binds}
        self._reads: defaultdict[str, list[Place]] = defaultdict(list)
        self._parents: dict[ast.AST, ast.AST] = {}
        self._known: dict[str, bool] = {}
        for place in names.places:
            self._parents[place.node] = place.parent
            if isinstance(place.node, ast.Name) and isinstance(place.node.ctx, ast.Load):
                self._reads[place.node.id].append(place)

    def is_kept(self, place: Place) -> bool:
        """Whether `type(x)`, the node of `place`, is more than compared, shown or asked for."""
        node, parent = place.node, place.parent
        targets: list[ast.expr] = []
        if isinstance(parent, ast.Assign):
            targets = parent.targets
        elif isinstance(parent, (ast.AnnAssign, ast.NamedExpr)) and parent.value is node:
            targets = [parent.target]
        if isinstance(parent, ast.NamedExpr):
            around = self._parents[parent]
            if not self._is_looked_at(parent, around):
                return True
        if targets:
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            return len(names) < len(targets) or any(map(self._hands_on, names))
        return not self._is_looked_at(node, parent)

    def _hands_on(self, name: str) -> bool:
        """Whether a name is read where a class would not stay, anywhere in the file."""
        if name not in self._known:
            reads = self._reads[name]
            self._known[name] = not all(self._is_looked_at(r.node, r.parent) for r in reads)
        return self._known[name]

    def _is_looked_at(self, node: ast.AST, parent: ast.AST) -> bool:
        """Whether a class, which `node` stands for, stays where it is."""
        if isinstance(parent, ast.Compare):
            asks = any(isinstance(op, _ASKING) for op in parent.ops)
            return not (asks and self._bound & _ANSWERING)
        if isinstance(parent, (ast.Tuple, ast.List)):  # type(a) in (...), "%s" % (type(a), ...)
            around = self._parents.get(parent)
            return isinstance(around, (ast.Compare, ast.BinOp)) and self._is_looked_at(
                parent, around
            )
        if isinstance(parent, ast.BinOp):
            return isinstance(parent.op, ast.Mod) and isinstance(parent.left, ast.Constant)
        if isinstance(parent, ast.Attribute):
            return True  # what of a class is read, set or called is a matter of other rules
        if isinstance(parent, ast.Call):
            return node is not parent.func and self._only_looks(parent.func)
        return isinstance(parent, (ast.FormattedValue, ast.Expr))

    def _only_looks(self, called: ast.expr) -> bool:
        if isinstance(called, ast.Attribute):
            return called.attr == "format" and isinstance(called.value, ast.Constant)
        if not isinstance(called, ast.Name) or called.id in self._bound:
            return False
        kind = getattr(builtins, called.id, None)
        is_error = isinstance(kind, type) and issubclass(kind, BaseException)
        return is_error or called.id in _LOOKING
