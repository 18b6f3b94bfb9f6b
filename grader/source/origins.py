"""Finds the line that makes what is wrong: a lost pointer, a returned value, a step's result."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping

from grader.source.expressions import assigned_by, calls_in, names_in, names_of
from grader.source.feeding import Spot, lines_feeding
from grader.source.functions import assigned_in, lines_setting
from grader.source.loops import FUNCTIONS, function_at, nodes_of

_SCALE = re.compile("scale|LOG2_E|LN_2")


def lost_pointer(tree: ast.Module, line: int) -> tuple[int, str] | None:
    """Return the line, and the name, where the pointer that a line uses becomes a number.

    There a pointer's name is assigned a value without a pointer, as in `k_ptr = head * stride`.
    """
    lost: dict[int, str] = {}
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.Assign)):
        names, made = names_of(node.targets[0]), names_in(node.value)
        calls = [n.func for n in ast.walk(node.value) if isinstance(n, ast.Call)]
        if any(isinstance(called, ast.Name) for called in calls):
            continue  # the function may return a pointer
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

    Where another function of the file makes it, that is a line of the other.
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


def making(tree: ast.Module, inside: range, outputs: Collection[str], part: str) -> list[int]:
    """Return the line of the statement of a step that makes a result, none where several do.

    It is the only statement in the lines `inside`; for the part "weights" of a cause, the one with
    an exponential; else the one that makes one of the `outputs`. For "scale", all lines that read
    the scale.
    """
    nodes = [n for n in nodes_of(tree, ast.stmt) if n.lineno in inside]
    assigns = [(n, assigned_by(n), getattr(n, "value", None)) for n in nodes]
    if part == "scale" and len(nodes) > 1:
        scales = {n.lineno for n in nodes_of(tree, ast.Name) if _SCALE.search(n.id)}
        return sorted(scales & {*inside})
    makes = [n for n, names, of in assigns if names & {*outputs} and not _allocates(of)]
    if part == "weights":
        makes = [n for n, _, value in assigns if calls_in(value) & {"exp", "exp2"}]
    makes = nodes if len(nodes) == 1 else makes
    return [makes[0].lineno] if len(makes) == 1 else []


def replacing(
    tree: ast.Module, given: Mapping[int, int], step_at: Callable[[int], int | None], pointer: str
) -> int:
    """Return the line of a step that sets a name without a pointer, though its given line uses it.

    0 where none does. `given` has the step of each given line.
    """
    for node in nodes_of(tree, ast.Assign):
        function = function_at(tree, node.lineno)
        if node.lineno not in given or not _reads(node.value, pointer) or function is None:
            continue
        for name in assigned_by(node):
            lines = assigned_in(None, function, name)
            made = {n: of for n, of in lines if step_at(n) == given[node.lineno]}
            if made and not any(_reads(value, pointer) for value in made.values()):
                return max(made)
    return 0


def left_as_given(
    tree: ast.Module,
    given: Mapping[int, int],
    step_at: Callable[[int], int | None],
    makes: Mapping[str, int],
    starts: Mapping[int, int],
) -> dict[int, tuple[int, str]]:
    """Return the given lines whose name a step must set again but does not: the step, the name.

    A line is `given` for a step, or lies before the step that `makes` the name, in its function.
    `starts` are the first lines of the steps.
    """

    def step_for(name: str, line: int) -> int | None:
        step = makes.get(name, 0)
        start = starts.get(step, 0)
        before = line < start and step_at(line) is None
        return step if before and function_at(tree, start) is function_at(tree, line) else None

    nodes = nodes_of(tree, ast.Assign)
    names = [(n.lineno, name) for n in nodes for name in assigned_by(n)]
    found = [(n, given.get(n) or step_for(name, n), name) for n, name in names]
    return {
        n: (step, name)
        for n, step, name in found
        if step and step not in {step_at(other) for other in lines_setting(tree, n, name)}
    }


def _reads(value: ast.AST | None, pointer: str) -> bool:
    """Whether a value reads a name that begins as a pointer's does, such as x_tile for x_ptr."""
    return pointer.partition("_")[0] in {name.partition("_")[0] for name in names_in(value)}


def _allocates(value: ast.AST | None) -> bool:
    return any(name.startswith(("empty", "zeros", "full")) for name in calls_in(value))
