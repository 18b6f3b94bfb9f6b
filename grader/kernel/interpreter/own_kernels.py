"""Runs a submission's kernels in Triton's interpreter as a compiler reads them. In a worker.

There a kernel is a Python function, of the text that Triton finds for it, among all names of its
file and Triton's own. A compiler has the function's code and what constants its names stand for. So
here: the body is that of the tree which the source policy has read, wherever Triton would look for
it, and names are looked up in copies that keep nothing (constants.py), anew in each launch. The
interpreter's own names are in no file's reach.
"""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from grader.kernel.interpreter import constants, keeping, libdevice, named

_OWN = "<{}>"  # the interpreter's own name, as no text spells one
# What of a module that is not Triton's a kernel may look at: constants, and what asks a device.
_OF_TORCH = ("cuda", "e", "finfo", "iinfo", "inf", "nan", "pi", "version")
_ROOTS = ("given", "math", "triton")


def install(module: str, source: bytes, path: str) -> Kernels:
    """Let the kernels of `source`, which is loaded from `path` as `module`, run so."""
    from triton.runtime import interpreter, jit

    kernels = Kernels(module, source, path, interpreter, getattr(jit, "ConstexprFunction", None))
    rewrite = interpreter.FunctionRewriter.rewrite_ast
    done: dict[int, tuple[Any, Any]] = {}  # not where Triton keeps them: a file reaches that
    bodies: dict[int, Any] = {}

    def rewritten(this: Any) -> Any:
        function = this.fn
        if id(function) not in done:
            own = kernels.owns(function)
            transformer = this.rewriter.ast_transformer
            made = kernels.compiled(function, transformer) if own else rewrite(this.rewriter)
            done[id(function)] = function, made
            bodies[id(made)] = made
        return done[id(function)][1]

    make = interpreter.GridExecutor.__init__

    def launching(this: Any, body: Any, *args: Any, **kwargs: Any) -> None:
        if id(body) not in bodies:  # of a class of the file, with a way of its own to find a body
            raise TypeError("a launch runs what is not the body of a kernel: use triton.jit alone")
        make(this, body, *args, **kwargs)

    interpreter.InterpretedFunction.rewrite = rewritten
    interpreter.GridExecutor.__init__ = launching
    return kernels


class Kernels:
    """The functions of one file, as its kernels call them."""

    def __init__(
        self, module: str, source: bytes, path: str, interpreter: Any, constexpr_function: Any
    ) -> None:
        self.module, self._path = module, path
        self._interpreter = interpreter
        self._constexpr_function = constexpr_function
        tree = ast.parse(source, path)
        self._nodes = {_place(n): n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        self._names: list[_Names] = []
        self._names_of_file = self._new_names({})
        self._known: dict[Any, Any] = {}  # of functions

    def launched(self) -> None:
        """Forget the copies that an earlier launch was given."""
        for names in self._names:
            names.forget()

    def owns(self, function: Any) -> bool:
        """Whether something that triton.jit was given is the file's, or no function at all."""
        return not isinstance(function, types.FunctionType) or self._is_own(function)

    def _is_own(self, function: types.FunctionType) -> bool:
        is_named = function.__globals__.get("__name__") == self.module
        return is_named or function.__code__.co_filename == self._path

    def compiled(self, function: Any, transformer: ast.NodeTransformer) -> Callable[..., Any]:
        """Return what runs in the place of a kernel: its own body, changed by `transformer`.

        Raises:
            TypeError: it is not a function that is written in the file.
        """
        code = getattr(function, "__code__", None)
        place = (code.co_name, code.co_firstlineno) if code else ("", 0)
        if not isinstance(function, types.FunctionType) or place not in self._nodes:
            raise TypeError(
                f"triton.jit: got {type(function).__name__}, expected a function that is written"
                " with def in this file"
            )
        # Triton replaces functions of the triton.language that it finds among a file's names.
        function.__globals__.setdefault(_OWN.format("tl"), self._interpreter.tl)
        node = _bare(self._nodes[place])
        written = {id(part): part for part in ast.walk(node)}  # alive, so that no id is used again
        tree = transformer.visit(ast.Module([node], []))
        for part in ast.walk(tree):
            is_new = isinstance(part, ast.Name) and id(part) not in written
            if is_new and hasattr(self._interpreter, part.id):
                part.id = _OWN.format(part.id)
        names: dict[str, Any] = {}
        text = compile(ast.fix_missing_locations(tree), self._path, "exec", dont_inherit=True)
        exec(text, self._names_of(function), names)
        return self._like(function, names[code.co_name])

    def of_interpreter(self, name: str) -> Any:
        """Return what the interpreter calls by a name that no file can spell."""
        return getattr(self._interpreter, name[1:-1])

    def of_file(self, name: str) -> Any:
        """Return what a kernel gets for a name of the file.

        Raises:
            KeyError: there is none.
            TypeError: no Triton compiles what it stands for.
        """
        return self.taken(name, self.of_all()[name])

    def of_all(self) -> dict[str, Any]:
        """Return all names of the file, for Triton, which looks for triton.language there."""
        return vars(sys.modules[self.module])

    def taken(self, name: str, value: Any) -> Any:
        """Return what a kernel gets for a value of the file, whatever name it has there."""
        if isinstance(value, torch.Tensor) or hasattr(type(value), "data_ptr"):
            raise constants.refused(name, "a tensor")
        return constants.taken(name, value, self.module, self.function)

    def function(self, name: str, value: Any) -> Any:
        """Return what a kernel gets for a module, or for something that can be called."""
        if isinstance(value, types.ModuleType):
            return self._module_of(name, value)
        if isinstance(value, functools._lru_cache_wrapper):
            value = value.__wrapped__
        key = id(value)
        if key not in self._known:
            self._known[key] = value, self._made(name, value)  # `value` stays, and keeps its id
        return self._known[key][1]

    def imported(self, name: str, *rest: Any) -> Any:
        """Return what a kernel gets where it imports a module."""
        return self._module_of(name, builtins.__import__(name, *rest))

    def _made(self, name: str, value: Any) -> Any:
        if isinstance(value, self._interpreter.InterpretedFunction):
            return _Device(value) if self.owns(value.fn) else value
        if not callable(value):  # tuned or chosen: it launches, and calls functions of Python's
            raise constants.refused(name, type(value).__name__)
        if self._constexpr_function and isinstance(value, self._constexpr_function):
            if not self.owns(value.fn):
                return value
            made = keeping.freeze(copy.copy(value))
            made.fn = self.function(name, value.fn)
            return made
        if isinstance(value, types.FunctionType) and self._is_own(value):
            names = self._names_of(value)
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            own = tuple(types.CellType(self.taken(n, c.cell_contents)) for n, c in cells) or None
            code = value.__code__
            return self._like(value, types.FunctionType(code, names, value.__name__, None, own))
        # Not by its own `__module__`, which functools.wraps sets.
        of_triton = type(value).__module__.partition(".")[0] == "triton"
        inner = getattr(value, "fn", None) if of_triton else value
        home = ""
        if isinstance(inner, types.FunctionType):
            home = inner.__globals__.get("__name__", "")
        elif isinstance(inner, types.BuiltinFunctionType):
            home = getattr(inner.__self__, "__name__", "")
        of_judge = home in (libdevice.__name__, named.__name__)
        if of_judge or str(home).partition(".")[0] in _ROOTS:
            return value
        raise constants.refused(name, type(value).__name__)

    def _module_of(self, name: str, module: types.ModuleType) -> Any:
        root = module.__name__.partition(".")[0]
        if root in _ROOTS:
            return module
        if module is not torch:
            raise constants.refused(name, f"the module {module.__name__}")
        known = {n: v for n, v in vars(torch).items() if isinstance(v, torch.dtype)}
        return constants.Attributes(**known, **{n: getattr(torch, n) for n in _OF_TORCH})

    def _names_of(self, function: types.FunctionType) -> _Names:
        """Return the names that a function sees: the file's, and those of the function around."""
        if not function.__closure__:
            return self._names_of_file
        cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
        return self._new_names(dict(cells))

    def _new_names(self, cells: dict[str, Any]) -> _Names:
        self._names.append(_Names(self, cells))
        return self._names[-1]

    def _like(self, function: types.FunctionType, made: types.FunctionType) -> types.FunctionType:
        """Give a function the defaults of another, as a kernel gets them, and its annotations."""
        place = f"a default of {function.__name__}"
        made.__defaults__ = self.taken(place, function.__defaults__)
        made.__kwdefaults__ = self.taken(place, function.__kwdefaults__)
        made.__annotations__ = function.__annotations__
        return made


class _Device:
    """A kernel of the file that another one calls: it is called, and nothing else."""

    def __init__(self, function: Any) -> None:
        self._call = function
        self.__name__ = function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    @property
    def fn(self) -> Any:  # which tl.reduce calls
        return self._call.rewrite()


class _Names(dict):
    """The global names of a kernel. Python asks `__missing__` for those that it has not met."""

    def __init__(self, kernels: Kernels, cells: dict[str, Any]) -> None:
        super().__init__(__builtins__=vars(builtins) | {"__import__": kernels.imported})
        self._kernels, self._cells = kernels, cells

    def __missing__(self, name: str) -> Any:
        if name.startswith("<"):
            value = self._kernels.of_interpreter(name)
        elif name in self._cells:
            value = self._kernels.taken(name, self._cells[name].cell_contents)
        else:
            value = self._kernels.of_file(name)
        self[name] = value
        return value

    def items(self) -> Any:
        return self._kernels.of_all().items()

    def forget(self) -> None:
        """Forget what has been met."""
        known = self["__builtins__"]
        self.clear()
        self["__builtins__"] = known


def _place(node: ast.FunctionDef) -> tuple[str, int]:
    """Return a function's name and first line, as its code has them."""
    return node.name, min([node.lineno, *(d.lineno for d in node.decorator_list)])


def _bare(node: ast.FunctionDef) -> ast.FunctionDef:
    """Return a copy of a function without what is evaluated where it is defined."""
    bare = copy.deepcopy(node)
    bare.decorator_list, bare.returns = [], None
    every = bare.args
    for argument in (*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg):
        if argument is not None:
            argument.annotation = None
    every.defaults, every.kw_defaults = [], [None] * len(every.kwonlyargs)
    return bare
