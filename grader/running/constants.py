"""Lets Python learn nothing of a kernel's values in Triton's interpreter, as on a GPU. In a worker.

There a kernel is Python. A value that it shows to something of Python's is out of the kernel, and
anything may compute with it. On a GPU nothing of Python's is left when the kernel runs.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import threading
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

from grader.running import readings


def install(module: str) -> None:
    """Keep values inside the kernels of the submission that is called `module`."""
    from triton import language as tl
    from triton.runtime import interpreter, jit

    executor, patch_tensor = interpreter.GridExecutor, interpreter._patch_lang_tensor
    launch, inside = executor.__call__, threading.local()

    def call(this: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = zip(this.arg_names, args, strict=False)
        known = [taken(this, n, v) for n, v in pairs]
        given = {n: taken(this, n, v) for n, v in kwargs.items() if n in this.arg_names}
        return launch(this, *known, *args[len(known) :], **(kwargs | given))

    def taken(this: Any, name: str, value: Any) -> Any:
        if name not in this.constexprs and hasattr(value, "data_ptr"):
            return value
        if isinstance(value, tl.constexpr):
            return tl.constexpr(_taken(name, value.value, module))
        return _taken(name, value, module)

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


def _taken(name: str, value: Any, module: str) -> Any:
    """Return what a kernel gets for an argument: nothing that would keep a value.

    Of lists and of objects of the file that is a copy, which has their attributes and no methods.

    Raises:
        TypeError: a value of a kernel could be handed to it, and no Triton compiles it.
    """
    kind = type(value)
    if kind.__module__.startswith("triton") or hasattr(value, "__triton_builtin__"):
        return value
    own = _is_own(kind, module)
    if isinstance(value, type):
        if _is_own(value, module) and _has_methods(value, module):
            raise _refused(name, f"the class {value.__name__}")
    elif isinstance(value, (tuple, list)):
        parts = [_taken(f"{name}[{i}]", part, module) for i, part in enumerate(value)]
        if not own:
            return kind(parts) if kind in (tuple, list) else tuple(parts)
        if not hasattr(kind, "_fields"):
            return tuple(parts)
        row = type(kind.__name__, (namedtuple(kind.__name__, kind._fields),), {})(*parts)
        vars(row).update(_attributes(name, value, module, without=kind._fields))
        return row
    elif isinstance(value, dict):
        return {key: _taken(f"{name}[{key!r}]", part, module) for key, part in value.items()}
    elif isinstance(value, (set, bytearray)):
        return copy.copy(value)
    elif own and not (isinstance(value, enum.Enum) and not _has_methods(kind, module)):
        for plain in (int, float, str):
            if isinstance(value, plain):
                return plain(value)
        return SimpleNamespace(**_attributes(name, value, module))
    elif callable(value):
        raise _refused(name, kind.__name__)
    return value


def _refused(name: str, got: str) -> TypeError:
    return TypeError(
        f"{name}: got {got}, expected a constant that Triton compiles: a number, text, a type, a"
        " tuple or a function of Triton's"
    )


def _is_own(kind: type, module: str) -> bool:
    return any(getattr(k, "__module__", "") == module for k in kind.__mro__)


def _has_methods(kind: type, module: str) -> bool:
    """Whether a class of the file has code of the file."""
    members = [m for k in kind.__mro__ if _is_own(k, module) for m in vars(k).values()]
    inner = [getattr(m, "__func__", getattr(m, "fget", m)) for m in members]
    return any(getattr(m, "__module__", "") == module and callable(m) for m in inner)


def _attributes(
    name: str, value: Any, module: str, without: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the public attributes of an object of the file, but for what can be called."""
    names = {n for k in type(value).__mro__ if _is_own(k, module) for n in vars(k)}
    names |= vars(value).keys() if hasattr(value, "__dict__") else set()
    names |= {"name", "value"} if isinstance(value, enum.Enum) else set()
    found = {}
    for attribute in sorted(names - set(without)):
        if attribute.startswith("_"):
            continue
        with contextlib.suppress(Exception):  # of a property: nobody may have asked for it
            found[attribute] = _taken(f"{name}.{attribute}", getattr(value, attribute), module)
    return found
