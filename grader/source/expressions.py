"""What an expression works with: its names, the pointer of an address, the bound of a test."""

from __future__ import annotations

import ast
from collections.abc import Container

_ADDED = (ast.Add, ast.Sub)


def names_in(*nodes: ast.AST | None) -> set[str]:
    """Return the names that some expressions read."""
    inside = (n for node in nodes if node is not None for n in ast.walk(node))
    return {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def names_of(target: ast.AST) -> set[str]:
    """Return the names that an assignment to a target changes, which no index of it is."""
    while isinstance(target, (ast.Subscript, ast.Starred)):
        target = target.value
    if isinstance(target, (ast.Tuple, ast.List)):
        return set().union(*map(names_of, target.elts))
    return {target.id} if isinstance(target, ast.Name) else set()


def parameters_of(function: ast.FunctionDef) -> list[str]:
    """Return the names of the parameters of a function, in order."""
    arguments = function.args
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def offsets_of(address: ast.AST) -> list[ast.AST]:
    """Return what is added to the pointer of an address, where that is seen."""
    offsets = []
    while isinstance(address, ast.BinOp) and isinstance(address.op, _ADDED):
        offsets.append(address.right)
        address = address.left
    return offsets


def leftmost(expression: ast.AST) -> ast.AST:
    """Return the pointer of an address: by custom it stands first in the sum."""
    while True:
        if isinstance(expression, ast.BinOp) and isinstance(expression.op, _ADDED):
            expression = expression.left
        elif isinstance(expression, ast.Call) and expression.args:  # as of a descriptor
            expression = expression.args[0]
        else:
            return expression


def guard(tests: list[ast.AST], counted: Container[str], parts: Container[str]) -> ast.AST | None:
    """Return the bound by which a branch takes the tiles of one end of a loop, in `counted`.

    The test itself, as a statement, where no part of it does; None where it is of another form
    than `position < bound` and `position >= bound`, joined by "or".
    """
    ends = {ast.Lt: "before", ast.GtE: "after"}
    turned: dict[type, type] = {ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.Lt: ast.Gt, ast.GtE: ast.LtE}
    tests = [test for test in tests if any(name in counted for name in names_in(test))]
    if len(tests) != 1 or not any(end in parts for end in ends.values()):
        return None
    for one in _either(tests[0]):
        if not isinstance(one, ast.Compare) or len(one.ops) != 1:
            return None
        position, op, bound = one.left, type(one.ops[0]), one.comparators[0]
        if getattr(bound, "id", "") in counted:
            position, op, bound = bound, turned.get(op, op), position
        if getattr(position, "id", "") not in counted:
            return None
        if ends.get(op) in parts:
            return bound
    return ast.copy_location(ast.Expr(tests[0]), tests[0])


def _either(test: ast.AST) -> list[ast.AST]:
    """Return the parts of a test of which one is enough."""
    if isinstance(test, ast.BinOp) and isinstance(test.op, ast.BitOr):
        return [*_either(test.left), *_either(test.right)]
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return [part for value in test.values for part in _either(value)]
    return [test]
