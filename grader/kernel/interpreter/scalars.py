"""Lets a kernel treat a number as the scalar that it is on a GPU. Runs inside the worker.

In Triton's interpreter of 3.6 to 3.9 the variable of a loop is a number of Python's, and so is what
a kernel makes of it or hands on to another function: it has no `.to(tl.int64)`, by which careful
people keep offsets from overflowing. Where Triton compiles, it is a scalar like any other.
"""

from __future__ import annotations

import ast
from typing import Any

_OF_SCALARS = frozenset(["cast", "dtype", "to"])


def install(interpreter: Any) -> None:
    """Change the text of kernels so, where Triton's interpreter changes it."""

    class Transformer(interpreter.ASTTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
            return self.generic_visit(Scalars(node).visit(node))

    interpreter.FunctionRewriter.ast_transformer = Transformer()


class Scalars(ast.NodeTransformer):
    """Makes a scalar of what a kernel converts, or asks for its dtype, where it is a number."""

    def __init__(self, node: ast.FunctionDef) -> None:
        arguments = (n.arg for n in ast.walk(node) if isinstance(n, ast.arg))
        names = (n for n in ast.walk(node) if isinstance(n, ast.Name))
        self._local = {*arguments, *(n.id for n in names if isinstance(n.ctx, ast.Store))}

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Put a call of the interpreter's own, which leaves all but numbers alone, around a value.

        The transformer of Triton puts the same around what is assigned.
        """
        self.generic_visit(node)
        value = node.value
        is_global = isinstance(value, ast.Name) and value.id not in self._local
        if node.attr in _OF_SCALARS and not is_global:
            semantic = ast.Name("interpreter_semantic", ast.Load())
            convert = ast.Attribute(semantic, "to_tensor", ast.Load())
            node.value = ast.copy_location(
                ast.Call(convert, [value, ast.Constant(value=False)], []), value
            )
        return node
