"""Finds which lines of a source repeat: loops around a line, and around calls of its function.

A program that does not end is stopped at some line of a loop. What the loop waits for may be made
in any of its lines, and in those of every loop around it.
"""

from __future__ import annotations

import ast
import functools

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_OF_BEGINNINGS = {"first", "begin", "start", "low", "lo"}
_OF_ENDS = {"last", "end", "stop", "high", "hi"}
LOOPS = (ast.For, ast.AsyncFor, ast.While)


@functools.lru_cache(64)
def nodes_of(tree: ast.AST, *kinds: type[ast.AST]) -> tuple[ast.AST, ...]:
    """Return the nodes of a tree, or those of some kinds.

    They are cached: `feeding` needs them a thousand times, and nothing changes a tree.
    """
    return tuple(n for n in ast.walk(tree) if not kinds or isinstance(n, kinds))


def loops_around(tree: ast.Module, line: int) -> list[range]:
    """Return the lines of each loop around `line`, its header among them.

    Also of loops around lines that name its function, around lines that name theirs, and so on.
    """
    loops: list[range] = []
    known: set[str] = set()
    lines = [line]
    while lines:
        line = lines.pop()
        inner = function_at(tree, line)
        around = (lines_of(n) for n in ast.walk(inner or tree) if isinstance(n, LOOPS))
        loops += [loop for loop in around if line in loop]
        if inner is not None and inner.name not in known:
            known.add(inner.name)
            lines += _named(tree, inner.name)
    return loops


def function_at(tree: ast.Module, line: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the innermost function in which a line lies."""
    around = [n for n in nodes_of(tree, *FUNCTIONS) if line in lines_of(n)]
    return max(around, key=lambda n: n.lineno, default=None)


def is_head_of_loop(tree: ast.Module, line: int) -> bool:
    """Whether a loop begins at a line."""
    return any(isinstance(n, LOOPS) and n.lineno == line for n in ast.walk(tree))


def is_turned(tree: ast.Module, line: int) -> bool:
    """Whether the loop at a line goes from an end to a beginning, by the names of its bounds."""
    loops = [n for n in ast.walk(tree) if isinstance(n, ast.For) and n.lineno == line]
    bounds = [getattr(n.iter, "args", ()) for n in loops]
    names = [getattr(bound, "id", "").partition("_")[0] for of in bounds for bound in of[:2]]
    return len(names) == 2 and (names[0] in _OF_ENDS or names[1] in _OF_BEGINNINGS)


def lines_of(node: ast.AST) -> range:
    """Return the lines of a node of a tree, none where it has no place."""
    first = getattr(node, "lineno", 0)
    return range(first, (getattr(node, "end_lineno", None) or first - 1) + 1)


def _named(tree: ast.Module, name: str) -> list[int]:
    """Return the lines that name a function: they call it, launch it or pass it on."""
    nodes = (n for n in nodes_of(tree) if name in (getattr(n, "id", ""), getattr(n, "attr", "")))
    return [n.lineno for n in nodes]


def read_by(inner: ast.stmt) -> list[ast.AST]:
    """Return what a statement itself reads, without the statements in it."""
    if isinstance(inner, LOOPS):
        return bounds_of(inner)
    if isinstance(inner, (ast.If, ast.With, *FUNCTIONS)):
        return [inner.test] if isinstance(inner, ast.If) else []
    if isinstance(inner, ast.AugAssign) and isinstance(inner.target, ast.Name):
        return [inner, ast.Name(inner.target.id, ast.Load())]  # what it adds to is read, too
    return [inner]


def bounds_of(loop: ast.AST) -> list[ast.AST]:
    if isinstance(loop, ast.While):
        return [loop.test]
    over = loop.iter if isinstance(loop, (ast.For, ast.AsyncFor)) else loop
    return list(over.args) if isinstance(over, ast.Call) else [over]
