"""Lets Python learn nothing of a kernel's values in Triton's interpreter, as on a GPU. In a worker.

There a kernel is Python. A value that it shows to something of Python's is out of the kernel, and
anything may compute with it. On a GPU nothing of Python's is left when the kernel runs.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import inspect
import threading
from collections import namedtuple
from collections.abc import Callable
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from grader.kernel.interpreter import keeping, readings

if TYPE_CHECKING:
    from grader.kernel.interpreter.own_kernels import Kernels


_PLAIN = (int, float, complex, str, bytes, type(None), type(...), range)
_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
# The attributes of each class of the file that a kernel was given, as they were before it, and
# the members of those that are enums.
_attributes_of: dict[type, dict[str, Any]] = {}
_members: dict[type, dict[Any, Any]] = {}
_ACCESSES = ("masked_load", "masked_store", "atomic_rmw", "atomic_cas")
Functions = Callable[[str, Any], Any]


def install(kernels: Kernels) -> None:
    """Keep values inside the kernels of a submission."""
    from triton import language as tl
    from triton.runtime import interpreter, jit

    executor, patch_tensor = interpreter.GridExecutor, interpreter._patch_lang_tensor
    builder, inside = interpreter.InterpreterBuilder, threading.local()
    launch, begin = executor.__call__, builder.set_grid_idx

    def call(this: Any, *args: Any, **kwargs: Any) -> Any:
        kernels.launched()
        around = dict(_attributes_of), dict(_members)  # of a launch whose grid launches this one
        _attributes_of.clear()
        _members.clear()
        outer, inside.runs = getattr(inside, "runs", False), False
        grid = this.grid
        try:
            pairs = zip(this.arg_names, args, strict=False)
            known = [argument(this, n, v) for n, v in pairs]
            given = {n: argument(this, n, v) for n, v in kwargs.items() if n in this.arg_names}
            if callable(grid):  # gets what the launch was given, as on a GPU, and not the kernel's
                named = {n: v for n, v in kwargs.items() if n in this.arg_names}
                meta = inspect.getcallargs(this.fn, *args, **named)
                this.grid = lambda _: grid(meta)
            return launch(this, *known, *args[len(known) :], **(kwargs | given))
        except BaseException as error:
            # That there is one may tell a value, and so may its text.
            readings.tell(1, "the error of a kernel")
            known = getattr(interpreter, "InterpreterError", None)
            if type(error) is known:
                raise known("a kernel failed") from error
            if not isinstance(error, Exception):  # which Triton lets pass: SystemExit(value)
                name = "SystemExit" if isinstance(error, SystemExit) else "an interrupt"
                raise RuntimeError(f"a kernel raised {name}") from error
            raise
        finally:
            inside.runs, this.grid = outer, grid
            _forget()
            _attributes_of.update(around[0])
            _members.update(around[1])

    def begins(this: Any, *place: int) -> None:
        inside.runs = True
        begin(this, *place)

    def in_kernels(access: Any) -> Any:
        def accessed(this: Any, *args: Any, **kwargs: Any) -> Any:
            if not getattr(inside, "runs", False):  # a grid's function has the arguments, too
                raise TypeError("memory is read or written by triton.language outside of a kernel")
            return access(this, *args, **kwargs)

        return accessed

    def argument(this: Any, name: str, value: Any) -> Any:
        if name in this.constexprs:
            return taken(name, value, kernels.module, kernels.function)
        if hasattr(value, "data_ptr"):
            return value
        return taken(name, value, kernels.module, kernels.function, tensors=True)

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

    for name, value in list(vars(tl.dtype).items()):
        if isinstance(value, list):  # a file reaches them
            setattr(tl.dtype, name, tuple(value))
    readings.shown_by(tl.tensor, lambda value: repr(value.handle.data))
    runs = functools.partial(getattr, inside, "runs", False)
    keeping.install(interpreter, jit, runs=runs, owns=kernels.owns)
    executor.__call__, interpreter._patch_lang_tensor = call, patch
    builder.set_grid_idx = begins
    for name in map("create_{}".format, _ACCESSES):
        setattr(builder, name, in_kernels(getattr(builder, name)))
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


class Attributes(SimpleNamespace):
    """What a kernel gets in the place of an object, or of a module."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{name}: a kernel gets constants alone, and no methods or functions of Python's;"
            " compute the rest before the launch"
        )


def taken(
    name: str, value: Any, module: str, functions: Functions, *, tensors: bool = False
) -> Any:
    """Return what a kernel gets for a value: nothing that would keep one of its own.

    Of lists and of objects of the file that is a copy, which has their attributes and no methods.
    `functions` says what it gets for a module or for what can be called. With `tensors`, those in
    tuples stay, of which a launch makes pointers.

    Raises:
        TypeError: a value of a kernel could be handed to it, and no Triton compiles it.
    """
    kind = type(value)
    own = _is_own(kind, module)
    for known in (kind, value):
        if isinstance(known, type) and _is_own(known, module):
            _attributes_of.setdefault(known, dict(vars(known)))
            _members.setdefault(known, dict(vars(known).get("_value2member_map_", ())))
    if isinstance(value, type):
        if _is_own(value, module) and not _is_constant_class(value, module):
            raise refused(name, f"the class {value.__name__}")
    elif isinstance(value, (tuple, list)):
        tensors = tensors and isinstance(value, tuple)  # a launch looks into no list
        parts = [
            part
            if tensors and hasattr(part, "data_ptr")
            else taken(f"{name}[{i}]", part, module, functions, tensors=tensors)
            for i, part in enumerate(value)
        ]
        if not own:
            return kind(parts) if kind in (tuple, list) else tuple(parts)
        if not hasattr(kind, "_fields"):
            return tuple(parts)
        row = type(kind.__name__, (namedtuple(kind.__name__, kind._fields),), {})(*parts)
        vars(row).update(_attributes(name, value, module, functions, without=kind._fields))
        return row
    elif isinstance(value, dict):
        pairs = taken(name, [*value.items()], module, functions)
        return MappingProxyType(dict(pairs))
    elif isinstance(value, (set, frozenset)):
        return frozenset(taken(name, [*value], module, functions))
    elif isinstance(value, slice):
        return slice(*taken(name, (value.start, value.stop, value.step), module, functions))
    elif isinstance(value, bytearray):
        return bytes(value)
    elif own and not (isinstance(value, enum.Enum) and _is_constant_class(kind, module)):
        for plain in (int, float, str):
            if isinstance(value, plain):
                return plain(value)
        return Attributes(**_attributes(name, value, module, functions))
    elif _is_constexpr(kind):
        return kind(taken(name, value.value, module, functions))
    elif callable(value) or isinstance(value, ModuleType) or hasattr(value, "run"):
        return functions(name, value)
    elif _is_of_triton(kind) and _may_keep(value):
        if not (tensors and kind.__name__ == "TensorDescriptor"):  # a launch makes a new one of it
            return Attributes(**_attributes(name, value, module, functions))
    elif not (own or isinstance(value, (*_PLAIN, *_OF_TORCH)) or _is_of_triton(kind)):
        raise refused(name, kind.__name__)
    return value


def _forget() -> None:
    """Take what a kernel made of the classes of its file out of them; a Flag keeps each number."""
    for kind, before in _attributes_of.items():
        now = dict(vars(kind))
        for name in now.keys() - before.keys():
            type.__delattr__(kind, name)
        for name, value in before.items():
            if now.get(name, _forget) is not value:
                type.__setattr__(kind, name, value)
    for kind, members in _members.items():
        known = vars(kind).get("_value2member_map_")
        if known is not None and known.keys() != members.keys():
            known.clear()
            known.update(members)
    _attributes_of.clear()
    _members.clear()


def refused(name: str, got: str) -> TypeError:
    return TypeError(
        f"{name}: got {got}, expected a constant that Triton compiles: a number, text, a type, a"
        " tuple or a function of Triton's"
    )


def _is_own(kind: type, module: str) -> bool:
    return any(getattr(k, "__module__", "") == module for k in kind.__mro__)


def _is_of_triton(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "triton"


def _may_keep(value: Any) -> bool:
    """Whether an object of Triton's is more than a type or a member of an enum: a Config is."""
    is_type = any(kind.__name__ == "dtype" for kind in type(value).__mro__)
    return hasattr(value, "__dict__") and not is_type and not isinstance(value, enum.Enum)


def _is_constexpr(kind: type) -> bool:
    return kind.__name__ == "constexpr" and _is_of_triton(kind)


def _is_constant_class(kind: type, module: str) -> bool:
    """Whether a class of the file has no code of the file, and nothing that changes."""
    members = [m for k in kind.__mro__ if _is_own(k, module) for m in vars(k).items()]
    members += getattr(kind, "_field_defaults", {}).items()
    return not any(_is_code(m, module) or _may_change(n, m, kind) for n, m in members)


def _is_code(member: Any, module: str) -> bool:
    inner = getattr(member, "__func__", getattr(member, "fget", member))
    return callable(inner) and getattr(inner, "__module__", "") == module


def _may_change(name: str, member: Any, kind: type) -> bool:
    """Whether an attribute of a class is more than a constant; what Python puts there is not."""
    if name.startswith("_") or hasattr(member, "__get__"):
        return False
    inner = member.value if isinstance(member, kind) and isinstance(member, enum.Enum) else member
    parts = inner if isinstance(inner, tuple) else (inner,)
    return not all(isinstance(part, (*_PLAIN, *_OF_TORCH, type)) for part in parts)


def _attributes(
    name: str, value: Any, module: str, functions: Functions, without: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the public attributes of an object of the file, but for what can be called.

    Of an object of Triton's those that it alone has.
    """
    names = {n for k in type(value).__mro__ if _is_own(k, module) for n in vars(k)}
    names |= vars(value).keys() if hasattr(value, "__dict__") else set()
    names |= {"name", "value"} if isinstance(value, enum.Enum) else set()
    found = {}
    for attribute in sorted(names - set(without)):
        if attribute.startswith("_"):
            continue
        with contextlib.suppress(Exception):  # of a property: nobody may have asked for it
            part = getattr(value, attribute)
            found[attribute] = taken(f"{name}.{attribute}", part, module, functions)
    return found
