"""Which functions of a file Python runs, and which it never should: kernels and unused ones.

The source policy checks a file by this, and a worker enforces it: a function that the policy took
for a kernel, or for unused, raises an error when Python enters it.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_JIT = "jit"  # the name of Triton's decorator, in whatever module it is looked up


class Reach:
    """Which names the top level of a module reads, and which its functions and classes read.

    `waiting` are, by name, the parts that run only if that name is read: a function, or the methods
    and bases of a class. Nothing waits under a decorator, which may call what it decorates. `plain`
    are names of functions alone. Unless the judge `differentiates`, nothing calls the `backward` of
    a class: these methods are `uncalled`.
    """

    def __init__(self, tree: ast.Module, *, differentiates: bool) -> None:
        classes = [n for n in walk(tree) if isinstance(n, ast.ClassDef) and not differentiates]
        self.uncalled = {part for node in classes for part in node.body if _is_backward(part)}
        self.waiting: dict[str, list[ast.AST]] = {}
        self.plain: set[str] = set()
        self.named: set[str] = set()
        for node in tree.body:
            if is_main_block(node):
                self.named |= names(node.orelse)
                continue
            parts = _waiting(node)
            self.named |= names([node], without=[*parts, *self.uncalled])
            if parts:
                note = self.plain.add if isinstance(node, FUNCTIONS) else self.plain.discard
                note(node.name)
                self.waiting.setdefault(node.name, []).extend(parts)
        self.named_by = {n: names(parts, self.uncalled) for n, parts in self.waiting.items()}

    def closure(self, named: Iterable[str]) -> set[str]:
        """Return the waiting names among `named`, the waiting names that these read, and so on."""
        reached: set[str] = set()
        waiting = [name for name in named if name in self.named_by]
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += [n for n in self.named_by[name] if n in self.named_by]
        return reached

    def unused(self, entries: Iterable[str]) -> set[ast.AST]:
        """Return the functions that nothing calls where the judge calls `entries`."""
        used = self.closure({*self.named, *entries})
        unnamed = (part for name in self.waiting.keys() - used for part in self.waiting[name])
        return self.uncalled | {part for part in unnamed if isinstance(part, FUNCTIONS)}


def walk(tree: ast.AST) -> list[ast.AST]:
    """Return what ast.walk yields, in half the time."""
    nodes = [tree]
    for node in nodes:  # those that the loop appends, too
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, ast.AST):
                nodes.append(value)
            elif isinstance(value, list):
                nodes += [part for part in value if isinstance(part, ast.AST)]
    return nodes


def compiled(tree: ast.Module) -> set[ast.AST]:
    """Return the functions that Triton may compile, since the text applies triton.jit to them.

    It is their innermost decorator, or a call of it gets their name; an alias of it counts, too.
    """
    return {function for function, _ in _compiled(tree)}


def kernels(tree: ast.Module, entries: Iterable[str]) -> set[ast.AST]:
    """Return the functions that Triton alone runs: those that it may compile, but for `entries`.

    One whose name is passed to triton.jit is a kernel if the file reads that name nowhere else.
    """
    named = Counter(n.id for n in walk(tree) if isinstance(n, ast.Name))
    found = _compiled(tree)
    return {f for f, times in found if f.name not in entries and times in (0, named[f.name])}


def _compiled(tree: ast.Module) -> list[tuple[ast.FunctionDef, int]]:
    """Return each function, and how often its name is passed to triton.jit; 0: it is decorated."""
    aliases = {_JIT}
    taken = Counter[str]()
    nodes = walk(tree)
    for node in nodes:
        is_jit = isinstance(node, ast.Assign) and _mentions(node.value, aliases)
        if is_jit and not _handed(node.value, aliases):  # else it makes a kernel, no alias
            aliases |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.Call) and _mentions(node.func, aliases):
            taken.update(_handed(node, aliases))
    found = []
    for node in nodes:
        if isinstance(node, FUNCTIONS):
            if node.decorator_list:
                if _mentions(node.decorator_list[-1], aliases):
                    found.append((node, 0))
            elif taken[node.name]:
                found.append((node, taken[node.name]))
    return found


def _handed(call: ast.expr, aliases: set[str]) -> list[str]:
    """Return the names among the arguments of a call, but for those of triton.jit."""
    args = call.args if isinstance(call, ast.Call) else ()
    return [arg.id for arg in args if isinstance(arg, ast.Name) and arg.id not in aliases]


def _mentions(node: ast.expr, aliases: set[str]) -> bool:
    """Whether an expression is triton.jit, or a call of it or with it."""
    while isinstance(node, ast.Call):
        if any(_mentions(a, aliases) for a in node.args if not isinstance(a, ast.Call)):
            return True
        node = node.func
    return (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")) in aliases


def is_main_block(node: ast.stmt) -> bool:
    """Whether a statement is `if __name__ == "__main__":`, whose body an import never runs."""
    test = node.test if isinstance(node, ast.If) else None
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    sides = [test.left, test.comparators[0]]
    is_name = any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)
    is_main = any(isinstance(side, ast.Constant) and side.value == "__main__" for side in sides)
    return isinstance(test.ops[0], ast.Eq) and is_name and is_main


def names(nodes: list[ast.AST], without: Iterable[ast.AST] = ()) -> set[str]:
    """Return the names in `nodes`, except in `without`: of a function there, only in its body."""
    left_out = {part for node in without for part in getattr(node, "body", [node])}
    found, waiting = set[str](), list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in left_out:
            waiting += ast.iter_child_nodes(node)
            found |= {node.id} if isinstance(node, ast.Name) else set()
    return found


def _waiting(node: ast.stmt) -> list[ast.AST]:
    if getattr(node, "decorator_list", ()):
        return []
    if isinstance(node, ast.ClassDef):
        return [*(part for part in node.body if isinstance(part, FUNCTIONS)), *node.bases]
    return [node] if isinstance(node, FUNCTIONS) else []


def _is_backward(part: ast.AST) -> bool:
    """Whether part of a class is its static method `backward`, which autograd alone calls."""
    if not isinstance(part, FUNCTIONS) or part.name != "backward":
        return False
    return "staticmethod" in [getattr(d, "id", "") for d in part.decorator_list]


def is_reached(tree: ast.Module, entries: set[str], line: int) -> bool:
    """Whether a line lies in a function of `entries`, or in one that they name, and so on."""
    bodies = {n.name: n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    known: set[str] = set()
    while more := (entries & bodies.keys()) - known:
        known |= more
        entries = {n.id for name in more for n in walk(bodies[name]) if isinstance(n, ast.Name)}
    return any(bodies[n].lineno <= line <= (bodies[n].end_lineno or 0) for n in known)
