"""What the names of a submission stood for when it raised: shapes of tensors, and integers.

Of functions that ran, and of kernels that Triton was compiling. A shape that does not fit is often
made lines before the one that fails. Runs inside the worker.
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
    """Have Triton's code generators keep what names stood for: in a loop they forget it."""
    from triton.compiler.code_generator import CodeGenerator

    plain = CodeGenerator.set_value

    def set_value(self: Any, name: str, value: Any) -> None:
        plain(self, name, value)
        vars(self).setdefault(_NAMES, {})[name] = value

    CodeGenerator.set_value = set_value


def shapes_of(chain: Iterable[BaseException], path: str) -> str:
    """Return for each function of the file at `path`, as JSON, the line that it was at and names.

    `chain` is an error and its causes; outer functions come first. Empty where there is none, or
    too much to tell.
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
    """Return Triton's code generator, and the line that it reads, where a frame is one of these."""
    generator, node = frame.f_locals.get("self"), frame.f_locals.get("node")
    triton = sys.modules.get("triton.compiler.code_generator")
    # Of anything else, as a tuple of a kernel, not even an attribute is asked.
    if triton is None or not isinstance(generator, triton.CodeGenerator):
        return None
    if generator.file_name != path or not isinstance(node, (ast.expr, ast.stmt)):
        return None
    if not hasattr(node, "lineno"):  # which Triton makes of the default of an argument
        return None
    # Of a loop, and of nothing in it, Triton complains when it has read all of it.
    line = node.end_lineno + 1 if isinstance(node, _LOOPS) else node.lineno
    return generator, generator.begin_line + line


def _size(value: Any) -> int | list[int] | str | None:
    """Return an integer, or a shape; of what is no tensor, and may stand for one, its kind."""
    tl = sys.modules.get("triton.language")  # not for a submission without kernels
    value = value.value if tl and isinstance(value, tl.constexpr) else value
    if type(value) is int:
        return value
    if isinstance(value, torch.Tensor):
        return list(value.shape)
    if tl and isinstance(value, tl.tensor):
        return [int(getattr(n, "value", n)) for n in value.shape]
    kinds = {type(None): "None", tuple: "a tuple", list: "a list", float: "a number"}
    return next((said for kind, said in kinds.items() if isinstance(value, kind)), None)
