"""The rules of the source policy, and what in a file breaks them.

Pure: a tree in, violations out. Nothing runs and nothing is guessed about what a student meant; the
page docs/source-policy.md says each rule with an example, and what no rule can see.

Over 400 lines: one reader sees each place of a file once, and holds every rule against it.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from grader.source.policy import tables
from grader.source.policy.bindings import Bindings, takes_parts
from grader.source.policy.kernels import MAKERS, Kernels
from grader.source.policy.names import Names, Place, attribute_of
from grader.source.policy.reach import Zone, zones
from grader.source.policy.types import Types
from grader.source.policy.violation import HELP, Violation, closed, shortened, violation
from grader.spec.problem import Problem

# By every name that they are given.
_FOLLOWED = {"torch.Tensor", tables.WRAPS, *tables.METACLASSES, *tables.ENUMS, *MAKERS}
_FOLLOWED |= tables.ROW_MAKERS
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def violations(problem: Problem, tree: ast.Module) -> tuple[Violation, ...]:
    """Return what breaks the source policy in a submission to `problem`, in order of lines."""
    return tuple(sorted(set(_Reader(problem, tree).found())))


class _Reader:
    """Looks at every place of a file that runs."""

    def __init__(self, problem: Problem, tree: ast.Module) -> None:
        self.problem = problem
        self.modules = tables.open_modules(problem)
        self.rows = tables.ROWS if problem.gradients else frozenset()
        self.names = Names(tree, zones(problem, tree), set(self.modules) | _FOLLOWED)
        bound = Counter(name for name, _ in self.names.binds)
        self.once = {name for name, times in bound.items() if times == 1}
        self.bindings = Bindings(self.names)
        self.types = Types(self.names)
        classes = (n for n in tree.body if isinstance(n, ast.ClassDef))
        self.classes = {n.name for n in classes if self.bindings.is_written(n)} & self.once
        self.enums = {
            n.name
            for n in tree.body
            if isinstance(n, ast.ClassDef)
            and any(self.names.paths(base) & tables.ENUMS for base in n.bases)
        }
        # What a decorator returns need not be a function: a kernel is an object of Triton's.
        plain = (n for n in tree.body if isinstance(n, _FUNCTIONS) and not n.decorator_list)
        self.own = self.classes | ({n.name for n in plain} & self.once)
        self.mentioned = set(self.names.mentioned())
        self.instances = set(self._instances())
        classes = (p.node for p in self.names.places if isinstance(p.node, ast.ClassDef))
        self.metaclasses = {k for node in classes for k in node.keywords if k.arg == "metaclass"}
        entries = {problem.entry, problem.bridge.entry if problem.bridge else ""}
        self.kernels = Kernels(entries, self.names, self.bindings)

    def found(self) -> Iterator[Violation]:
        """Yield every violation, some of them twice."""
        look_at = {
            ast.Import: self._import,
            ast.ImportFrom: self._import_from,
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.Call: self._call,
            ast.ClassDef: self._bases,
            ast.MatchClass: self._pattern,
            ast.Subscript: self._item,
            ast.BinOp: self._product,
            ast.AugAssign: self._product,
        }
        for place in self.names.places:
            look = look_at.get(type(place.node))
            if look is not None:
                yield from look(place, place.node)
        for name, node in self.names.binds:
            if _is_dunder(name) and name not in tables.DEFINABLE:
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

    def _is_shortcut(self, path: str, name: str, zone: Zone) -> bool:
        softmax = name in tables.SOFTMAX and zone is not Zone.BRIDGE
        return softmax or name in tables.SHORTCUTS or path in tables.GRADIENTS

    def _module_as_value(self, place: Place, paths: set[str]) -> Iterator[Violation]:
        """Find modules that are handed on: what becomes of them there is not seen."""
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
        yield from self._made_by_text(place, paths)
        if node.id in tables.DYNAMIC and not self.names.is_local(node):
            call = place.parent
            if not (isinstance(call, ast.Call) and attribute_of(call) and call.func is node):
                yield violation(node, "dynamic-code", f"{node.id} {tables.DYNAMIC[node.id]}")
        elif node.id == "type" and not self.names.is_local(node) and self._is_handed_on(place):
            text = "type is handed on, and makes a class where it is called"
            yield violation(node, "dynamic-code", text, "write the class as code")
        elif _is_dunder(node.id) and node.id not in tables.READABLE:
            yield violation(node, "private-name", f"{shortened(node.id)} is a name of Python's own")

    def _attribute(self, place: Place, node: ast.Attribute) -> Iterator[Violation]:
        if isinstance(node.ctx, ast.Load):
            yield from self._read(place, node.value, node.attr)
        else:
            yield from self._changed(place, node)

    def _read(self, place: Place, base: ast.expr, name: str) -> Iterator[Violation]:
        """Look at `base.name`, or at getattr(base, "name")."""
        paths = self.names.paths(base)
        members = {f"{path}.{name}" for path in paths}
        yield from self._module_as_value(place, members)
        yield from self._made_by_text(place, members)
        if name in tables.CHANGING and (inside := _inside(paths, self.modules)):
            yield violation(place.node, "patching", f"{shortened(inside)} is changed")
        modules = sorted(paths & self.modules.keys())
        if modules:
            for module in modules:
                yield from self._member(place, module, name)
            return
        yield from self._private(place, base, name)
        yield from self._method(place, base, name)

    def _changed(self, place: Place, node: ast.Attribute) -> Iterator[Violation]:
        paths = self.names.paths(node.value)
        if paths:
            what = f"{min(paths)}.{node.attr}"
            yield violation(node, "patching", f"{shortened(what)} is changed")
        elif _is_dunder(node.attr):
            yield violation(node, "private-name", f"{shortened(node.attr)} is set on an object")
        elif node.attr not in tables.SETTABLE and not self._is_ours(place, node.value):
            text = f"{shortened(node.attr)} is set on an object that is not this file's"
            yield violation(node, "patching", text)

    def _item(self, place: Place, node: ast.Subscript) -> Iterator[Violation]:
        inside = _inside(self.names.paths(node.value), self.modules)
        if inside and not isinstance(node.ctx, ast.Load):
            yield violation(node, "patching", f"a part of {shortened(inside)} is changed")

    def _is_ours(self, place: Place, base: ast.expr) -> bool:
        """Whether an object is of the file: a function, class or instance, not a part of these."""
        if isinstance(base, ast.Call):
            return _called(base) in self.classes
        if self._is_own(place, base):
            return True
        return isinstance(base, ast.Name) and base.id in self.instances

    def _instances(self) -> Iterator[str]:
        """Yield the names that are bound to nothing but instances of the file's own classes."""
        made = Counter(
            target.id
            for place in self.names.places
            if isinstance(place.node, (ast.Assign, ast.AnnAssign, ast.NamedExpr))
            and isinstance(place.node.value, ast.Call)
            and _called(place.node.value) in self.classes
            for target in _targets(place.node)
            if isinstance(target, ast.Name)
        )
        bound = Counter(name for name, _ in self.names.binds)
        return (name for name, count in made.items() if bound[name] == count)

    def _bases(self, place: Place, node: ast.ClassDef) -> Iterator[Violation]:
        for keyword in node.keywords:
            if not self.bindings.is_plain_keyword(keyword):
                text = "a class is made by what is no metaclass of Python's"
                help = "leave metaclass= out, or write metaclass=abc.ABCMeta"
                yield violation(keyword.value, "dynamic-code", text, help)
        for base in node.bases:
            if not self.bindings.names_class(base):
                text = "a class has a base that is not named as a class"
                help = "name a class that is imported, builtin or written in this file"
                yield violation(base, "dynamic-code", text, help)
            paths = sorted(self.names.paths(base) - tables.EXTENSIBLE)
            for path in paths:
                if path.split(".")[0] in ("torch", "triton"):
                    text = f"a class extends {shortened(path)}, and answers in its place"
                    help = "keep the object in an attribute of a class of your own"
                    yield violation(base, "patching", text, help)

    def _pattern(self, place: Place, node: ast.MatchClass) -> Iterator[Violation]:
        is_plain = isinstance(node.cls, ast.Name) and node.cls.id in tables.SELF_MATCHING
        if node.patterns and not (is_plain and not self.bindings.of(node.cls.id)):
            text = "a pattern takes attributes by names that __match_args__ holds as text"
            yield violation(place.node, "dynamic-code", text, "name each one: case A(x=x)")
        for name in node.kwd_attrs:
            yield from self._private(place, node.cls, name)
            yield from self._method(place, node.cls, name, taken=True)

    def _made_by_text(self, place: Place, paths: set[str]) -> Iterator[Violation]:
        """Find what reaches names by text, or makes classes, where it is not used plainly."""
        node, parent = place.node, place.parent
        if tables.WRAPS in paths:
            plain = isinstance(parent, ast.Call) and parent.func is node and len(parent.args) == 1
            if not plain or parent.keywords or isinstance(parent.args[0], ast.Starred):
                text = "functools.wraps changes an object by names that are text"
                help = "write functools.wraps(function), with nothing else, as a decorator"
                yield violation(node, "dynamic-code", text, help)
        makers = sorted(paths & tables.METACLASSES if parent not in self.metaclasses else ())
        asks = isinstance(parent, ast.Call) and _called(parent) in ("isinstance", "issubclass")
        if not isinstance(parent, ast.ClassDef) and not asks:
            makers += sorted(paths & tables.ENUMS)
        if makers:
            text = f"{makers[0]} makes a class from what it is given"
            yield violation(node, "dynamic-code", text, "write the class as code")

    def _is_handed_on(self, place: Place) -> bool:
        """Whether the builtin `type` is more than called, compared or an annotation."""
        node, parent = place.node, place.parent
        if isinstance(parent, ast.Call):
            asks = _called(parent) in ("isinstance", "issubclass")
            return parent.func is not node and not asks
        annotates = (getattr(parent, "annotation", None), getattr(parent, "returns", None))
        return node not in annotates and not isinstance(parent, (ast.Compare, ast.BinOp))

    def _template(self, place: Place, base: ast.AST, name: str) -> Iterator[Violation]:
        """Find text that str.format would fill with attributes: it reaches names by text."""
        if name not in tables.TEMPLATES or self._is_own(place, base):
            return
        is_call = isinstance(place.parent, ast.Call) and place.parent.func is place.node
        template = self.bindings.text(base)
        if not is_call or name != "format" or template is None or takes_parts(template):
            told = f".{name} fills a text with attributes that it names"
            yield violation(place.node, "dynamic-code", told, "write an f-string")

    def _private(self, place: Place, base: ast.AST, name: str) -> Iterator[Violation]:
        yield from self._template(place, base, name)
        if name == "__init__" and not self._begins(place, base):
            text = ".__init__ makes another object of one that is there"
            help = "write super().__init__(...), or make a new object"
            yield violation(place.node, "private-name", text, help)
        if name in tables.OF_FILES and not self._is_ours(place, base):
            text = f".{name} opens a file"
            yield violation(place.node, "dynamic-code", text, "keep values in tensors")
        if name == "as_subclass":
            text = ".as_subclass has a class answer in a tensor's place"
            yield violation(place.node, "patching", text)
        if name in tables.LEADING and not self._is_ours(place, base):
            text = f".{name} leads to modules and objects that the text does not name"
            yield violation(place.node, "private-name", text)
        if name in tables.FRAMES:
            text = f"{name} leads to the frames of calls, or to the classes below"
            yield violation(place.node, "private-name", text)
        elif _is_dunder(name):
            if name not in tables.READABLE | tables.DEFINABLE:
                text = f"{shortened(name)} is a name of Python's own"
                yield violation(place.node, "private-name", text)
        elif name.startswith("_") and not (name in tables.UNDERSCORED or self._is_own(place, base)):
            text = f"{shortened(name)} is private to an object that is not this file's"
            yield violation(place.node, "private-name", text)

    def _begins(self, place: Place, base: ast.AST) -> bool:
        """Whether `base.__init__` is called on the object that a method is called on.

        Of a dataclass it sets attributes by names that are no attributes in the text.
        """
        call = place.parent
        if not isinstance(call, ast.Call) or call.func is not place.node:
            return False
        if isinstance(base, ast.Call):
            return _called(base) == "super"
        named = isinstance(base, ast.expr) and self.bindings.names_class(base)
        return named and bool(call.args) and self._is_own(place, call.args[0])

    def _is_own(self, place: Place, base: ast.AST) -> bool:
        """Whether `base` is a function or class of the file, or a method's first argument.

        Of what a method is called on, grader/isolate/own_objects.py asks when it runs.
        """
        if not isinstance(base, ast.Name):
            return False
        for scope in place.scope.chain():
            if base.id in scope.bound and not isinstance(scope.node, ast.ClassDef):
                arguments = getattr(scope.node, "args", None)
                in_class = scope.parent and isinstance(scope.parent.node, ast.ClassDef)
                if not in_class or not isinstance(arguments, ast.arguments):
                    break
                first = [*arguments.posonlyargs, *arguments.args][:1]
                once = scope.times[base.id] == 1  # so that it is still what it was
                return once and base.id in [argument.arg for argument in first]
        return base.id in self.own

    # -- what computes ----------------------------------------------------------------------------

    def _method(
        self, place: Place, base: ast.expr, name: str, *, taken: bool = False
    ) -> Iterator[Violation]:
        """Find methods of tensors by their names: what an object is, the text does not say.

        One that is `taken`, by a pattern, is as good as called.
        """
        is_call = isinstance(place.parent, ast.Call) and place.parent.func is place.node
        called = taken or is_call
        mentioned = called or self.names.paths(base) == {"torch.Tensor"}
        is_kernel = self.kernels.hold(place)
        if name == "grad_fn" or (name == "backward" and called and not self._is_class(base)):
            yield violation(place.node, "shortcut", f".{name} has autograd compute gradients")
        elif name in tables.SOFTMAX and place.zone is not Zone.BRIDGE and not is_kernel:
            yield violation(place.node, "shortcut", f".{name} does what you are asked to write")
        elif not place.zone.serves_kernels:
            return
        elif name in tables.STATES:
            text = f".{name} makes numbers of Python of a tensor"
            yield violation(place.node, "torch-computes", text, "seed it with manual_seed")
        elif name in tables.OF_KERNELS:
            text = f".{name} is the Python function in a kernel"
            yield violation(place.node, "torch-computes", text, "launch the kernel")
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
        serves = place.zone.serves_kernels and not self.kernels.hold(place)
        if serves and isinstance(node.op, ast.MatMult):
            yield self._computes(place, "@ multiplies matrices outside a kernel")

    def _call(self, place: Place, node: ast.Call) -> Iterator[Violation]:
        attribute = attribute_of(node)
        if attribute is not None:
            yield from self._read(place, *attribute)
        name = _called(node)
        if name in self.enums and (len(node.args) != 1 or node.keywords):
            text = f"{shortened(name)} makes a class from what it is given"
            yield violation(node, "dynamic-code", text, "write the class as code")
        if name == "super" and node.args and not self._is_written(node.args[0]):
            text = "super is given a class that is not this file's"
            yield violation(node, "private-name", text, "write super() in the method")
        is_type_of = isinstance(node.func, ast.Call) and _called(node.func) == "type"
        if is_type_of or (name == "type" and (len(node.args) != 1 or node.keywords)):
            text = "type makes a class from what it is given"
            if is_type_of:
                text = "what type(...) returns is called: of which class, the text does not say"
            yield violation(node, "dynamic-code", text, "write the class as code")
        elif name == "type" and not self.names.is_local(node.func) and self.types.is_kept(place):
            text = "the class that type(...) returns is kept: of which object, is not followed"
            help = "compare it, as in type(x) is int, or ask isinstance(x, ...)"
            yield violation(node, "dynamic-code", text, help)

    def _is_written(self, base: ast.expr) -> bool:
        """Whether a name is that of one class of the file, in a function or not."""
        bound = self.bindings.of(base.id) if isinstance(base, ast.Name) else []
        is_one = len(bound) == 1 and isinstance(bound[0], ast.ClassDef)
        return is_one and self.bindings.is_written(bound[0])

    def _is_class(self, base: ast.expr) -> bool:
        return isinstance(base, ast.Name) and base.id in self.classes | {"self", "cls"}


def _inside(paths: set[str], modules: dict[str, frozenset[str]]) -> str:
    """Return a path that lies in an open module and is none itself, "" where there is none."""
    named = paths - modules.keys() - {"torch.Tensor", "triton.language.tensor"}
    inside = (p for p in named if p.partition(".")[0] in modules)
    return min((p for p in inside if "." in p), default="")


def _is_asked_for(node: ast.AST, parent: ast.AST) -> bool:
    """Whether no more is asked of an object than whether it is there."""
    if isinstance(parent, ast.Compare):
        return all(isinstance(op, (ast.Is, ast.IsNot)) for op in parent.ops)
    return isinstance(parent, ast.UnaryOp) or getattr(parent, "test", None) is node


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _targets(node: ast.Assign | ast.AnnAssign | ast.NamedExpr) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _is_dunder(name: str) -> bool:
    return len(name) > 4 and name.startswith("__") and name.endswith("__")
