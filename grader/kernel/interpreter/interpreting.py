"""Makes Triton's interpreter do less for the same results, and refuses what it could never end.

Of the time that a small case takes in the interpreter of Triton 3.6 to 3.9, nearly all is spent in
Triton's Python and hardly any in numpy. What is left out here cannot be seen by a kernel. Where a
Triton is not built as expected, it stays as it is. Guarded by tests/test_interpreting.py.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from grader.kernel.interpreter import (
    agreeing,
    arithmetic,
    descriptors,
    libdevice,
    named,
    reductions,
    scalars,
    words,
)

# A program that does anything takes 50 us or more here: a case's time ends before so many do.
MOST_PROGRAMS = 500_000
# One launch at a time: the interpreter has one program id for all threads. A launch may launch.
LAUNCHING = threading.RLock()


class GridTooLarge(RuntimeError):
    """A launch asks for more programs than the interpreter could run in the time of a case."""


def install() -> None:
    """Take the shortcuts from now on, in this process. Runs inside the worker."""
    from triton.runtime import interpreter

    _leave_overflow_alone(interpreter)
    _know_precisions(interpreter)
    _refuse_endless_grids(interpreter)
    _know_constants(interpreter)
    _take_lists_as_grids(interpreter)
    _know_methods()
    libdevice.install(interpreter)
    descriptors.install(interpreter)
    scalars.install(interpreter)
    words.install(interpreter)
    if hasattr(interpreter, "_LangPatchScope"):
        _call_directly(interpreter)
        _Launches(interpreter._patch_lang).install(interpreter)
        named.install(interpreter)
    _leave_arguments_where_they_are(interpreter)
    interpreter._get_np_dtype = _by_name(interpreter._get_np_dtype)
    _remember_sizes(interpreter)
    agreeing.install(interpreter)
    reductions.install(interpreter)
    if hasattr(interpreter, "InterpreterError"):
        _raise_errors_once(interpreter)
    interpreter.GridExecutor.__call__ = one_at_a_time(interpreter.GridExecutor.__call__)


def one_at_a_time(launch: Callable[..., Any]) -> Callable[..., Any]:
    """Let the launches of several threads run one behind the other, as on one GPU's stream."""

    @functools.wraps(launch)
    def call(*args: Any, **kwargs: Any) -> Any:
        with LAUNCHING:
            return launch(*args, **kwargs)

    return call


def _raise_errors_once(interpreter: Any) -> None:
    """Let an error pass through the functions that called each other as it was first told.

    Triton puts the repr of each into the next, whose length doubles: a function that calls itself
    without end takes all memory, or all time, to say so.
    """
    call_function = interpreter.InterpretedFunction.__call__

    def call(this: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call_function(this, *args, **kwargs)
        except interpreter.InterpreterError as error:
            first = error.__cause__
            if not isinstance(first, interpreter.InterpreterError):
                raise
            raise first from first.__cause__

    interpreter.InterpretedFunction.__call__ = call


def _leave_overflow_alone(interpreter: Any) -> None:
    """Do not compute each integer sum and product once more in 64 bits, for an assertion.

    Outside of debug mode the assertion is left out, after its condition has been computed.
    """
    options = interpreter.interpreter_builder.options
    if not options.debug:
        plain = dataclasses.replace(options, sanitize_overflow=False)
        interpreter.interpreter_builder.options = plain


def _know_precisions(interpreter: Any) -> None:
    """Take what a GPU takes for input_precision: the interpreter's own list lacks bf16x6."""
    from triton.backends.nvidia.compiler import CUDAOptions

    of_gpu = CUDAOptions.allowed_dot_input_precisions
    options = interpreter.interpreter_builder.options
    all_of_them = tuple(dict.fromkeys((*options.allowed_dot_input_precisions, *of_gpu)))
    known = dataclasses.replace(options, allowed_dot_input_precisions=all_of_them)
    interpreter.interpreter_builder.options = known


def _know_constants(interpreter: Any) -> None:
    """Know a constexpr parameter whatever name a file has for triton.language, as compilers do.

    The interpreter of Triton 3.6 to 3.9 looks for the words `tl.constexpr`; "T.constexpr" is none.
    """
    make = interpreter.GridExecutor.__init__

    def known(this: Any, fn: Any, arg_names: Any, *args: Any, **kwargs: Any) -> None:
        make(this, fn, arg_names, *args, **kwargs)
        types = {name: getattr(t, "__name__", t) for name, t in fn.__annotations__.items()}
        this.constexprs = [
            name for name in arg_names if str(types.get(name)).strip("'\"").endswith("constexpr")
        ]

    interpreter.GridExecutor.__init__ = known


def _take_lists_as_grids(interpreter: Any) -> None:
    """Launch a grid that is a list, or a function that returns one, as a GPU does."""
    make = interpreter.GridExecutor.__init__

    def as_tuple(grid: Any) -> Any:
        return tuple(grid) if isinstance(grid, list) else grid

    def known(this: Any, *args: Any, **kwargs: Any) -> None:
        make(this, *args, **kwargs)
        grid = this.grid
        this.grid = (lambda meta: as_tuple(grid(meta))) if callable(grid) else as_tuple(grid)

    interpreter.GridExecutor.__init__ = known


def _know_methods() -> None:
    """Know x.exp() and its like as methods of a tile, as compilers do.

    Triton 3.6 to 3.9 makes methods of the functions of tl.math before it marks these as its own:
    its interpreter passes them nothing to compute with, and `None` is what they stop at.
    """
    import triton.language as tl

    mark = getattr(tl.core, "TRITON_BUILTIN", None)
    if mark is None:
        return
    for _, method in inspect.getmembers(tl.tensor, inspect.isfunction):
        if "_semantic" in inspect.signature(method).parameters:
            setattr(method, mark, True)


def _call_directly(interpreter: Any) -> None:
    """Call each function of triton.language without what stands around it for a compiler.

    Triton makes a dictionary of the keywords and looks in it for what it has just put there. What
    takes the place of a function is made once; Triton looks for all functions at each launch.
    """
    import triton.language as tl

    around = tl.core.builtin(len).__code__
    semantic, patch_attr = interpreter.interpreter_semantic, interpreter._patch_attr
    operators = arithmetic.Arithmetic(interpreter)

    def patch(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        inner = getattr(member, "__wrapped__", None)
        if getattr(member, "__code__", None) is not around or inner is None:
            patch_attr(obj, name, member, builder, scope)
            return

        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return inner(*args, **kwargs)

        scope.set_attr(obj, name, operators.shortened(name, call) if obj is tl.tensor else call)

    known: dict[Any, list[tuple[str, Any]]] = {}

    def patch_builtin(owner: Any, builder: Any, scope: Any) -> None:
        if owner not in known:
            first = interpreter._LangPatchScope()
            patch_all(owner, builder, first)
            known[owner] = [(name, getattr(owner, name)) for _, name, _ in first._changes]
            first.restore()
        for name, member in known[owner]:
            if getattr(owner, name) is member:  # of an outer launch, or for another module
                return
            scope.set_attr(owner, name, member)

    patch_all = interpreter._patch_builtin
    interpreter._patch_attr, interpreter._patch_builtin = patch, patch_builtin


def _refuse_endless_grids(interpreter: Any) -> None:
    """Say of a grid that cannot come to its end that it is too large, before it begins."""
    set_grid_dim = interpreter.InterpreterBuilder.set_grid_dim

    def checked(this: Any, *sizes: int) -> None:
        programs = math.prod(sizes)
        if programs > MOST_PROGRAMS:
            grid = " x ".join(f"{size:,}" for size in sizes)
            raise GridTooLarge(
                f"a grid of {grid} is {programs:,} programs, and without a GPU the judge runs"
                f" {MOST_PROGRAMS:,} at the most"
            )
        set_grid_dim(this, *sizes)

    interpreter.InterpreterBuilder.set_grid_dim = checked


def _leave_arguments_where_they_are(interpreter: Any) -> None:
    """Make no second tensor for each argument that is on the CPU, and copy nothing onto itself.

    Triton makes one of the same memory, and copies it to where it already is after the launch.
    """
    executor = interpreter.GridExecutor
    bring, restore = executor._init_args_hst, executor._restore_args_dev

    def brought(this: Any, args: Any, kwargs: Any) -> Any:
        if all(map(_is_there, (*args, *kwargs.values()))):
            return [*args], {**kwargs}
        return bring(this, args, kwargs)

    def restored(this: Any, args: Any, args_hst: Any, kwargs: Any, kwargs_hst: Any) -> None:
        if not all(map(_is_there, (*args, *kwargs.values()))):
            restore(this, args, args_hst, kwargs, kwargs_hst)

    executor._init_args_hst, executor._restore_args_dev = brought, restored


def _is_there(argument: Any) -> bool:
    """Whether an argument is no tensor, or a plain one in the memory that a kernel reads."""
    if type(argument) is torch.Tensor:
        return argument.is_cpu
    if isinstance(argument, tuple):
        return all(map(_is_there, argument))
    return not hasattr(argument, "base") and not hasattr(argument, "data_ptr")


def _by_name(find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Remember the numpy type of each scalar type: Triton fills a table whenever it looks."""
    known: dict[str, Any] = {}

    def np_dtype(triton_type: Any) -> Any:
        name = triton_type.scalar.name
        if name not in known:
            known[name] = find(triton_type)
        return known[name]

    return np_dtype


def _remember_sizes(interpreter: Any) -> None:
    """Make the sizes of tiles once: Triton makes tuples of constants anew for each tile."""
    import triton.language as tl

    make_type, make_tensor = tl.block_type.__init__, tl.tensor.__init__
    handle = interpreter.TensorHandle(np.zeros((2, 4), np.float32), tl.float32)
    tile = tl.tensor(handle, tl.block_type(tl.float32, [2, 4]))
    of_type, of_tensor = {"shape", "numel", "name"}, {"shape", "numel", "type", "dtype"}
    if vars(tile.type).keys() != {"element_ty", *of_type}:
        return
    if vars(tile).keys() != {"handle", *of_tensor}:
        return
    types: dict[tuple, dict[str, Any]] = {}
    sizes: dict[str, tuple[Any, Any]] = {}

    def block_type(this: Any, element_ty: Any, shape: Any) -> None:
        values = [getattr(size, "value", size) for size in shape]
        key = element_ty.name, *values
        whole = set(map(type, values)) == {int}  # Triton refuses others, though 4.0 equals 4
        if whole and key in types:
            this.element_ty = element_ty
            vars(this).update(types[key])
        else:
            make_type(this, element_ty, shape)
            if whole:
                types[key] = {name: getattr(this, name) for name in of_type}

    def tensor(this: Any, handle: Any, type: Any) -> None:
        known = sizes.get(type.name)
        if known is None:
            make_tensor(this, handle, type)
            sizes[type.name] = this.numel, this.shape
        else:
            this.handle, this.type, this.dtype = handle, type, type.scalar
            this.numel, this.shape = known

    tl.block_type.__init__ = block_type
    tl.tensor.__init__ = tensor


class _Launches:
    """Has each launch replace the functions of triton.language once, and put them back at its end.

    Triton does it anew, and never puts them back, whenever a kernel calls another function.
    """

    def __init__(self, patch: Callable[[Any], Any]) -> None:
        self._patch = patch
        self._launch: _Patches | None = None  # the innermost that runs

    def install(self, interpreter: Any) -> None:
        """Hook the interpreter's launches and calls."""
        launch = interpreter.GridExecutor.__call__

        def call(this: Any, *args: Any, **kwargs: Any) -> Any:
            outer, self._launch = self._launch, _Patches()
            try:
                return launch(this, *args, **kwargs)
            finally:
                self._launch = outer

        interpreter.GridExecutor.__call__ = call
        interpreter._patch_lang = self._patch_once

    def _patch_once(self, fn: Any) -> Any:
        if self._launch is None:
            return self._patch(fn)
        namespace = id(fn.__globals__)  # decides what Triton replaces
        if namespace not in self._launch.namespaces:
            self._launch.scopes.append(self._patch(fn))
            self._launch.namespaces.add(namespace)
        return self._launch


@dataclasses.dataclass
class _Patches:
    """What one launch has replaced, for the functions of which modules."""

    namespaces: set[int] = dataclasses.field(default_factory=set)
    scopes: list[Any] = dataclasses.field(default_factory=list)

    def restore(self) -> None:
        """Put back what was there before the launch."""
        self.namespaces.clear()
        while self.scopes:
            self.scopes.pop().restore()
