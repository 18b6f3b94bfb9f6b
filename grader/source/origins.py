"""Where what an error complains of was made: a number that a pointer became, what is returned."""

from __future__ import annotations

import ast

from grader.source.expressions import names_in, names_of
from grader.source.feeding import Spot, lines_feeding
from grader.source.functions import assigned_in
from grader.source.loops import FUNCTIONS


def lost_pointer(tree: ast.Module, line: int) -> tuple[int, str] | None:
    """Return the line, and the name, where what a line takes for a pointer becomes a number.

    There a name of a pointer is assigned what no pointer is part of, as in `k_ptr = head * stride`.
    """
    lost: dict[int, str] = {}
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.Assign)):
        names, made = names_of(node.targets[0]), names_in(node.value)
        calls = [n.func for n in ast.walk(node.value) if isinstance(n, ast.Call)]
        if any(isinstance(called, ast.Name) for called in calls):
            continue  # it may return one
        if any("ptr" in name for name in names) and not any("ptr" in name for name in made):
            lost[node.lineno] = next(name for name in names if "ptr" in name)
    of = {n: 1 for n in lost}.get
    found = [*lines_feeding(tree, Spot(line, part="pointer"), of)]
    return (found[0], lost[found[0]]) if len(found) == 1 else None


def names_read(tree: ast.Module, line: int) -> set[str]:
    """Return the names that the statement at a line works with."""
    return names_in(*(n for n in ast.walk(tree) if isinstance(n, ast.stmt) and n.lineno == line))


def returned_from(
    tree: ast.Module, function: str, index: int | None = None
) -> tuple[int, str] | None:
    """Return the line that makes what a function returns (at an index), and its name.

    Where it calls another function of the file for that, that is a line of the other.
    """
    own = [n for n in ast.walk(tree) if isinstance(n, FUNCTIONS) and n.name == function]
    ends = [n.value for f in own for n in ast.walk(f) if isinstance(n, ast.Return)]
    value = ends[0] if len(ends) == 1 else None
    if index is not None:
        values = value.elts if isinstance(value, ast.Tuple) else []
        value = values[index] if index < len(values) else None
    made = list(assigned_in(None, own[0], value.id)) if isinstance(value, ast.Name) else []
    if not made:
        return None
    line, last = max(made, key=lambda pair: pair[0])
    called = last.func if isinstance(last, ast.Call) else None
    inner = isinstance(called, ast.Name) and called.id != function
    return (returned_from(tree, called.id) if inner else None) or (line, value.id)
