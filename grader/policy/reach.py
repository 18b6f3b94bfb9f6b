"""Which code of a file runs when the judge calls it, and where it may compute in PyTorch."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterable

from grader.manifest import Problem

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Zone(enum.Enum):
    """How code is looked at.

    `HOST` is PyTorch around kernels, `BRIDGE` what a bridge alone needs, `SHARED` what would be
    that if nothing else needed it. `SKIPPED` never runs.
    """

    HOST = "host"
    SHARED = "shared"
    PYTORCH = "pytorch"
    BRIDGE = "bridge"
    SKIPPED = "skipped"

    @property
    def serves_kernels(self) -> bool:
        """Whether PyTorch does no more here than to serve kernels."""
        return self in (Zone.HOST, Zone.SHARED)


def zones(problem: Problem, tree: ast.Module) -> dict[ast.AST, Zone]:
    """Return the zone of the module and of what begins another one: its `if` and its functions.

    A function of the module runs if an entry point, the module's own code or a function that runs
    names it. One that only a bridge in PyTorch reaches may compute in PyTorch.
    """
    main = Zone.HOST if problem.uses_triton else Zone.PYTORCH
    found: dict[ast.AST, Zone] = {tree: main}
    functions: dict[str, list[ast.AST]] = {}
    named: set[str] = {problem.entry}
    for node in tree.body:
        if is_main_block(node):
            found[node] = Zone.SKIPPED
            named |= _names(node.orelse)
        elif isinstance(node, _FUNCTIONS) and not node.decorator_list and not _is_dunder(node):
            functions.setdefault(node.name, []).append(node)
            named |= _names([node.args, *([node.returns] if node.returns else [])])
        else:
            named |= _names([node])
    named_by = {name: _names(nodes) for name, nodes in functions.items()}
    runs = _closure(named, named_by)
    bridge: set[str] = set()
    if problem.bridge is not None:
        bridge = _closure({problem.bridge.entry}, named_by)
    in_pytorch = problem.bridge is not None and problem.bridge.language == "pytorch"
    alone, shared = (Zone.BRIDGE, Zone.SHARED) if in_pytorch else (main, main)
    for name, nodes in functions.items():
        zone = alone if name in bridge else Zone.SKIPPED
        if name in runs:
            zone = shared if name in bridge else main
        found |= dict.fromkeys(nodes, zone)
    return found


def is_main_block(node: ast.stmt) -> bool:
    """Whether a statement is `if __name__ == "__main__":`; the judge imports, and never runs it."""
    test = node.test if isinstance(node, ast.If) else None
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    sides = [test.left, test.comparators[0]]
    is_name = any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)
    is_main = any(isinstance(side, ast.Constant) and side.value == "__main__" for side in sides)
    return isinstance(test.ops[0], ast.Eq) and is_name and is_main


def _is_dunder(node: ast.AST) -> bool:
    name = getattr(node, "name", "")
    return name.startswith("__") and name.endswith("__")


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}


def _closure(named: set[str], named_by: dict[str, set[str]]) -> set[str]:
    """Return the functions among `named`, those that they name, and so on."""
    reached: set[str] = set()
    waiting = [name for name in named if name in named_by]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += [n for n in named_by[name] if n in named_by]
    return reached
