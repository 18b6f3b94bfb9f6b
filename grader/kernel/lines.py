"""Finds the running line of the submission, and the line of a kernel. In the worker."""

from __future__ import annotations

import ast
import functools
import re
import sys
from typing import Any

from grader.base import functions


def running_line(path: str) -> int:
    """Return the innermost running line of the file at `path`, 0 if none runs."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != path:
        frame = frame.f_back
    return frame.f_lineno if frame is not None else 0


def kernel_line(kernel: Any, path: str) -> int:
    """Return the line of a compiled kernel's `def`, 0 if it lies outside the file at `path`.

    Its code object tells: the submission could change the text that Triton stores.
    """
    code = kernel.fn.__code__
    if code.co_filename != path:
        return 0
    found = _functions(path).get((code.co_name, code.co_firstlineno))
    return found.lineno if found else code.co_firstlineno


def function_at(path: str, line: int) -> str:
    """Return the name of the innermost function around a line of the file at `path`."""
    found = [f for f in _functions(path).values() if f.lineno <= line <= (f.end_lineno or 0)]
    return max(found, key=lambda f: f.lineno).name if found else "<module>"


def read_as_written(path: str) -> None:
    """Let Triton compile, of the file at `path`, only what the source policy has read.

    Those are the functions whose text says triton.jit. Triton itself searches for a line that looks
    like the start of that function, which may lie in a string, or takes the text beside a lambda.
    Any other text raises a TypeError.
    """
    from triton.runtime import jit

    owner = getattr(jit, "JITCallable", jit.JITFunction)
    parse = owner.parse
    with open(path, "rb") as file:
        known = {function.lineno for function in functions.compiled(ast.parse(file.read()))}
    read: set[tuple[Any, ...]] = set()  # Triton parses a function anew for each set of types

    def parsed(this: Any) -> ast.Module:
        tree = parse(this)
        code, text = this.fn.__code__, vars(this).get("_src")  # the text that Triton parses
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
    """Return a function's syntax tree as text, without decorators and white space in strings."""
    parts = ast.dump(function.args), *map(ast.dump, function.body)
    return function.name + "".join(re.sub(r"\\n|\s", "", part) for part in parts)


@functools.lru_cache(maxsize=1)
def _functions(path: str) -> dict[tuple[str, int], ast.FunctionDef]:
    """Return each function by its name and its first line, which may be a decorator's."""
    with open(path, "rb") as file:
        nodes = functions.walk(ast.parse(file.read()))
    found = [n for n in nodes if isinstance(n, ast.FunctionDef)]
    return {(n.name, min([n.lineno, *(d.lineno for d in n.decorator_list)])): n for n in found}
