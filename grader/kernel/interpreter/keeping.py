"""Takes from Triton's and Python's objects what would keep a value of a kernel's. In a worker.

A constexpr function is Python of the file's own, and in Triton's interpreter a kernel may call it
with a value that it has loaded. Its names stand for copies (constants.py), but Triton's functions
are the same ones that the file has, with lists and dictionaries to which it could add. No compiler
would: there such a function runs before the kernel does, and what it returns is all that is left.
Guarded by tests/test_keeping.py.
"""

from __future__ import annotations

import abc
import sys
from collections.abc import Callable, Iterator
from types import MappingProxyType, ModuleType
from typing import Any

_FROZEN: dict[type, Callable[[Any], Any]] = {
    list: tuple,
    dict: MappingProxyType,
    set: frozenset,
    bytearray: bytes,
}


def install(
    interpreter: Any, jit: ModuleType, *, runs: Callable[[], bool], owns: Callable[[Any], bool]
) -> None:
    """Let the functions of Triton and of `given` keep nothing.

    `runs` tells whether a kernel does, and `owns` whether a function is the file's. Of its kernels
    the names of arguments stay as they are, by which a launch knows what it hands them.
    """
    interpreted = interpreter.InterpretedFunction
    interpreted.rewritten_fn = MappingProxyType({})  # own_kernels.py has a table of its own
    # The base of the functions that are evaluated when a kernel is compiled.
    evaluated = getattr(jit, "JITCallable", interpreted)
    evaluated.used_global_vals = _Frozen("used_global_vals")  # which `cache_key` makes anew
    kinds = (interpreted, evaluated)
    for value in _values_of_triton():
        if isinstance(value, kinds):
            freeze(value)
    make = interpreted.__init__

    def made(this: Any, fn: Any, *args: Any, **kwargs: Any) -> None:
        make(this, fn, *args, **kwargs)
        hooks = this.pre_run_hooks  # to which a file may add its own
        freeze(this)
        if owns(fn):
            this.pre_run_hooks = hooks

    interpreted.__init__ = made
    register = abc.ABCMeta.register

    def registers(kind: type, member: type) -> type:
        if runs():
            raise TypeError(f"a kernel registers nothing with {kind.__name__}")
        return register(kind, member)

    abc.ABCMeta.register = registers


def freeze(value: Any) -> Any:
    """Put what does not change in the place of an object's lists, dictionaries and sets."""
    for name, part in list(vars(value).items()):
        if type(part) in _FROZEN and not name.startswith("_"):  # the file reaches no others
            vars(value)[name] = _FROZEN[type(part)](part)
    return value


class _Frozen:
    """An attribute that is a dictionary, which only who sets it changes."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: Any, _: Any = None) -> Any:
        return MappingProxyType(vars(owner).get(self._name, {})) if owner is not None else self

    def __set__(self, owner: Any, value: dict[Any, Any]) -> None:
        vars(owner)[self._name] = value


def _values_of_triton() -> Iterator[Any]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "triton" and isinstance(module, ModuleType):
            yield from list(vars(module).values())
