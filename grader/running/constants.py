"""Lets Python learn nothing of a kernel's values in Triton's interpreter, as on a GPU. In a worker.

There a kernel is Python. A value that it shows to something of Python's is out of the kernel, and
anything may compute with it. On a GPU nothing of Python's is left when the kernel runs.
"""

from __future__ import annotations

import copy
import enum
import threading
from typing import Any

from grader.running import readings

_CONTAINERS = (list, dict, set, bytearray)
_PLAIN = (tuple, int, float, str, enum.Enum, type)


def install(module: str) -> None:
    """Keep values inside the kernels of the submission that is called `module`."""
    from triton import language as tl
    from triton.runtime import interpreter, jit

    executor, patch_tensor = interpreter.GridExecutor, interpreter._patch_lang_tensor
    launch, inside = executor.__call__, threading.local()

    def call(this: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = zip(this.arg_names, args, strict=False)
        known = [_constant(n, v, module) if n in this.constexprs else v for n, v in pairs]
        given = {n: _constant(n, kwargs[n], module) for n in this.constexprs if n in kwargs}
        return launch(this, *known, *args[len(known) :], **(kwargs | given))

    def patch(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        for name in ("__index__", "__bool__"):
            scope.set_attr(tensor, name, kept(vars(tensor)[name]))
        for name in ("__repr__", "__str__"):
            scope.set_attr(tensor, name, lambda this: f"a value of {this.type}")

    def kept(convert: Any) -> Any:
        def number(this: Any) -> Any:
            if getattr(inside, "depth", 0):
                raise TypeError("a constexpr function asks for a value that only a run has")
            return convert(this)

        return number

    readings.shown_by(tl.tensor, lambda value: repr(value.handle.data))
    executor.__call__, interpreter._patch_lang_tensor = call, patch
    function = getattr(jit, "ConstexprFunction", None)
    if function is not None:
        compute = function.__call__

        def evaluate(this: Any, *args: Any, **kwargs: Any) -> Any:
            inside.depth = getattr(inside, "depth", 0) + 1
            try:
                return compute(this, *args, **kwargs)
            finally:
                inside.depth -= 1

        function.__call__ = evaluate


def _constant(name: str, value: Any, module: str) -> Any:
    """Return what a kernel gets for a constexpr: a copy of what could be written to."""
    if type(value) in _CONTAINERS:
        return copy.copy(value)
    kind = type(value)
    tritons = kind.__module__.startswith("triton") or hasattr(value, "__triton_builtin__")
    own = any(getattr(k, "__module__", "") == module for k in kind.__mro__)
    if not tritons and not isinstance(value, _PLAIN) and (own or callable(value)):
        raise TypeError(
            f"{name}: got {kind.__name__}, expected a constant that Triton compiles: a number,"
            " text, a type, a tuple or a function of Triton's"
        )
    return value
