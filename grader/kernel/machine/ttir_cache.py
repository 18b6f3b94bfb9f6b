"""Keeps the TTIR of kernels in a folder, for later workers of the same submission.

Triton's front end takes a third of the time of a grading, and a watch grades mostly unchanged
kernels. The key of a text covers all that determines it: the texts, lines and names of the kernel
and of all functions that it can call, the values of the globals that these name, types, constants
and options. A kernel with a part that the cache cannot describe has no key, and is translated each
time; so is one that prints or warns during its translation.

Any code in a worker can write to the folder: submissions of two people must never share one.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import os
import types
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grader.base import functions
from grader.base.atomic_write import write_whole_bytes

_FILE = "<the submission>"  # replaces its path, which differs between workers
_PLAIN = (type(None), bool, int, float, str)
_SPEAKS = "static_print"  # prints during translation, which cached text does not
Made = tuple[str, bool]  # as capture.front_end returns


class Unknown(Exception):
    """The cache cannot tell what the front end makes of something, or does with it."""


class TtirCache:
    """The texts of kernels of the submission at `path`, in a folder."""

    def __init__(self, folder: Path, path: str) -> None:
        """Read and write in `folder`, which may be absent."""
        self._folder = folder
        self._path = path
        self._names: dict[int, tuple[Any, str, frozenset[str]]] = {}  # by id of a function, held
        self._warned: list[Any] = []  # kernels; uncached, so that later workers warn, too

    def made(
        self, make: Callable[..., Made], source: Any, target: Any, options: dict[str, Any]
    ) -> Made:
        """Return what `make` returns for a Triton source, or returned for an equal one."""
        key = self._key(source, target, options)
        if key is None or any(source.fn is kernel for kernel in self._warned):
            return make(source, target, options)
        file = self._folder / f"{key}.ttir"
        with contextlib.suppress(OSError, ValueError, zlib.error):
            text = zlib.decompress(file.read_bytes()).decode()
            os.utime(file)
            return text[1:].replace(_FILE, self._path), text[0] == "1"
        said: list[Any] = []
        show = warnings.showwarning
        warnings.showwarning = lambda *args, **more: (said.append(args), show(*args, **more))
        try:
            text, by_blocks = make(source, target, options)
        finally:
            warnings.showwarning = show
        if said:
            self._warned.append(source.fn)
        elif _FILE not in text:
            with contextlib.suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
                data = f"{by_blocks:d}{text.replace(self._path, _FILE)}".encode()
                write_whole_bytes(file, zlib.compress(data, 1))
        return text, by_blocks

    def _key(self, source: Any, target: Any, options: dict[str, Any]) -> str | None:
        """Return a key that sources share only if their text is the same; None if there is none."""
        import triton

        try:
            parts = [triton.__version__, repr(target), repr(sorted(options.items()))]
            parts += [repr(vars(getattr(triton.knobs, n))) for n in ("compilation", "language")]
            parts.append(repr(source.signature))
            seen: dict[int, int] = {}
            parts += self._function(source.fn, seen)
            for place, value in source.constants.items():
                parts += [repr(place), *self._value(value, seen)]
        except Exception:  # the front end says what is wrong, if anything is
            return None
        return hashlib.sha256("\0".join(map(repr, parts)).encode()).hexdigest()

    def _function(self, function: Any, seen: dict[int, int]) -> list[str]:
        """Describe a Triton function, and the values of its names."""
        if id(function) in seen:
            return [f"function {seen[id(function)]}"]
        seen[id(function)] = len(seen)
        code = function.fn.__code__
        file = _FILE if code.co_filename == self._path else code.co_filename
        where = file, function.__module__, function.__qualname__, function.starting_line_number
        how = type(function).__name__, function.noinline, function._repr, code.co_freevars
        if function._repr is not None:
            raise Unknown
        parts = [repr(where), repr(how), "".join(function.raw_src), function._src]
        for name, parameter in function.signature.parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                parts += [name, *self._value(parameter.default, seen)]
        scope = function.get_capture_scope()
        for name in sorted(self._names_in(function) & scope.keys()):
            parts += [name, *self._value(scope[name], seen)]
        return parts

    def _names_in(self, function: Any) -> frozenset[str]:
        """Return the names in a function's code.

        Raises:
            Unknown: it prints while it is translated.
        """
        held, text, names = self._names.get(id(function), (None, "", frozenset()))
        if held is not function or text != function._src:
            # parse() checks the text here, too: see read_as_written in grader/kernel/lines.py.
            nodes = functions.walk(function.parse())
            if any(isinstance(node, ast.Attribute) and node.attr == _SPEAKS for node in nodes):
                raise Unknown
            names = frozenset(node.id for node in nodes if isinstance(node, ast.Name))
            self._names[id(function)] = function, function._src, names
        return names

    def _value(self, value: Any, seen: dict[int, int]) -> list[str]:
        """Describe what a name or a constant stands for.

        Raises:
            Unknown: only the front end can tell what the value means.
        """
        import triton.language as tl
        from triton.runtime.jit import JITFunction

        if type(value) in _PLAIN:
            return [f"{type(value).__name__} {value!r}"]
        if type(value) is tuple:
            return [f"tuple {len(value)}", *(p for one in value for p in self._value(one, seen))]
        if type(value) is tl.constexpr:
            return ["constexpr", *self._value(value.value, seen)]
        if type(value) is tl.dtype:
            return [f"dtype {value}"]
        if isinstance(value, types.ModuleType):
            if value.__name__.partition(".")[0] in ("triton", "math"):
                return [f"module {value.__name__}"]
            raise Unknown
        own = str(getattr(value, "__module__", "")).partition(".")[0] == "triton"
        if own and (type(value) in (JITFunction, types.FunctionType) or isinstance(value, type)):
            if value.__qualname__ == _SPEAKS:
                raise Unknown
            return [f"of Triton {value.__module__}.{value.__qualname__}"]
        if type(value) is JITFunction:
            return self._function(value, seen)
        raise Unknown
