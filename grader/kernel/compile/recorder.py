"""Compiles the kernels that a submission launches, runs none, and records the figures of each.

Runs inside the worker. Triton binds and specialises the arguments, and passes each kernel to the
compiler that `capture` installs; `absent_gpu` answers what it asks about the GPU. A launch raises a
refusal, as on a GPU, so that a submission may fall back on another kernel. A refusal that ends the
call is recorded, and the call is repeated without that kernel, so that the others are seen, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from grader.kernel.compile import absent_gpu, assembler, faults, stages
from grader.kernel.compile.chips import MAX_THREADS, Chip
from grader.kernel.compile.predicting import Predictor
from grader.kernel.lines import kernel_line
from grader.kernel.machine import capture
from grader.kernel.machine.steps import BadGrid, check_grid
from grader.kernel.machine.ttir_cache import TtirCache

MAX_KERNELS = 32
MAX_REFUSALS = 8
_MAX_TEXT = 1000
_TENSOR_MEMORY = 512  # columns


class TooManyKernels(BaseException):
    """A submission launched more different kernels than the recorder compiles."""


@dataclasses.dataclass
class _Compiled:
    """A kernel with its record, or with the error that its launches raise.

    `diagnostic` is an error that the compiler printed and did not raise. `scratch` is the size, in
    bytes, and the alignment of the memory that a launch needs besides its arguments.
    """

    fn: Any
    record: dict[str, Any]
    error: Exception | None = None
    traceback: Any = None
    diagnostic: dict[str, Any] = dataclasses.field(default_factory=dict)
    scratch: tuple[int | None, int | None] = (None, None)
    is_written: bool = False


class Recorder:
    """Writes one record for each launched kernel; `count` is the number of launches.

    A `predictor` gets the kernels, and while `predicts` the launches.
    """

    def __init__(
        self,
        path: str,
        chip: Chip,
        write: Callable[[dict[str, Any]], None],
        predictor: Predictor | None = None,
    ) -> None:
        self.count = 0
        self.predicts = False  # the predictor gets launches, too
        self.lines: set[int] = set()  # stays empty: records have the lines
        self._path = path
        self._chip = chip
        self._write = write
        self._log: list[str] = []  # of NVIDIA's assembler
        self._compiled: dict[capture.Kernel, _Compiled] = {}
        self._known: set[str] = set()  # digests of compiled kernels
        self._tuned = False  # a configuration was found, and not launched yet
        self._left_out: set[tuple] = set()
        self._refused: _Compiled | None = None  # the last
        self._predictor = predictor

    def install(self) -> None:
        """Pretend that there is a GPU, and replace Triton's compilations and launches."""
        self.memory = absent_gpu.install(self._chip, self._bench)
        capture.install(self._launch, self._compile)
        if self._chip.target[0] == "cuda":
            from triton import knobs
            from triton.backends.nvidia import compiler

            knobs.nvidia.dump_ptxas_log = True
            compiler.print = self._log.append

    def watch(self, call: Callable[[], Any]) -> Exception | None:
        """Make a call, and make it again without each kernel that is refused.

        Returns:
            The first exception that ended the call, None where none did.
        """
        first: Exception | None = None
        self._left_out.clear()
        for _ in range(MAX_REFUSALS):
            self._refused = None
            try:
                call()
                return first
            except Exception as error:
                refused = self._refused
                first = first or error
                if refused is None or not _comes_from(error, refused.error):
                    kernel = _launched_in(error)
                    if kernel is not None:  # Triton refused the arguments
                        record = _named(kernel, self._path)
                        self._write_refusal(_Compiled(kernel, record, error))
                    return first
                self._write_refusal(refused)
                self._left_out.add(_place(refused))
        return first

    # -- what Triton calls ------------------------------------------------------------------

    def _compile(self, source: Any, target: Any, options: dict[str, Any]) -> capture.Kernel:
        """Compile a kernel; if the compiler refuses it, its launches raise the error."""
        from triton import knobs

        made = _Compiled(source.fn, _named(source.fn, self._path))
        usage = capture.usage_of(options)
        places = self._path, Path(knobs.cache.dir), self._log
        compile = functools.partial(stages.figures_of, source, target, options, *places)
        text, made_of, by_blocks = "", {}, False
        try:
            if self._predictor is not None:
                compile = functools.partial(compile, made_of=made_of)
                cache = TtirCache(places[1], self._path)
                text, by_blocks = cache.made(capture.front_end, source, target, options)
            figures = compile()
            self._known.add(figures.pop("digest"))
            del figures["lines"]
            made.scratch = tuple(figures.pop("scratch"))
            made.error = self._beyond_the_chip(figures)
            made.record |= _arguments(source) | figures
            registers, stack_bytes = figures.get("registers", 0), figures.get("stack_bytes", 0)
            usage |= {"n_regs": registers, "n_spills": stack_bytes // 4}
            usage["shared"] = figures.get("shared_bytes", 0)
        except Exception as error:
            made.error, made.traceback = error, error.__traceback__
            if isinstance(error, RuntimeError) and not hasattr(error, "node"):
                made.diagnostic = self._diagnostic(compile)
        if len(self._known) > MAX_KERNELS:
            raise TooManyKernels(f"more than {MAX_KERNELS} different kernels")
        signature = source.signature
        kernel = capture.Kernel(source.fn, source.name, text, signature, by_blocks, usage=usage)
        self._compiled[kernel] = made
        if self._predictor is not None and "cubin" in made_of:
            self._predictor.add(kernel, made_of, made.record, places[1])
        return kernel

    def _diagnostic(self, repeat: Callable[[], Any]) -> dict[str, Any]:
        """Return line and text of an error that the compiler prints and does not raise."""
        with _stderr() as printed, contextlib.suppress(Exception):
            repeat()
        pattern = rf'{re.escape(self._path)}"?:(\d+):\d+\)?: error: (.*)'
        if match := re.search(pattern, printed()):
            return {"line": int(match[1]), "text": match[2]}
        if match := re.search(r"^(?:\S+: )?error: (.*)\n\s+(\S.*)", printed(), re.M):
            return {"text": f"AMD's assembler refuses the kernel: {match[1]}: {match[2]}"}
        return {}

    def _beyond_the_chip(self, figures: dict[str, Any]) -> Exception | None:
        from triton.runtime.errors import OutOfResources

        threads = figures["num_warps"] * self._chip.warp
        for needs, has, what in (
            (figures["shared_bytes"], self._chip.program_shared_bytes, "shared memory"),
            (figures.pop("tensor_memory"), _TENSOR_MEMORY, "tensor memory"),
            (threads, MAX_THREADS, "threads"),
        ):
            if needs > has:
                return OutOfResources(needs, has, what)
        return None

    def _bench(self, kernel_call: Callable[[], Any], **_: Any) -> list[float]:
        """Return times by which the autotuner takes the first configuration that compiles."""
        # The autotuner asks for all configurations before it launches one.
        if self._tuned:
            return [float("inf")] * 3
        kernel_call()
        self._tuned = True
        return [0.0] * 3

    def _launch(self, launch: capture.Launch) -> None:
        """Check a launch as a GPU does, without running it."""
        made, self._tuned = self._compiled[launch.kernel], False
        if made.error is None:
            self.count += 1
            if not made.is_written:
                self._write(made.record)
                made.is_written = True
            error = self._bad_launch(launch, made.scratch)
            if self.predicts and self._predictor is not None and error is None:
                self._predictor.launched(launch, made.record["line"])
            place = getattr(error, "__traceback__", None)
            record = _named(made.fn, self._path)
            made = dataclasses.replace(made, record=record, error=error, traceback=place)
        if made.error is not None and _place(made) not in self._left_out:
            self._refused = made
            raise made.error.with_traceback(made.traceback)

    def _bad_launch(self, launch: capture.Launch, scratch: tuple[Any, Any]) -> Exception | None:
        try:
            check_grid(launch.grid)
        except BadGrid as error:
            return error
        for name, value in launch.arguments:
            if isinstance(value, torch.Tensor) and self.memory.is_on_cpu(value):
                return ValueError(f"{name}: got a tensor in the CPU's memory, expected the GPU's")
        if scratch[0]:
            from triton.runtime import _allocation

            try:
                _allocation._allocator.get()(*scratch, 0)
            except Exception as error:  # there is no allocator, or the file's own failed
                return error
        return None

    # -- what is written --------------------------------------------------------------------

    def _write_refusal(self, refused: _Compiled) -> None:
        error = refused.error
        assert error is not None
        with contextlib.redirect_stderr(io.StringIO()):  # the worker prints the traceback
            reply = faults.explain(0, error, self._path, importing=False)
        refusal = {"error_type": reply.error_type, "line": reply.line, "text": reply.text}
        if type(error).__name__ == "OutOfResources":
            unit = "bytes of " if error.name == "shared memory" else ""
            refusal["text"] = (
                f"needs {error.required} {unit}{error.name}, the chip has {error.limit}"
            )
        refusal |= refused.diagnostic
        text = refusal["text"].replace(os.path.dirname(self._path) + os.sep, "")
        refusal["text"] = " ".join(text.split())[:_MAX_TEXT]
        self._write(refused.record | {"refusal": refusal})


@contextlib.contextmanager
def _stderr() -> Iterator[Callable[[], str]]:
    """Capture what the process writes to descriptor 2."""
    with tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        text: list[str] = []
        try:
            yield lambda: text[0]
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            text.append(file.read(1 << 20).decode("utf-8", "replace"))


def _comes_from(error: BaseException, wanted: BaseException | None) -> bool:
    cause: BaseException | None = error
    for _ in range(20):
        if cause is None or cause is wanted:
            break
        cause = cause.__cause__ or cause.__context__
    return cause is wanted


def _launched_in(error: Exception) -> Any:
    """Return the kernel in whose launch an error was raised, None where it was in none."""
    from triton.runtime.jit import JITFunction

    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    runs = (f.f_locals["self"] for f in frames if f.f_code is JITFunction.run.__code__)
    return next(runs, None)


def _place(refused: _Compiled) -> tuple[Any, ...]:
    """Return a key that is equal if the same refusal repeats, though ptxas gets another file."""
    text = str(refused.error)
    text = assembler.sentence(text) if assembler.is_refusal(text) else text[:_MAX_TEXT]
    return refused.fn, type(refused.error), text


def _named(kernel: Any, path: str) -> dict[str, Any]:
    """Return name and line of a kernel; 0 where it is not the submission's."""
    return {"kernel": kernel.fn.__name__, "line": kernel_line(kernel, path)}


def _arguments(source: Any) -> dict[str, str]:
    names = source.fn.arg_names
    plain = {
        names[path[0]]: value
        for path, value in sorted(source.constants.items())
        if len(path) == 1 and isinstance(value, (bool, int, float, str, type(None)))
    }
    types = (f"{name}={kind}" for name, kind in source.signature.items() if kind != "constexpr")
    constants = " ".join(f"{name}={value}" for name, value in plain.items())
    return {"constants": constants, "types": " ".join(types)}
