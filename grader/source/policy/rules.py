"""The rules of the source policy, and what in a file breaks them.

Pure: a tree in, violations out. Nothing runs and nothing is guessed about what a student meant; the
page docs/source-policy.md says each rule with an example, and what no rule can see.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from grader.base import attributes, functions
from grader.base.attributes import is_dunder
from grader.source.policy import tables
from grader.source.policy.names import Names, Place, attribute_of
from grader.source.policy.reach import Zone, zones
from grader.source.policy.violation import HELP, Violation, closed, shortened, violation
from grader.spec.problem import Problem


def violations(problem: Problem, tree: ast.Module) -> tuple[Violation, ...]:
    """Return what breaks the source policy in a submission to `problem`, in order of lines."""
    return tuple(sorted(set(_Reader(problem, tree).found())))


class _Reader:
    """Applies the rules to every place of a file that runs."""

    def __init__(self, problem: Problem, tree: ast.Module) -> None:
        self.problem = problem
        self.modules = tables.open_modules(problem)
        self.rows = tables.ROWS if problem.gradients else frozenset()
        self.names = Names(
            tree, zones(problem, tree), {*self.modules, "torch.Tensor", tables.WRAPS}
        )
        self.compiled = functions.compiled(tree)
        self.classes = {n.name for n in tree.body if isinstance(n, ast.ClassDef)}
        self.mentioned = set(self.names.mentioned())
        self.bound = {name for name, _ in self.names.binds}

    def found(self) -> Iterator[Violation]:
        """Yield every violation, some of them twice."""
        look_at = {
            ast.Import: self._import,
            ast.ImportFrom: self._import_from,
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.Call: self._call,
            ast.MatchClass: self._pattern,
            ast.BinOp: self._product,
            ast.AugAssign: self._product,
        }
        for place in self.names.places:
            look = look_at.get(type(place.node))
            if look is not None:
                yield from look(place, place.node)
        for name, node in self.names.binds:
            if is_dunder(name) and name not in tables.DEFINABLE:
                yield violation(node, "private-name", f"{shortened(name)} is bound")

    # -- imports ----------------------------------------------------------------------------------

    def _import(self, place: Place, node: ast.Import) -> Iterator[Violation]:
        yield from self._into_class(place)
        for alias in node.names:
            used = (alias.asname or alias.name.partition(".")[0]) in self.mentioned
            if used and alias.name not in self.modules:
                yield closed(node, alias.name)

    def _into_class(self, place: Place) -> Iterator[Violation]:
        if isinstance(place.scope.node, ast.ClassDef):
            text = "an import in a class makes members of it, which are not followed"
            yield violation(place.node, "import", text, "import at the top of the file")

    def _import_from(self, place: Place, node: ast.ImportFrom) -> Iterator[Violation]:
        yield from self._into_class(place)
        module = "." * node.level + (node.module or "")
        names = [a for a in node.names if a.name == "*" or (a.asname or a.name) in self.mentioned]
        if module not in self.modules:
            if names or node.level:
                yield closed(node, module)
            return
        for alias in names:
            if alias.name == "*":
                text = f"{shortened(module)} is imported with *, which does not say what it binds"
                yield violation(node, "import", text, "name what you import")
            else:
                yield from self._member(place, module, alias.name)

    def _member(self, place: Place, module: str, name: str) -> Iterator[Violation]:
        """Say what is wrong with `name` of an open module, where it is named in `place`."""
        path, node = f"{module}.{name}", place.node
        is_torch = module.split(".")[0] == "torch"
        if is_torch and self._is_shortcut(path, name, place.zone):
            yield violation(node, "shortcut", f"{path} does what you are asked to write")
        elif self._is_open(module, name, place.zone):
            return
        elif name.startswith("_"):
            yield violation(node, "private-name", f"{shortened(path)} is private to {module}")
        elif module == "torch" and not tables.is_machinery(name):
            text = f"{shortened(path)} is not among the functions of torch that serve kernels"
            yield self._computes(place, text)
        else:
            yield closed(node, path)

    def _is_open(self, module: str, name: str, zone: Zone) -> bool:
        if tables.is_open(self.modules[module], module, name):
            return True
        if module != "torch" or name.startswith("_"):
            return False
        return name in self.rows if zone.serves_kernels else not tables.is_machinery(name)

    def _is_closed(self, path: str, zone: Zone) -> bool:
        """Whether a path leads through a closed member of an open module."""
        parts = path.split(".")
        ways = [(".".join(parts[:n]), parts[n]) for n in range(1, len(parts))]
        return any(m in self.modules and not self._is_open(m, name, zone) for m, name in ways)

    def _is_shortcut(self, path: str, name: str, zone: Zone) -> bool:
        softmax = name in tables.SOFTMAX and zone is not Zone.BRIDGE
        return softmax or name in tables.SHORTCUTS or path in tables.GRADIENTS

    def _module_as_value(self, place: Place, paths: set[str]) -> Iterator[Violation]:
        """Find modules that are passed on as values: their use there cannot be checked."""
        node, parent = place.node, place.parent
        modules = sorted(paths & self.modules.keys())
        is_base = isinstance(parent, ast.Attribute) or (
            isinstance(parent, ast.Call)
            and isinstance(parent.func, ast.Name)
            and parent.func.id in ("getattr", "hasattr")
            and parent.args[:1] == [node]
        )
        is_alias = (
            isinstance(parent, (ast.Assign, ast.AnnAssign, ast.NamedExpr))
            and parent.value is node
            and all(isinstance(target, ast.Name) for target in _targets(parent))
            and not isinstance(place.scope.node, ast.ClassDef)
        )
        if modules and not (is_base or is_alias or _is_asked_for(node, parent)):
            text = f"the module {modules[0]} is handed on as a value"
            yield violation(node, "import", text, "use its members where you need them")

    # -- names and attributes ---------------------------------------------------------------------

    def _name(self, place: Place, node: ast.Name) -> Iterator[Violation]:
        if not isinstance(node.ctx, ast.Load):
            return
        paths = self.names.paths(node)
        yield from self._module_as_value(place, paths)
        yield from self._wraps(place, paths)
        if node.id in tables.DYNAMIC and not self.names.is_local(node):
            call = place.parent
            if not (isinstance(call, ast.Call) and attribute_of(call) and call.func is node):
                yield violation(node, "dynamic-code", f"{node.id} {tables.DYNAMIC[node.id]}")
        elif node.id == "super" and getattr(place.parent, "func", None) is not node:
            text = "super is handed on as a value, and may look past the class of an object"
            yield violation(node, "dynamic-code", text, "write super().method(...)")
        elif is_dunder(node.id) and node.id not in tables.READABLE:
            yield violation(node, "private-name", f"{shortened(node.id)} is a name of Python's own")

    def _attribute(self, place: Place, node: ast.Attribute) -> Iterator[Violation]:
        paths = self.names.paths(node.value)
        if isinstance(node.ctx, ast.Load):
            yield from self._read(place, node.value, node.attr)
        elif paths:
            what = f"{min(paths)}.{node.attr}"
            yield violation(node, "patching", f"{shortened(what)} is changed")
        elif is_dunder(node.attr):
            yield violation(node, "private-name", f"{shortened(node.attr)} is set on an object")
        elif self._is_compiled(place):
            yield violation(node, "patching", f"{shortened(node.attr)} is set in a kernel")

    def _is_compiled(self, place: Place) -> bool:
        """Whether Triton evaluates a place, where no worker checks whose an object is."""
        return any(scope.node in self.compiled for scope in place.scope.chain())

    def _read(self, place: Place, base: ast.expr, name: str) -> Iterator[Violation]:
        """Check `base.name`, or getattr(base, "name")."""
        paths = self.names.paths(base)
        members = {f"{path}.{name}" for path in paths}
        yield from self._module_as_value(place, members)
        yield from self._wraps(place, members)
        modules = sorted(paths & self.modules.keys())
        if modules:
            for module in modules:
                yield from self._member(place, module, name)
            return
        strict = bool(paths) or self._is_compiled(place)  # else a worker checks whose object it is
        yield from self._private(place, name, strict=strict)
        if not any(self._is_closed(path, place.zone) for path in paths):  # else it was found before
            yield from self._method(place, base, name)

    def _pattern(self, place: Place, node: ast.MatchClass) -> Iterator[Violation]:
        is_plain = isinstance(node.cls, ast.Name) and node.cls.id in tables.SELF_MATCHING
        if node.patterns and not (is_plain and node.cls.id not in self.bound):
            text = "a pattern takes attributes by names that __match_args__ holds as text"
            yield violation(place.node, "dynamic-code", text, "name each one: case A(x=x)")
        for name in node.kwd_attrs:
            yield from self._private(place, name, strict=True)
            yield from self._method(place, node.cls, name, taken=True)

    def _wraps(self, place: Place, paths: set[str]) -> Iterator[Violation]:
        """Find functools.wraps where it is more than wraps(function): it sets names by text."""
        node, parent = place.node, place.parent
        if tables.WRAPS in paths:
            plain = isinstance(parent, ast.Call) and parent.func is node and len(parent.args) == 1
            if not plain or parent.keywords or isinstance(parent.args[0], ast.Starred):
                text = "functools.wraps changes an object by names that are text"
                help = "write functools.wraps(function), with nothing else, as a decorator"
                yield violation(node, "dynamic-code", text, help)

    def _private(self, place: Place, name: str, *, strict: bool) -> Iterator[Violation]:
        """Find a name that leads inside an object; with `strict`, of the file's objects too."""
        node, call = place.node, place.parent
        if name == "__init__" and (
            strict or not (isinstance(call, ast.Call) and call.func is node and _begins(call))
        ):
            text = ".__init__ makes another object of one that is there"
            help = "write super().__init__(...), or make a new object"
            yield violation(node, "private-name", text, help)
        elif name in tables.FRAMES:
            text = f"{name} leads to the frames of calls, or to the classes below"
            yield violation(node, "private-name", text)
        elif is_dunder(name):
            if name not in tables.READABLE | tables.DEFINABLE:
                text = f"{shortened(name)} is a name of Python's own"
                yield violation(node, "private-name", text)
        elif strict and (attributes.is_closed(name) or name in attributes.TEMPLATES):
            text = f"{shortened(name)} leads below an object that is not this file's"
            yield violation(node, "private-name", text)

    # -- what computes ----------------------------------------------------------------------------

    def _method(
        self, place: Place, base: ast.expr, name: str, *, taken: bool = False
    ) -> Iterator[Violation]:
        """Find methods of tensors by their names: the text does not show what an object is.

        A method that a pattern takes (`taken`) counts as called.
        """
        is_call = isinstance(place.parent, ast.Call) and place.parent.func is place.node
        called = taken or is_call
        mentioned = called or self.names.paths(base) == {"torch.Tensor"}
        is_kernel = place.zone is Zone.KERNEL
        is_class = isinstance(base, ast.Name) and base.id in self.classes | {"self", "cls"}
        if name == "grad_fn" or (name == "backward" and called and not is_class):
            yield violation(place.node, "shortcut", f".{name} has autograd compute gradients")
        elif name in tables.SOFTMAX and place.zone is not Zone.BRIDGE and not is_kernel:
            yield violation(place.node, "shortcut", f".{name} does what you are asked to write")
        elif not place.zone.serves_kernels:
            return
        elif name in tables.STATES:
            text = f".{name} makes numbers of Python of a tensor"
            yield violation(place.node, "torch-computes", text, "seed it with manual_seed")
        elif name in tables.PRODUCTS:
            yield self._computes(place, f".{name} computes in PyTorch")
        elif name in tables.SUMS - self.rows and mentioned and not is_kernel:
            yield self._computes(place, f".{name}() computes in PyTorch")

    def _computes(self, place: Place, text: str) -> Violation:
        help = HELP["torch-computes"]
        if place.zone is Zone.SHARED and self.problem.bridge is not None:
            help = f"only what {self.problem.bridge.entry} alone needs may compute in PyTorch,"
            help += f" and {self.problem.entry} needs this function too: write kernels for it"
        return violation(place.node, "torch-computes", text, help)

    def _product(self, place: Place, node: ast.BinOp | ast.AugAssign) -> Iterator[Violation]:
        serves = place.zone.serves_kernels and place.zone is not Zone.KERNEL
        if serves and isinstance(node.op, ast.MatMult):
            yield self._computes(place, "@ multiplies matrices outside a kernel")

    def _call(self, place: Place, node: ast.Call) -> Iterator[Violation]:
        attribute = attribute_of(node)
        if attribute is not None:
            yield from self._read(place, *attribute)


def _begins(call: ast.Call) -> bool:
    """Whether a call of `base.__init__` begins an object: super()'s, or one a worker checks."""
    if not isinstance(call.func, ast.Attribute):
        return False
    base = call.func.value
    is_super = isinstance(base, ast.Call) and getattr(base.func, "id", "") == "super"
    return is_super or (bool(call.args) and not isinstance(call.args[0], ast.Starred))


def _is_asked_for(node: ast.AST, parent: ast.AST) -> bool:
    """Whether an expression only tests whether an object is there."""
    if isinstance(parent, ast.Compare):
        return all(isinstance(op, (ast.Is, ast.IsNot)) for op in parent.ops)
    return isinstance(parent, ast.UnaryOp) or getattr(parent, "test", None) is node


def _targets(node: ast.Assign | ast.AnnAssign | ast.NamedExpr) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]
