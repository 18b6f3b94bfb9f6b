"""Runs the launches of this process on the machine: what a worker installs.

Launches of several threads run one after the other, as on one stream. The machine hides its own
PyTorch operators from PyTorch's modes, which would count them as the submission's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch.utils._python_dispatch import _disable_current_modes

from grader.kernel.lines import function_at, kernel_line
from grader.kernel.machine import capture
from grader.kernel.machine.events import Flowed
from grader.kernel.machine.exact import Exact
from grader.kernel.machine.outside import WRAPS, OutOfBounds, Outside
from grader.kernel.machine.parse import parse
from grader.kernel.machine.program import Program
from grader.kernel.machine.steps import Asserted, BadGrid, Failed, Limits, Stopped
from grader.kernel.machine.ttir import BadText, Place, Unmodelled

_WRAPS = f"{WRAPS}; a number that the address is computed from exceeds 2**31 - 1"
_MOST_LINES = 1_000_000
# Errors of a kernel; any other is a fault of the machine.
_SAID = (Unmodelled, BadText, OutOfBounds, Stopped, Asserted, BadGrid, MemoryError)


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Hide the operators inside from PyTorch's modes and from autograd."""
    with torch.no_grad(), torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


class Engine:
    """Translates each kernel once, and runs its launches.

    `updated` are the addresses of tensors that a launch stored to after a read, or atomically.
    `count` and `lines` are the number of launches and the lines of their kernels, since a reader
    last reset them; while `idle` a launch does nothing. `has_translated` says that the engine has
    translated a kernel since a reader last reset it. `wraps` has the place where an offset of 32
    bits first wrapped around since `reset`, if that was to be noted.
    """

    def __init__(self, path: str, *, limits: Limits = Limits()) -> None:
        """Run the launches of the submission at `path`."""
        self._far = False
        self.wraps: list[Place] = []
        self.updated: set[int] = set()
        self.count = 0
        self.lines: set[int] = set()
        self.idle = False
        self.has_translated = False
        self.path = path
        self._observe: Callable[[Any], Any] | None = None
        self._limits = limits
        self._noted = False
        self._how: dict[str, Any] = {}
        self.exact: Exact | None = None
        self._programs: dict[tuple, weakref.WeakKeyDictionary[capture.Kernel, Program]] = {}
        self._one_at_a_time = threading.RLock()

    def install(self) -> None:
        """Run all later launches of this process on the machine."""
        capture.install(lambda made: self.launch(made, kernel_line(made.kernel.fn, self.path)))

    @contextlib.contextmanager
    def watched(
        self, observe: Callable[[Any], Any], noting: Callable[[Any], Any] | None = None
    ) -> Iterator[None]:
        """Send the events of launches inside to `observe`.

        With `noting` each operation is an event, too; `noting` gets all events and returns notes.
        """

        def both(event: Any) -> Any:
            observe(event)
            return noting(event) if noting else None

        before = self._observe, self._noted
        self._observe, self._noted = both, noting is not None
        try:
            yield
        finally:
            self._observe, self._noted = before

    def reset(
        self,
        *,
        tf32: bool = False,
        lenient: bool = False,
        far: bool = False,
        seconds: float | None = None,
        exact: Exact | None = None,
    ) -> None:
        """Forget the earlier call, and set how later launches run.

        For `tf32`, `lenient` and `exact` see `State`. With `far`, the error of an access out of
        bounds names a 32-bit offset that wrapped around as its cause. `seconds`, if given, limits
        the CPU time of a launch.
        """
        self._far, self.wraps = far, []
        if seconds is not None:
            self._limits = dataclasses.replace(self._limits, seconds=seconds)
        self.updated.clear()
        self.exact = exact
        self._how = {"tf32": tf32, "lenient": lenient, "exact": exact, "wraps": self.wraps}

    def launch(self, launch: capture.Launch, line: int = 0, callers: Sequence[int] = ()) -> None:
        """Run one launch of the kernel in `line`; `callers` are the lines that led to it.

        Raises:
            OutOfBounds, Unmodelled, Stopped, Asserted: at the line of the kernel, where it is one
                of the submission.
        """
        self.count += 1
        self.lines.add(line)
        if self.idle:
            return
        with self._one_at_a_time, unseen():
            try:
                program = self.program(launch.kernel)
                program.launch(
                    launch.grid,
                    launch.arguments,
                    addresses=launch.addresses,
                    observe=self._observe,
                    limits=self._limits,
                    **self._how,
                )
                self.updated |= {m.flat.data_ptr() for m in program.state.memories if m.is_updated}
            except Exception as error:
                if "can't allocate memory" in str(error):  # PyTorch's own error for that
                    error = MemoryError(str(error).partition(": ")[2])
                error = error if isinstance(error, _SAID) else Failed(error)
                if isinstance(error, OutOfBounds) and self.wraps:
                    error = OutOfBounds(_WRAPS, self.wraps[0], Outside.WRAPS)
                raise_at(error, self.path, callers)

    def operated(self, given: list[Any], made: list[Any], line: int) -> None:
        """Report an operator of PyTorch at a line, what it was `given`, and what it `made`."""
        if self._observe is not None:
            both = [tuple(x for x in one if isinstance(x, torch.Tensor)) for one in (given, made)]
            with unseen():
                self._observe(Flowed(*both, line))

    def program(self, kernel: capture.Kernel) -> Program:
        """Return the program of a kernel, translated on first use."""
        how = self._noted, self._far, self.exact is not None
        programs = self._programs.setdefault(how, weakref.WeakKeyDictionary())
        found = programs.get(kernel)
        if found is None:
            options = {"overflow": self._far, "noted": self._noted}
            path = self.path if self.exact else ""
            found = Program(parse(kernel.text), **options, path=path)
            found.by_blocks = kernel.by_blocks
            programs[kernel] = found
            self.has_translated = True
        return found


def raise_at(error: Exception, path: str, callers: Sequence[int] = ()) -> NoReturn:
    """Raise an error of a kernel at its line in the file at `path`, as if Python had run it.

    The traceback has a frame for each function of the source that called the next; the lines
    `callers` led to the launch, or to another operation that raised the error.
    """
    place = getattr(error, "place", None)
    places = ((place.file, place.line), *place.callers) if place else ()
    own = [line for file, line in places if file == path]
    lines = [line for line in (*own, *reversed(callers)) if 0 < int(line) <= _MOST_LINES]
    if not lines:
        raise error
    names: dict[str, Any] = {"error": error.with_traceback(None)}
    # An error outside the file is raised by a function that the innermost line calls.
    text = "raise error" if own else "call()"
    names["call"] = functools.partial(_raise, names["error"])
    for line in map(int, lines):
        code = compile("\n" * (line - 1) + text, path, "exec")
        code = code.replace(co_name=function_at(path, line))
        text, names = "call()", {"call": functools.partial(exec, code, names)}
    names["call"]()
    raise error


def _raise(error: Exception) -> NoReturn:
    raise error
