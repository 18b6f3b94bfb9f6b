"""Which code of a file runs when the judge calls it, and where it may compute in PyTorch."""

from __future__ import annotations

import ast
import enum

from grader.source.policy.unused import Unused, names
from grader.spec.problem import Problem

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

    A function or class of the module runs if an entry point, the module's own code or another that
    runs names it. A function that only a bridge in PyTorch reaches may compute in PyTorch.
    """
    main = Zone.HOST if problem.uses_triton else Zone.PYTORCH
    found: dict[ast.AST, Zone] = {tree: main}
    unused = Unused(tree)
    waiting: dict[str, list[ast.AST]] = {}
    plain: set[str] = set()  # functions that may be the bridge's alone
    named: set[str] = {problem.entry}
    for node in tree.body:
        if is_main_block(node):
            found[node] = Zone.SKIPPED
            named |= names(node.orelse)
            continue
        parts = unused.waiting(node)
        named |= names([node], without=parts)
        if parts:
            is_plain = isinstance(node, _FUNCTIONS)
            plain = plain | {node.name} if is_plain else plain - {node.name}
            waiting.setdefault(node.name, []).extend(parts)
    named_by = {name: names(parts) for name, parts in waiting.items()}
    entries = {problem.bridge.entry} if problem.bridge is not None else set()
    bridge = _closure(entries, named_by)
    for name in _closure(named | entries, named_by) - plain:
        named |= {name} | named_by[name]
    runs = _closure(named, named_by)
    in_pytorch = problem.bridge is not None and problem.bridge.language == "pytorch"
    alone, shared = (Zone.BRIDGE, Zone.SHARED) if in_pytorch else (main, main)
    for name, nodes in waiting.items():
        zone = alone if name in bridge else Zone.SKIPPED
        if name in runs:
            zone = shared if name in bridge and name in plain else main
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
