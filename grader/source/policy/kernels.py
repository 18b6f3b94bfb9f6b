"""Which functions of a file are kernels, and what in them Triton has no word for."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator

from grader.source.policy import language
from grader.source.policy.names import Names, Place, Scope
from grader.source.policy.violation import shortened
from grader.spec.problem import Problem

MAKERS = frozenset(["triton.jit"])
_PARTIAL = "functools.partial"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_ROW = "typing.NamedTuple"


class Kernels:
    """The kernels of a file; `names` are what they are called."""

    def __init__(self, problem: Problem, tree: ast.Module, names: Names) -> None:
        self._problem = problem
        self._file = names
        self._makers: set[str] = set()
        self._given: set[ast.AST] = set()
        scopes = {place.node: place.scope for place in names.places}
        self._bound: defaultdict[str, list[tuple[ast.AST, Scope | None]]] = defaultdict(list)
        for name, node in names.binds:
            self._bound[name].append((node, scopes.get(node)))
        self._nodes: set[ast.AST] = set(self._made())
        self._results = {
            target
            for place in names.places
            if isinstance(place.node, ast.Assign) and isinstance(place.node.value, ast.Call)
            if self._names_maker(place.node.value.func, self._makers)
            for target in place.node.targets
        }
        self.names = {getattr(node, "name", "") for node in self._nodes}
        plain = {
            n.name: n
            for n in tree.body
            if (isinstance(n, _FUNCTIONS) and not n.decorator_list)
            or (isinstance(n, ast.ClassDef) and not self._is_row(n))
        }
        for name in self.names | self._handed():
            plain.pop(name, None)
        self._take_in_helpers(plain)
        self._plain = plain.keys()
        self._kernels_or_given = self._nodes | self._given
        self._are_functions: dict[tuple[str, Scope | None], bool] = {}

    def hold(self, place: Place) -> bool:
        """Whether a place is inside a kernel."""
        return any(scope.node in self._nodes for scope in place.scope.chain())

    def bind(self, place: Place) -> bool:
        """Whether a place is in what runs as a kernel, though it may run as a function as well."""
        return any(scope.node in self._kernels_or_given for scope in place.scope.chain())

    def hides_maker(self, place: Place) -> bool:
        """Whether a place hands triton.jit on, or gives it what is no function of the file."""
        node, parent = place.node, place.parent
        if isinstance(node, ast.Call) and self._names_maker(node.func, self._makers):
            named = {k.arg for k in node.keywords}
            plain = all(self._is_function(given, place.scope) for given in node.args)
            return bool(named & {"fn", None}) or not plain
        is_read = isinstance(node, ast.Attribute) or isinstance(getattr(node, "ctx", 0), ast.Load)
        if not is_read or isinstance(node, ast.Call) or not self._names_maker(node, self._makers):
            return False
        if isinstance(parent, ast.Call):
            is_part = self._file.paths(parent.func) == {_PARTIAL} and parent.args == [node]
            return parent.func is not node and not is_part
        if isinstance(parent, (ast.Assign, ast.AnnAssign)):
            targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
            return not all(isinstance(target, ast.Name) for target in targets)
        return not (isinstance(parent, _FUNCTIONS) and node in parent.decorator_list)

    def unknown(self, place: Place) -> tuple[str, str]:
        """Name what Triton has no word for at a place inside a kernel, and what to do.

        Two empty texts where it has one.
        """
        node = place.node
        called = node.func if isinstance(node, ast.Call) else node
        base = called.value if isinstance(called, ast.Attribute) else called
        if isinstance(called, ast.Name) and called is not node and called.id in self._plain:
            name = shortened(called.id)
            return f"{name}()", f"put @triton.jit above {name}, and call it in kernels alone"
        is_module = bool(self._file.paths(base))
        what = language.unknown(node, is_module=is_module)
        if isinstance(called, ast.Attribute) and called is not node and not is_module:
            root = base
            while isinstance(root, (ast.Attribute, ast.Subscript)):
                root = root.value
            inside = (s for s in place.scope.chain() if isinstance(s.node, _FUNCTIONS))
            if isinstance(root, ast.Name) and not any(root.id in s.bound for s in inside):
                what = what or f"{shortened(root.id)}.{shortened(called.attr)}()"
        help = "a kernel is written in triton.language; compute the rest before the launch"
        return what, help if what else ""

    def _is_function(self, given: ast.expr, scope: Scope) -> bool:
        """Whether a name is bound to functions alone, or an argument that is handed on."""
        if not isinstance(given, ast.Name):
            return False
        name = given.id
        home = next((s for s in scope.chain() if name in s.bound), None)
        if (name, home) not in self._are_functions:
            every = self._bound[name]
            bound = [n for n, s in every if s is home or (s is not None and name in s.outer)]
            plain = (n in self._results or isinstance(n, (*_FUNCTIONS, ast.arg)) for n in bound)
            self._are_functions[name, home] = bool(bound) and all(plain)
        return self._are_functions[name, home]

    # -- which they are ---------------------------------------------------------------------------

    def _made(self) -> Iterator[ast.AST]:
        """Yield the functions that triton.jit makes kernels of, as a decorator or when called.

        No entry point is one, and what is handed to triton.jit is one if nothing else names it.
        """
        functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        makers, made, named = self._makers, Counter(), Counter()
        makers |= set(self._wrappers())
        for place in self._file.places:
            node = place.node
            if isinstance(node, _FUNCTIONS):
                functions.append(node)
            elif isinstance(node, ast.Assign) and self._is_maker(node.value, makers):
                makers |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.Call) and self._names_maker(node.func, makers):
                made.update(arg.id for arg in node.args if isinstance(arg, ast.Name))
            elif isinstance(node, ast.Name):
                named[node.id] += 1
        for function in functions:
            decorated = any(self._makes_kernels(d, makers) for d in function.decorator_list)
            handed = made[function.name] and made[function.name] == named[function.name]
            if made[function.name]:
                self._given.add(function)
            if (decorated or handed) and function.name not in self._entries():
                yield function

    def _wrappers(self) -> Iterator[str]:
        """Yield the functions that hand an argument of theirs to triton.jit."""
        for place in self._file.places:
            if isinstance(place.node, ast.Call) and self._names_maker(place.node.func, set()):
                function = place.scope.node
                handed = {arg.id for arg in place.node.args if isinstance(arg, ast.Name)}
                if not isinstance(function, _FUNCTIONS):
                    continue
                if handed & {a.arg for a in (*function.args.posonlyargs, *function.args.args)}:
                    yield function.name

    def _entries(self) -> set[str]:
        bridge = self._problem.bridge
        return {self._problem.entry, bridge.entry if bridge else ""}

    def _take_in_helpers(self, plain: dict[str, ast.stmt]) -> None:
        """Count a function that kernels alone call as a part of them, and take it out of `plain`.

        Somebody forgot @triton.jit, which costs what does not compile. Its body is held to what a
        kernel's is, so that it does no more than one.
        """
        waiting: Counter[str] = Counter()  # uses that are not, or not yet, a kernel's
        inside: defaultdict[ast.AST, list[tuple[str, ast.AST]]] = defaultdict(list)
        for place in self._file.places:
            if not isinstance(place.node, ast.Name) or place.node.id not in plain:
                continue
            waiting[place.node.id] += 1
            if self._is_called(place):
                for scope in place.scope.chain():
                    inside[scope.node].append((place.node.id, place.node))
        held: set[ast.AST] = set()
        taken = [node for node in inside if node in self._nodes]
        while taken:  # each function once: chains of helpers may be as long as a file
            for name, use in inside.pop(taken.pop(), ()):
                waiting[name] -= use not in held
                held.add(use)
                if waiting[name] or name in self._entries() or name not in plain:
                    continue
                if isinstance(plain[name], _FUNCTIONS):
                    taken.append(plain.pop(name))
                    self._nodes.add(taken[-1])

    def _is_called(self, place: Place) -> bool:
        return isinstance(place.parent, ast.Call) and place.parent.func is place.node

    def _is_row(self, node: ast.ClassDef) -> bool:
        """Whether a class is a NamedTuple of fields and nothing else, which Triton compiles."""
        bare = all(
            (isinstance(part, ast.AnnAssign) and isinstance(part.value, (ast.Constant, type(None))))
            or isinstance(part, ast.Pass)
            or (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
            for part in node.body
        )
        is_tuple = len(node.bases) == 1 and self._file.paths(node.bases[0]) == {_ROW}
        return bare and is_tuple and not node.keywords and not node.decorator_list

    def _handed(self) -> set[str]:
        """Names that stand in a call or an assignment: triton.jit may have made something of them.

        Also of a name that is bound twice.
        """
        bound = Counter(name for name, _ in self._file.binds)
        calls = (p.node for p in self._file.places if isinstance(p.node, ast.Call))
        given = {a.id for call in calls for a in call.args if isinstance(a, ast.Name)}
        return given | {name for name, count in bound.items() if count > 1}

    def _is_maker(self, value: ast.expr, makers: set[str]) -> bool:
        """Whether a value is triton.jit with some of its options, and no function yet."""
        if not isinstance(value, ast.Call):
            return False
        parts = value.args or [value.func]
        return any(self._makes_kernels(part, makers) for part in parts)

    def _makes_kernels(self, expression: ast.expr, makers: set[str]) -> bool:
        return any(self._names_maker(node, makers) for node in ast.walk(expression))

    def _names_maker(self, node: ast.AST, makers: set[str]) -> bool:
        """Whether a node is triton.jit, by whatever name, or triton.jit with its options."""
        if isinstance(node, ast.Call):
            is_part = self._file.paths(node.func) == {_PARTIAL}
            node = node.args[0] if is_part and node.args else node.func
        if isinstance(node, ast.Name) and node.id in makers:
            return True
        is_chain = isinstance(node, (ast.Name, ast.Attribute))
        return is_chain and bool(self._file.paths(node) & MAKERS)
