"""Finds the line of the submission that is running, and that of a kernel. In the worker."""

from __future__ import annotations

import ast
import functools
import re
import sys
from typing import Any

from grader.base import functions


def running_line(path: str) -> int:
    """Return the line of the file at `path` that is running, the innermost; 0 if none is."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != path:
        frame = frame.f_back
    return frame.f_lineno if frame is not None else 0


def kernel_line(kernel: Any, path: str) -> int:
    """Return the line of `def` of a kernel that is compiled, 0 where it is not of that file.

    By its code: the lists in which Triton keeps the kernel's text are in the file's reach.
    """
    code = kernel.fn.__code__
    if code.co_filename != path:
        return 0
    found = _functions(path).get((code.co_name, code.co_firstlineno))
    return found.lineno if found else code.co_firstlineno


def function_at(path: str, line: int) -> str:
    """Return the name of the innermost function of the file at `path` that a line is in."""
    found = [f for f in _functions(path).values() if f.lineno <= line <= (f.end_lineno or 0)]
    return max(found, key=lambda f: f.lineno).name if found else "<module>"


def read_as_written(path: str) -> None:
    """Let Triton compile of the file at `path` what the source policy has read, from now on.

    That is a function of which the text says triton.jit. Triton looks for a line that begins as a
    function of that name does, which may be one of a text, or takes what stands beside a lambda.
    What it reads else is refused with a TypeError.
    """
    from triton.runtime import jit

    owner = getattr(jit, "JITCallable", jit.JITFunction)
    parse = owner.parse
    with open(path, "rb") as file:
        known = {function.lineno for function in functions.compiled(ast.parse(file.read()))}
    read: set[tuple[Any, ...]] = set()  # Triton parses a function anew for each set of types

    def parsed(this: Any) -> ast.Module:
        tree = parse(this)
        code, text = this.fn.__code__, vars(this).get("_src")  # which is what Triton parses
        key = (code, text, isinstance(this, jit.JITFunction)) if type(text) is str else None
        if code.co_filename != path or (key and key in read):
            return tree
        written = _functions(path).get((code.co_name, code.co_firstlineno))
        if not written or _text(written) != _text(tree.body[0]):
            why = "Triton reads another text for this function than stands in its line"
            raise TypeError(f"{code.co_name}: {why}; write it with def, on lines of its own")
        if isinstance(this, jit.JITFunction) and written.lineno not in known:
            why = "the source policy has not read this function as a kernel"
            raise TypeError(f"{code.co_name}: {why}; write @triton.jit in the line above its def")
        if key:
            read.add(key)
        return tree

    owner.parse = parsed


def _text(function: ast.FunctionDef) -> str:
    """Return what a function says, without its decorators and without the spaces of its texts."""
    parts = ast.dump(function.args), *map(ast.dump, function.body)
    return function.name + "".join(re.sub(r"\\n|\s", "", part) for part in parts)


@functools.lru_cache(maxsize=1)
def _functions(path: str) -> dict[tuple[str, int], ast.FunctionDef]:
    """Return each function by its name and its first line, that of a decorator perhaps."""
    with open(path, "rb") as file:
        nodes = functions.walk(ast.parse(file.read()))
    found = [n for n in nodes if isinstance(n, ast.FunctionDef)]
    return {(n.name, min([n.lineno, *(d.lineno for d in n.decorator_list)])): n for n in found}
