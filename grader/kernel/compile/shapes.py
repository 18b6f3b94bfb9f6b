"""Reads the values of a submission's names when it raised: shapes of tensors, and integers.

The names are those of running functions, and of kernels that Triton was compiling: a wrong shape is
often made lines before the one that fails. Runs inside the worker.
"""

from __future__ import annotations

import ast
import json
import sys
import traceback
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch

_LOOPS = (ast.For, ast.While)
_NAMES = "names_of_grader"
_MOST = 1_100  # characters, beside the text of an error


def keep_names() -> None:
    """Let Triton's code generators remember the values of names, which they forget in a loop."""
    from triton.compiler.code_generator import CodeGenerator

    plain = CodeGenerator.set_value

    def set_value(self: Any, name: str, value: Any) -> None:
        plain(self, name, value)
        vars(self).setdefault(_NAMES, {})[name] = value

    CodeGenerator.set_value = set_value


def shapes_of(chain: Iterable[BaseException], path: str) -> str:
    """Return, as JSON, the line and the names of each function of the file at `path`.

    `chain` is an error and its causes; outer functions come first. The text is empty if there are
    no names, or if it would be too long.
    """
    found: dict[int, tuple[int, dict[str, Any]]] = {}
    for frame, line in (pair for error in chain for pair in traceback.walk_tb(error.__traceback__)):
        of_triton = _compiled(frame, path)
        if frame.f_code.co_filename == path:
            found[id(frame)] = line, frame.f_locals
        elif of_triton is not None:
            generator, line = of_triton
            found[id(generator)] = line, getattr(generator, _NAMES, {})
    rows = [
        (line, {name: size for name, value in names.items() if (size := _size(value)) is not None})
        for line, names in found.values()
    ]
    text = json.dumps(rows, separators=(",", ":"))
    return text if any(names for _, names in rows) and len(text) <= _MOST else ""


def _compiled(frame: FrameType, path: str) -> tuple[Any, int] | None:
    """Return the code generator of a frame of Triton's, and the line that it reads; else None."""
    generator, node = frame.f_locals.get("self"), frame.f_locals.get("node")
    triton = sys.modules.get("triton.compiler.code_generator")
    # Read not even an attribute of anything else, such as a tuple of a kernel.
    if triton is None or not isinstance(generator, triton.CodeGenerator):
        return None
    if generator.file_name != path or not isinstance(node, (ast.expr, ast.stmt)):
        return None
    if not hasattr(node, "lineno"):  # a node that Triton makes of an argument's default
        return None
    # An error of the loop itself, not of a line in it, comes when Triton has read all of it.
    line = node.end_lineno + 1 if isinstance(node, _LOOPS) else node.lineno
    return generator, generator.begin_line + line


def _size(value: Any) -> int | list[int] | str | None:
    """Return an integer, a tensor's shape, or the kind of a value in a tensor's place."""
    tl = sys.modules.get("triton.language")  # absent for a submission without kernels
    value = value.value if tl and isinstance(value, tl.constexpr) else value
    if type(value) is int:
        return value
    if isinstance(value, torch.Tensor):
        return list(value.shape)
    if tl and isinstance(value, tl.tensor):
        return [int(getattr(n, "value", n)) for n in value.shape]
    kinds = {type(None): "None", tuple: "a tuple", list: "a list", float: "a number"}
    return next((said for kind, said in kinds.items() if isinstance(value, kind)), None)
