"""Lets and, or, not, max and min mean for tiles what Triton makes of them. Runs in a worker.

There they go element by element. In Triton's interpreter a kernel is Python, which asks a tile
whether it is true: any tile of several elements is, so that `rows and cols` is `cols`, `not rows`
is False and `max(a, b)` is b.
"""

from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Callable
from typing import Any

_CHOICES = ("max", "min")


def install(interpreter: Any) -> None:
    """Change the text of kernels so, where Triton's interpreter changes it.

    The words become functions, which lie where a transformer of Triton looks for its own.
    """
    import triton.language as tl

    before = interpreter.FunctionRewriter.ast_transformer

    class Transformer(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
            return before.visit(_Words().visit(node))

    def is_tile(value: Any) -> bool:
        return isinstance(value, tl.tensor) and value.type.is_block()

    def both(value: Any, other: Callable[[], Any]) -> Any:
        return value.logical_and(other()) if is_tile(value) else value and other()

    def either(value: Any, other: Callable[[], Any]) -> Any:
        return value.logical_or(other()) if is_tile(value) else value or other()

    def opposite(value: Any) -> Any:
        return tl.tensor.__not__(value) if is_tile(value) else not value

    def called(function: Any, *args: Any, **kwargs: Any) -> Any:
        if any(map(is_tile, args)) and len(args) > 1:  # the name may be the kernel's own
            if function is builtins.max:
                return functools.reduce(lambda a, b: tl.maximum(a, b), args)
            if function is builtins.min:
                return functools.reduce(lambda a, b: tl.minimum(a, b), args)
        return function(*args, **kwargs)

    interpreter.kernel_and, interpreter.kernel_or = both, either
    interpreter.kernel_not, interpreter.kernel_call = opposite, called
    interpreter.FunctionRewriter.ast_transformer = Transformer()


class _Words(ast.NodeTransformer):
    """Puts the functions of `install` in the place of the words."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """Each operand but the first is computed when it is asked for: Python may leave it out."""
        self.generic_visit(node)
        name = "kernel_and" if isinstance(node.op, ast.And) else "kernel_or"
        first, *others = node.values
        for other in others:
            later = ast.copy_location(ast.Lambda(_NO_ARGUMENTS, other), other)
            call = ast.Call(ast.Name(name, ast.Load()), [first, later], [])
            first = ast.copy_location(call, node)
        return first

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        call = ast.Call(ast.Name("kernel_not", ast.Load()), [node.operand], [])
        return ast.copy_location(call, node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in _CHOICES:
            node.args.insert(0, node.func)
            node.func = ast.copy_location(ast.Name("kernel_call", ast.Load()), node.func)
        return node


_NO_ARGUMENTS = ast.arguments([], [], None, [], [], None, [])
