"""What an expression works with: its names, the pointer of an address, the bound of a test."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator, Mapping

_ADDED = (ast.Add, ast.Sub)
CHOICES = {"where", "masked_fill", "masked_fill_"}
ACCESSES = {"load", "store", *CHOICES}


def names_in(*nodes: ast.AST | None) -> set[str]:
    """Return the names that some expressions read."""
    inside = (n for node in nodes if node is not None for n in ast.walk(node))
    return {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def names_of(target: ast.AST) -> set[str]:
    """Return the names that an assignment to a target changes, without those in its indices."""
    while isinstance(target, (ast.Subscript, ast.Starred)):
        target = target.value
    if isinstance(target, (ast.Tuple, ast.List)):
        return set().union(*map(names_of, target.elts))
    return {target.id} if isinstance(target, ast.Name) else set()


def assigned_by(statement: ast.AST) -> set[str]:
    """Return the names that a statement assigns."""
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    return set().union(*(names_of(target) for target in targets if target is not None))


def calls_in(expression: ast.AST | None) -> set[str]:
    """Return the last names of what an expression calls: "exp" of torch.exp(x) and x.exp()."""
    calls = [n.func for n in ast.walk(expression or ast.Pass()) if isinstance(n, ast.Call)]
    return {getattr(called, "attr", getattr(called, "id", "")) for called in calls}


def parameters_of(function: ast.FunctionDef) -> list[str]:
    """Return the names of the parameters of a function, in order."""
    arguments = function.args
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def offsets_of(address: ast.AST) -> list[ast.AST]:
    """Return the offsets that an address adds to its pointer, as far as it is written as a sum."""
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


_OPPOSITE: dict[type, type] = {ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt}
_TURNED: dict[type, type] = {ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.Lt: ast.Gt, ast.GtE: ast.LtE}


def guard(
    tests: list[ast.AST],
    counted: Container[str],
    parts: Container[str],
    made: Mapping[str, ast.AST],
) -> ast.AST | None:
    """Return the bound by which branches choose the tiles at one end of a loop.

    `counted` are names of positions in the loop, `parts` names the end. The first test itself, as a
    statement, where no part of it chooses that end; None where a test is not `position < bound` or
    `position >= bound`, joined by "or", or the opposite. `made` has the values of names.
    """
    ends = {ast.Lt: "before", ast.GtE: "after"}
    split = [_either(test, made) for test in tests]
    split = [
        found for found in split if any(n in counted for one, _ in found for n in names_in(one))
    ]
    if not split or not any(end in parts for end in ends.values()):
        return None
    bounds: list[ast.AST] = []
    for one, opposite in (part for found in split for part in found):
        if not isinstance(one, ast.Compare) or len(one.ops) != 1:
            return None
        position, op, bound = one.left, type(one.ops[0]), one.comparators[0]
        op = _OPPOSITE.get(op, op) if opposite else op
        if getattr(bound, "id", "") in counted:
            position, op, bound = bound, _TURNED.get(op, op), position
        if getattr(position, "id", "") not in counted:
            return None
        if ends.get(op) in parts:
            bounds.append(bound)
    if len(bounds) > 1 or (len(split) > 1 and not bounds):  # any of them may be wrong
        return None
    first = split[0][0][0]
    behind = names_in(*(made.get(getattr(bound, "id", "")) for bound in bounds))
    moves = any(name in counted for name in behind)
    # An expression that moves with the position is no bound.
    return bounds[0] if bounds and not moves else ast.copy_location(ast.Expr(first), first)


def _either(
    test: ast.AST, made: Mapping[str, ast.AST], opposite: bool = False
) -> list[tuple[ast.AST, bool]]:
    """Return the alternatives that a test joins by "or", each with whether it is negated."""
    test = made.get(getattr(test, "id", ""), test)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, (ast.Not, ast.Invert)):
        return _either(test.operand, made, not opposite)
    joint = (ast.BitAnd, ast.And) if opposite else (ast.BitOr, ast.Or)
    if not isinstance(getattr(test, "op", None), joint):
        return [(test, opposite)]
    joined = [test.left, test.right] if isinstance(test, ast.BinOp) else [*test.values]
    return [part for value in joined for part in _either(value, {}, opposite)]


def has_effect(branch: ast.If | ast.IfExp, function: ast.FunctionDef) -> bool:
    """Whether what a branch assigns is read outside of it; without that it decides nothing."""
    if isinstance(branch, ast.IfExp) or any(isinstance(n, ast.Expr) for n in branch.body):
        return True
    inside = {n for part in (*branch.body, *branch.orelse) for n in ast.walk(part)}
    assigned = set().union(*map(assigned_by, inside))
    return any(
        isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id in assigned
        for n in ast.walk(function)
        if n not in inside
    )


def of_access(
    call: ast.Call, called: str, parts: Container[str], within: tuple[ast.FunctionDef, ...]
) -> Iterator[tuple[str, ast.AST]]:
    """Yield the expressions in `parts` of an access, each with the name of its pointer.

    A descriptor counts as a pointer, and the condition of a choice, such as tl.where, as a mask.
    """
    if called in CHOICES:
        yield from (("", one) for one in call.args[:1] if "mask" in parts)
        return
    owner = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    pointer = call.args[0] if call.args else owner
    pointer = owner if isinstance(pointer, ast.List) else pointer
    name = next(iter(names_in(leftmost(pointer))), "")
    if "pointer" in parts:
        yield name, leftmost(pointer)
    if "address" in parts:
        yield from ((name, one) for one in (owner, *call.args[:1]))
    if "offset" in parts:
        yield from ((name, one) for one in offsets_of(pointer) or [pointer])
    if "mask" in parts:
        at = 1 if called == "load" else 2
        masks = [*call.args[at : at + 1], *(k.value for k in call.keywords if k.arg == "mask")]
        tests = [n.test for f in within[-1:] for n in ast.walk(f) if isinstance(n, ast.If)]
        yield from ((name, one) for one in (*masks, *tests))


def is_plain_range(value: ast.AST | None) -> bool:
    """Whether a value is a range of plain names: the lines that set these make its mistakes."""
    if not isinstance(value, ast.Call) or calls_in(value) != {"range"}:  # or tl.range
        return False
    return all(isinstance(a, (ast.Name, ast.Constant)) for a in value.args)
