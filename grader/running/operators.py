"""Notes what PyTorch computes for a submission while a call of it is judged. In the worker.

A dispatch mode sees every aten operator of a thread, forward and in autograd's backward pass, which
takes the modes of its caller along to threads of its own; threads that Python starts get a mode
each. A function mode sees what becomes Python's numbers without an operator (.tolist(), .numpy()).
What Triton does in a launch and what the judge does are not the submission's. Of the timed calls
one is looked at, whose time does not count.

Not seen: other processes, compiled libraries that are handed a pointer, the text of a printed
tensor, and what takes the modes off their stack by PyTorch's private functions, since it runs in
the same process. The source policy keeps most of that from a file.
"""

from __future__ import annotations

import _thread
import contextlib
import dataclasses
import functools
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from grader.running.arena import Layout
from grader.running.lines import running_line
from grader.running.protocol import Reply, Status

# Kinds of operators: those that are refused, and those of which there may be so many.
COMPUTES, SHORTCUT, READS, COUNTED = "computes", "shortcut", "reads", "counted"
PUTS = "puts"  # computes a sum if it accumulates
_PUTS = {"_index_put_impl", "index_put", "put"}

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_PYTHON = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_SELF = os.path.abspath(__file__)
_CALLER = os.path.join(_HERE, "worker.py")  # of the submission, and of autograd for it
# In them a tensor's values leave PyTorch whole; an operator is no part of it on a CPU.
_READING = {"__array__", "__dlpack__", "apply_", "map2_", "map_", "numpy", "storage", "tolist"}
_READING |= {"untyped_storage"}
_READ_OPERATOR = "aten::_local_scalar_dense"
# Functions of Triton's interpreter that take arguments to the CPU and back: these need their data.
_CONVERSIONS = {"_init_args_hst", "_to_cpu", "_restore_args_dev", "_from_cpu"}
# Their results, or the sizes of them, tell Python what a tensor holds.
_TELLING = {"_unique2", "equal", "masked_select", "nonzero", "repeat_interleave", "unique_dim"}
_numel = torch.Tensor.numel  # whatever becomes of the class
# As `threading` and `_thread` of Python 3.11 to 3.14 call them.
_THREAD_STARTERS = {"start_new", "start_new_thread", "start_joinable_thread"}
_THREAD_STARTERS |= {f"_{name}" for name in _THREAD_STARTERS}
# Below torch.autograd.grad and .backward(), which are functions: the mode is off while they run.
_ENGINE = "_engine_run_backward"
_NAMESPACES = ("aten", "prim", "prims", "profiler")
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclasses.dataclass(frozen=True)
class Use:
    """A use of PyTorch that is not open: of which kind, on which line (0: unknown), in words."""

    kind: str
    line: int
    text: str


class Record:
    """What the submission at `path` has PyTorch do; `found` is the first use that is not open.

    `rules` come from grader/policy/operators.py.
    """

    def __init__(self, rules: dict[str, Any], path: str) -> None:
        self.found: Use | None = None
        self._open = None if rules["open"] is None else frozenset(rules["open"])
        self._counted = frozenset(rules["counted"])
        self._closed = tuple(rules["closed"])
        self._most_elements = rules.get("most_elements")
        self._most_read = rules.get("most_read")
        self._launches = rules["triton"]
        self._path = path
        self._triton = ""  # Triton's folder
        self._kinds: dict[Any, str] = {}
        self._telling: dict[Any, bool] = {}
        self._active = False
        self._differentiates = False
        self._size = self._elements = self._read = 0
        self._calls = 1  # of the entry point, in what is noted
        self._launching = threading.local()

    def install(self, *, interpret: bool) -> None:
        """Follow new threads, and know Triton's launches from now on."""
        for module in (_thread, threading):
            for name in _THREAD_STARTERS & vars(module).keys():
                setattr(module, name, self._following(getattr(module, name)))
        engine = getattr(torch.autograd, _ENGINE, None)
        if engine is not None:
            setattr(torch.autograd, _ENGINE, self._differentiating(engine))
        if self._launches:
            from triton.runtime import autotuner, jit

            self._triton = os.path.dirname(os.path.dirname(os.path.abspath(jit.__file__))) + os.sep
            self._know(jit.JITFunction, "run")
            self._know(autotuner.Autotuner, "run")
            self._know(autotuner.Heuristics, "run")
        if self._launches and interpret:
            from triton.runtime import interpreter

            self._know(interpreter.GridExecutor, "__call__")

    @contextlib.contextmanager
    def noting(self, layout: Layout, request: dict[str, Any]) -> Iterator[None]:
        """Note a requested call, unless its kernels do nothing: then its results are not used."""
        self.found, self._elements, self._read = None, 0, 0
        self._calls = request.get("sets", 1)
        self._size = self._calls * max(1, sum(math.prod(view.size) for view in layout.inputs))
        self._differentiates = request["gradients"]
        self._active = not request.get("idle", False)
        try:
            with _Dispatched(self), self._functions():
                yield
        finally:
            self._active = False

    def refusal(self, nonce: int) -> Reply:
        """Return the reply that tells what was `found`."""
        assert self.found is not None
        line, kind, text = self.found.line, self.found.kind, self.found.text
        return Reply(nonce, Status.FORBIDDEN_OPERATOR, line, error_type=kind, text=text)

    def _functions(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._most_read is None else _Functions(self)

    def _following(self, start: Callable[..., Any]) -> Callable[..., Any]:
        def start_thread(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
            @functools.wraps(function)
            def run(*args: Any, **kwargs: Any) -> Any:
                with _Dispatched(self), self._functions():
                    return function(*args, **kwargs)

            return start(run, *args, **options)

        return start_thread

    def _differentiating(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            with self._functions() if self._active else contextlib.nullcontext():
                return run(*args, **kwargs)

        return run_backward

    def _know(self, owner: type, name: str) -> None:
        launch = getattr(owner, name)

        @functools.wraps(launch)
        def launched(this: Any, *args: Any, **kwargs: Any) -> Any:
            depth = getattr(self._launching, "depth", 0)
            self._launching.depth = depth + 1
            try:
                return launch(this, *args, **kwargs)
            finally:
                self._launching.depth = depth

        setattr(owner, name, launched)

    # -- what is noted ----------------------------------------------------------------------------

    def kind(self, func: Any) -> str:
        """Return the kind of an operator, "" where nothing is to be said of it."""
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = self._find_kind(func)
        return kind

    def tells(self, func: Any) -> bool:
        """Whether an operator tells Python something of a tensor's values."""
        tells = self._telling.get(func)
        if tells is None:
            tells = self._telling[func] = _name(func).partition("::")[2] in _TELLING
        return tells

    def runs(self, func: Any, kind: str, args: Any, kwargs: dict[str, Any]) -> None:
        """Note that an operator runs."""
        if not self._active or self.found is not None:
            return
        if not self._differentiates and torch._C._current_graph_task_id() >= 0:
            self._refuse(SHORTCUT, f"autograd computes gradients here: {_name(func)}")
        elif kind == READS:
            self.reads(1, ".item(), a comparison or a conversion")
        elif self.tells(func):
            self.reads(1, _name(func))
        elif kind == SHORTCUT:
            self._refuse(SHORTCUT, f"PyTorch does here what you are asked to write: {_name(func)}")
        elif kind == COMPUTES or (kind == PUTS and (kwargs.get("accumulate") or True in args[3:4])):
            self._refuse(COMPUTES, f"PyTorch computes here: {_name(func)}")

    def made(self, func: Any, args: Any, result: Any) -> None:
        """Note how much an operator that is counted has made, or summed up."""
        if not self._active or self.found is not None or self._most_elements is None:
            return
        with torch._C.DisableTorchFunction():  # numel may be a class's own
            elements = max((_numel(x) for x in _tensors((args, result))), default=0)
        if not elements or not self._is_submissions(COUNTED):
            return
        self._elements += elements
        if self._elements > self._most_elements * self._size:
            times = self._elements // self._size
            self._refuse(
                COMPUTES,
                f"PyTorch computes here, element by element: {_name(func)}"
                f"; {self._elements:,} elements so far, {times:,} times as many as the inputs have;"
                f" {self._most_elements} times are allowed",
            )

    def reads(self, elements: int, how: str) -> None:
        """Note that elements of a tensor have become numbers of Python."""
        if not self._active or self.found is not None or self._most_read is None:
            return
        if not self._is_submissions(READS):
            return
        self._read += elements
        if self._read > self._most_read * self._calls:
            self._refuse(
                READS,
                f"values of tensors are read into Python here, with {how}"
                f"; {self._read:,} elements so far, {self._most_read} of a call are allowed",
            )

    def _refuse(self, kind: str, text: str) -> None:
        if self._is_submissions(kind):
            self.found = Use(kind, running_line(self._path), text)

    def _find_kind(self, func: Any) -> str:
        name, overload = _name(func), getattr(func, "_overloadname", "")
        namespace, _, base = name.partition("::")
        if name == _READ_OPERATOR:
            return READS
        if base.startswith(self._closed):
            return SHORTCUT
        if namespace not in _NAMESPACES:
            return COMPUTES  # an operator of somebody's own, which may do anything
        if self._open is None or namespace in ("prim", "profiler"):
            return ""
        plain = base.removesuffix("_") if not base.startswith("__") else base
        if plain in _PUTS and "sum" not in self._open:
            return PUTS
        names = {base, plain, f"{base}.{overload}", f"{plain}.{overload}"}
        if names & self._counted:
            return COUNTED
        return "" if names & self._open else COMPUTES

    def _is_submissions(self, kind: str) -> bool:
        """Whether what runs is the submission's: not what Triton, launching, or the judge does.

        The nearest file outside of PyTorch and Python's own decides. Autograd's own operators come
        from that of the caller, or from nowhere. A launch calls what it is given, a grid or a hook,
        and that may have no frame of its own. So only what Triton needs is its own: it reads
        arguments where it takes them to the CPU, and computes nothing.
        """
        frame: Any = sys._getframe(1)
        while frame is not None:
            path = frame.f_code.co_filename
            if path.startswith(_HERE) and path != _SELF:
                return path == _CALLER
            if self._triton and path.startswith(self._triton):
                launches = getattr(self._launching, "depth", 0) > 0
                is_own = kind == READS and frame.f_code.co_name in _CONVERSIONS
                return not (launches and is_own)
            in_library = path.startswith((_SELF, _TORCH, "<frozen "))
            in_library |= path.startswith(_PYTHON) and "site-packages" not in path
            if not in_library:
                return True
            frame = frame.f_back
        return True


class _Dispatched(TorchDispatchMode):
    """Has one thread's operators noted."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As allocations.Guarded: without it the first call imports torch._dynamo."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in _PLAIN for kind in types):
            return NotImplemented  # to its own code first, whose operators come here
        kind = self._record.kind(func)
        # In inference mode reshape, matmul and the like come before they are taken apart.
        if kind == COMPUTES and getattr(func, "_can_decompose", bool)():
            with self:
                return func.decompose(*args, **(kwargs or {}))
        self._record.runs(func, kind, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        if kind == COUNTED:
            self._record.made(func, args, result)
        return result


class _Functions(TorchFunctionMode):
    """Has one thread's functions noted that take values out of PyTorch without an operator."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        own = any(kind not in _PLAIN for kind in types)
        if own and torch._C._is_torch_function_enabled():  # it is not while that code has its turn
            return NotImplemented  # to its own code first, whose functions come here
        name = getattr(func, "__name__", "")
        if name in _READING and args and isinstance(args[0], torch.Tensor):
            with torch._C.DisableTorchFunctionSubclass():
                elements = _numel(args[0])
            self._record.reads(elements, f".{name}()")
        elif name == "tensor_split":
            where = (kwargs or {}).get("tensor_indices_or_sections", args[1] if args[1:] else None)
            if isinstance(where, torch.Tensor):
                self._record.reads(_numel(where), "tensor_split at the values of a tensor")
        return func(*args, **(kwargs or {}))


def _name(func: Any) -> str:
    schema = getattr(func, "_schema", None)
    return schema.name if schema is not None else str(func)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)
