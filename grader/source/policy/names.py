"""What the names of a file stand for: the places of its code, its scopes, and what was imported.

Nothing runs: the tree is read once, without recursion, so that no depth of nesting matters.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from grader.source.policy.reach import Zone

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_LONGEST_PATH = 8  # no member that is open lies deeper
_SCOPES = (*_FUNCTIONS, *_COMPREHENSIONS, ast.ClassDef)
_MARKS = (ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop)
_CAPTURES = (ast.MatchAs, ast.MatchStar, ast.ExceptHandler)


@dataclasses.dataclass(eq=False)
class Scope:
    """The names that one module, function, class or comprehension binds."""

    node: ast.AST
    parent: Scope | None
    bound: set[str] = dataclasses.field(default_factory=set)
    paths: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    outer: set[str] = dataclasses.field(default_factory=set)  # global or nonlocal there

    def chain(self) -> Iterator[Scope]:
        """Yield this scope and those around it."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent


class Place(NamedTuple):
    """A node of code that is checked, with its surroundings."""

    node: ast.AST
    parent: ast.AST
    scope: Scope
    zone: Zone


def attribute_of(node: ast.AST) -> tuple[ast.expr, str] | None:
    """Return base and name of `base.name` and of getattr(base, "name"), None for all else."""
    if isinstance(node, ast.Attribute):
        return node.value, node.attr
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "getattr"
        and len(node.args) >= 2
        and not isinstance(node.args[0], ast.Starred)
        and isinstance(node.args[1], ast.Constant)
        and isinstance(node.args[1].value, str)
    ):
        return node.args[0], node.args[1].value
    return None


class Names:
    """All places of a file, and what a name or an attribute of it may stand for.

    `tracked` are the modules whose aliases are followed. `binds` lists what binds a name, in the
    order of the file. A name may stand for everything that is ever bound to it.
    """

    def __init__(self, tree: ast.Module, zones: dict[ast.AST, Zone], tracked: set[str]) -> None:
        self.places: list[Place] = []
        self.binds: list[tuple[str, ast.AST]] = []
        self._scope_of: dict[ast.AST, Scope] = {}
        self._tracked = tracked
        self._aliases: dict[str, list[tuple[Scope, str, ast.expr]]] = {}
        self._walk(tree, zones)
        self._follow_aliases()

    def paths(self, node: ast.AST) -> set[str]:
        """Return the dotted paths, such as torch.cuda, that an expression may stand for."""
        tail: list[str] = []
        while (found := attribute_of(node)) or isinstance(node, ast.NamedExpr):
            if isinstance(node, ast.NamedExpr):
                node = node.value
                continue
            assert found is not None
            node, name = found
            tail.append(name)
            if len(tail) > _LONGEST_PATH:
                return set()
        if not isinstance(node, ast.Name) or node not in self._scope_of:
            return set()
        return {".".join([path, *reversed(tail)]) for path in self._of_name(node)}

    def mentioned(self) -> Iterator[str]:
        """Yield the names that checked code reads: an import of any other name is unused."""
        for place in self.places:
            if isinstance(place.node, ast.Name) and isinstance(place.node.ctx, ast.Load):
                yield place.node.id

    def is_local(self, node: ast.Name) -> bool:
        """Whether a function binds a name itself, so that it is never the builtin.

        A class may bind a name only after it is read, and then it is the builtin.
        """
        bound = [s.node for s in self._scope_of[node].chain() if node.id in s.bound]
        return bool(bound) and isinstance(bound[0], (*_FUNCTIONS, *_COMPREHENSIONS))

    def _of_name(self, node: ast.Name) -> set[str]:
        found: set[str] = set()
        for scope in self._scope_of[node].chain():
            found |= scope.paths.get(node.id, set())
            if node.id in scope.bound and not isinstance(scope.node, ast.ClassDef):
                break
        return found

    # -- places -----------------------------------------------------------------------------------

    def _walk(self, tree: ast.Module, zones: dict[ast.AST, Zone]) -> None:
        module = Scope(tree, None)
        waiting = [Place(n, tree, module, zones[tree]) for n in reversed(tree.body)]
        while waiting:
            place = waiting.pop()
            node = place.node
            if isinstance(node, ast.If) and zones.get(node) is Zone.SKIPPED:
                children = [Place(n, node, place.scope, place.zone) for n in node.orelse]
            else:
                self.places.append(place)
                self._bind(place)
                if isinstance(node, _SCOPES):
                    children = list(self._inside(place, zones))
                else:
                    scope = place.scope
                    if isinstance(node, ast.arg):  # Python evaluates annotations outside
                        scope = scope.parent or scope
                    children = [
                        Place(child, node, scope, place.zone)
                        for child in ast.iter_child_nodes(node)
                        if not isinstance(child, _MARKS)
                    ]
                if isinstance(node, ast.comprehension) and node is place.parent.generators[0]:
                    # Python evaluates the first iterable outside.
                    children[1] = children[1]._replace(scope=place.scope.parent or place.scope)
            waiting += reversed(children)

    def _inside(self, place: Place, zones: dict[ast.AST, Zone]) -> Iterator[Place]:
        """Yield the children of what begins a scope; a body that never runs is left out."""
        node, inner, zone = place.node, Scope(place.node, place.scope), place.zone
        inside = getattr(node, "body", None) or ast.iter_child_nodes(node)  # of a comprehension
        body = {inside} if isinstance(inside, ast.AST) else set(inside)  # of a lambda, or others
        own = zones.get(node, zone)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.arguments):
                for part in ast.iter_child_nodes(child):
                    is_name = isinstance(part, ast.arg)
                    yield Place(part, node, inner if is_name else place.scope, zone)
            elif child not in body:
                yield Place(child, node, place.scope, zone)
            elif own is not Zone.SKIPPED:
                yield Place(child, node, inner, own)

    # -- what binds -------------------------------------------------------------------------------

    def _bind(self, place: Place) -> None:
        node, scope = place.node, place.scope
        if isinstance(node, ast.Name):
            self._scope_of[node] = scope
            if not isinstance(node.ctx, ast.Load):
                in_walrus = isinstance(place.parent, ast.NamedExpr)
                self._put(_outside_comprehensions(scope) if in_walrus else scope, node.id, node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._put(scope, node.name, node)
        elif isinstance(node, ast.arg):
            self._put(scope, node.arg, node)
        elif isinstance(node, _CAPTURES) and node.name:
            self._put(scope, node.name, node)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            self._put(scope, node.rest, node)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            scope.outer |= set(node.names)
            scope.bound -= scope.outer
        elif isinstance(node, ast.Import):
            for alias in node.names:
                path = alias.name if alias.asname else alias.name.partition(".")[0]
                self._put(scope, alias.asname or path, node, path)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                path = f"{node.module}.{alias.name}"
                self._put(scope, alias.asname or alias.name, node, path)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            walrus = isinstance(node, ast.NamedExpr)
            for target in targets:
                if isinstance(target, ast.Name):
                    home = _outside_comprehensions(scope) if walrus else scope
                    self._remember(home, target.id, node.value)

    def _put(self, scope: Scope, name: str, node: ast.AST, path: str | None = None) -> None:
        self.binds.append((name, node))
        for home in _homes(scope, name):
            home.bound.add(name)
            if path is not None:
                home.paths.setdefault(name, set()).add(path)

    def _remember(self, scope: Scope, name: str, value: ast.expr) -> None:
        root: ast.AST = value
        for _ in range(_LONGEST_PATH):
            found = attribute_of(root)
            if found is None and not isinstance(root, ast.NamedExpr):
                break
            root = root.value if isinstance(root, ast.NamedExpr) else found[0]
        if isinstance(root, ast.Name):
            for home in _homes(scope, name):
                self._aliases.setdefault(root.id, []).append((home, name, value))

    def _follow_aliases(self) -> None:
        """Add what its value stands for to each alias, until nothing is new."""
        waiting = set(self._aliases)
        while waiting:
            for scope, name, value in self._aliases.get(waiting.pop(), ()):
                known = scope.paths.setdefault(name, set())
                new = (self.paths(value) & self._tracked) - known
                if new:
                    known |= new
                    waiting.add(name)


def _homes(scope: Scope, name: str) -> list[Scope]:
    """Return the scopes in which a scope may bind `name`: outer ones if global or nonlocal."""
    if name not in scope.outer:
        return [scope]
    return [outer for outer in scope.chain() if outer is not scope]


def _outside_comprehensions(scope: Scope) -> Scope:
    return next(s for s in scope.chain() if not isinstance(s.node, _COMPREHENSIONS))
