"""Which code of a file runs when the judge calls it, and where it may compute in PyTorch."""

from __future__ import annotations

import ast
import enum

from grader.base import functions
from grader.spec.problem import Problem


class Zone(enum.Enum):
    """Which rules hold for code, by what runs it.

    `HOST` is PyTorch around kernels, `BRIDGE` what a bridge alone needs, `SHARED` what a bridge and
    other code need. Only Triton runs a `KERNEL`, and nothing runs what is `SKIPPED`: a worker
    enforces that (grader/isolate/walls.py).
    """

    HOST = "host"
    SHARED = "shared"
    PYTORCH = "pytorch"
    BRIDGE = "bridge"
    KERNEL = "kernel"
    SKIPPED = "skipped"

    @property
    def serves_kernels(self) -> bool:
        """Whether PyTorch does no more here than to serve kernels."""
        return self in (Zone.HOST, Zone.SHARED, Zone.KERNEL)


def entries(problem: Problem) -> set[str]:
    """Return the functions that the judge calls."""
    return {problem.entry, *([problem.bridge.entry] if problem.bridge else [])}


def zones(problem: Problem, tree: ast.Module) -> dict[ast.AST, Zone]:
    """Return the zone of the module and of what begins another one: its `if` and its functions.

    A function or class of the module runs if an entry point, the module's own code or another that
    runs names it. A function that only a bridge in PyTorch reaches may compute in PyTorch.
    """
    main = Zone.HOST if problem.uses_triton else Zone.PYTORCH
    called = entries(problem)
    reach = functions.Reach(tree, differentiates=bool(problem.gradients))
    found: dict[ast.AST, Zone] = {tree: main}
    if problem.bridge is not None and problem.bridge.language == "pytorch":
        of_bridge = reach.closure({problem.bridge.entry}) & reach.plain
        named = reach.named | {problem.entry}
        for name in reach.closure(named | called) - reach.plain:
            named |= {name} | reach.named_by[name]
        shared = of_bridge & reach.closure(named)
        for name in of_bridge:
            zone = Zone.SHARED if name in shared else Zone.BRIDGE
            found |= dict.fromkeys(reach.waiting[name], zone)
    unused = reach.unused(called)
    unused |= {node for node in tree.body if functions.is_main_block(node)}
    found |= dict.fromkeys(unused, Zone.SKIPPED)
    return found | dict.fromkeys(functions.kernels(tree, called), Zone.KERNEL)
