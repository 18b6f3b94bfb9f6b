"""Compiles what a submission launches and runs nothing, and writes down what came of each kernel.

Runs inside the worker. Triton does all that it does before a launch: it binds and specialises the
arguments, compiles, compares shared memory with what the chip has, and hands the result to a
driver, which here is that of `absent_gpu`. A refusal is raised where a GPU would raise it, so that
a submission with a second way of its own takes that one. If it ends the call, it is written down
and the call is made again without that kernel, so that the others are seen too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import operator
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from grader.kernel.compile import (
    absent_gpu,
    assembler,
    faults,
    kept_code,
    kept_kernels,
    machine_code,
)
from grader.kernel.compile.chips import MAX_WARPS, Chip
from grader.kernel.lines import kernel_line
from grader.kernel.machine.steps import MAX_GRID
from grader.kernel.passed import tensors_of

MAX_KERNELS = 32
MAX_REFUSALS = 8
_MAX_TEXT = 1000


class TooManyKernels(BaseException):
    """A submission launched more different kernels than are looked at."""


@dataclasses.dataclass
class _Refused:
    kernel: Any
    error: Exception
    repeat: Callable[[], Any]


class Recorder:
    """Writes one record for each kernel that is launched; `count` is the number of launches."""

    def __init__(self, path: str, chip: Chip, write: Callable[[dict[str, Any]], None]) -> None:
        self.count = 0
        self.lines: set[int] = set()  # what is compiled is written down instead
        self._path = path
        self._chip = chip
        self._write = write
        self._log = _Log()
        self._code = kept_code.KeptCode(path)
        self._figures: dict[str, dict[str, Any]] = {}  # by hash of the kernel
        self._latest: tuple[Any, Any] | None = None  # source and metadata of the kernel in launch
        self._launching = False  # compiled: what is refused now is a launch
        self._known: dict[tuple, Exception] = {}  # what does not compile, by what it is called with
        self._left_out: set[tuple] = set()
        self._refused: _Refused | None = None  # the last

    def install(self) -> None:
        """Put a GPU where there is none, and hook Triton's launches and compilations."""
        from triton import knobs
        from triton.runtime import cache, jit

        # The cache is of one judge and one Triton, which need not read itself, 0.3 s, for a key.
        cache.triton_key = lambda: ""
        knobs.cache.manager_class = kept_kernels.only_with_figures()
        self._code.install()
        self.memory = absent_gpu.install(self._chip, self._load, self._launcher)
        knobs.compilation.listener = self._compiled
        knobs.nvidia.dump_ptxas_log = True
        launch = jit.JITFunction.run

        def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            # A compilation that fails is not in Triton's cache, and would be made anew each time.
            known = self._known.get(_key(kernel, args, kwargs)) if self._known else None
            if known is not None and (kernel.fn, *_cause(known)) in self._left_out:
                return None
            try:
                self._launching = False
                if known is not None:
                    raise known.with_traceback(None)
                with contextlib.redirect_stdout(self._log.over(sys.stdout)):
                    return launch(kernel, *args, **kwargs)
            except Exception as error:
                if not self._launching and _is_compilers(error):
                    self._known[_key(kernel, args, kwargs)] = error
                again = kwargs | {"warmup": True}
                self._log.take()
                if (kernel.fn, *_cause(error)) in self._left_out:
                    return None
                self._refused = _Refused(kernel, error, lambda: launch(kernel, *args, **again))
                raise

        jit.JITFunction.run = run

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
                    return first
                self._write_refusal(refused)
                self._left_out.add((refused.kernel.fn, *_cause(refused.error)))
        return first

    def launching(self) -> None:
        """Count a launch."""
        self.count += 1
        self._launching = True

    # -- what Triton calls ------------------------------------------------------------------

    def _compiled(
        self, *, metadata: Any, metadata_group: Any, times: Any, cache_hit: bool, **_: Any
    ):
        """Take the files of a compilation that has ended, or those kept of an earlier one."""
        hash = metadata["hash"]
        if len(self._figures) >= MAX_KERNELS and hash not in self._figures:
            raise TooManyKernels(f"more than {MAX_KERNELS} different kernels")
        files = {name.rpartition(".")[2]: path for name, path in metadata_group.items()}
        kept = kept_kernels.kept(files["cubin"]) if cache_hit else None
        figures = kept or (None if cache_hit else self._code.figures())
        if figures is None:
            figures = {
                **machine_code.usage(files["cubin"]),
                **machine_code.spills(self._log.take()),
                "dots": machine_code.dots(files["ttgir"], self._path),
                "compile_ms": times.total / 1000,
            }
        if kept is None:
            kept_kernels.keep(files["cubin"], figures)
        if not cache_hit:
            self._code.keep(files["cubin"])
        self._figures[hash] = figures

    def _launcher(self, source: Any, metadata: Any) -> Callable[..., None]:
        """Triton asks for one when a kernel is launched for the first time."""
        self._latest = source, metadata
        return _Launcher(self, source, metadata).launch

    def _load(self, name: str, code: bytes, shared_bytes: int) -> tuple[int, int]:
        """Triton loads a kernel when the chip has room for it."""
        assert self._latest is not None
        source, metadata = self._latest
        record = self._record(source, metadata)
        if metadata.num_warps <= MAX_WARPS:  # more are refused next
            self._write(record)
        return record.get("registers", 0), record.get("stack_bytes", 0) // 4

    # -- what is written --------------------------------------------------------------------

    def _record(self, source: Any, metadata: Any) -> dict[str, Any]:
        return {
            **_named(source.fn, self._path),
            "constants": _constants(source),
            "types": " ".join(f"{n}={t}" for n, t in source.signature.items() if t != "constexpr"),
            "num_warps": metadata.num_warps,
            "num_stages": metadata.num_stages,
            "shared_bytes": metadata.shared,
            **self._figures.get(metadata.hash, {}),
        }

    def _write_refusal(self, refused: _Refused) -> None:
        error = refused.error
        with contextlib.redirect_stderr(io.StringIO()):  # the traceback is printed by the worker
            reply = faults.explain(0, error, self._path, importing=False)
        refusal = {"error_type": reply.error_type, "line": reply.line, "text": reply.text}
        record = _named(refused.kernel, self._path)
        if type(error).__name__ == "OutOfResources":
            if self._latest is not None and self._latest[0].fn is refused.kernel:
                record = self._record(*self._latest)
            unit = "bytes of " if error.name == "shared memory" else ""
            refusal["text"] = (
                f"needs {error.required} {unit}{error.name}, the chip has {error.limit}"
            )
        elif isinstance(error, RuntimeError) and not hasattr(error, "node"):
            refusal |= self._diagnostic(refused.repeat)
        text = refusal["text"].replace(os.path.dirname(self._path) + os.sep, "")
        self._write(record | {"refusal": refusal | {"text": " ".join(text.split())[:_MAX_TEXT]}})

    def _diagnostic(self, repeat: Callable[[], Any]) -> dict[str, Any]:
        """Return line and text of an error that the compiler prints and does not raise."""
        with _stderr() as printed, contextlib.suppress(Exception):
            repeat()
        pattern = rf'{re.escape(self._path)}"?:(\d+):\d+\)?: error: (.*)'
        match = re.search(pattern, printed())
        return {"line": int(match[1]), "text": match[2]} if match else {}


class _Launcher:
    """What a launch on a GPU checks of grid, arguments and scratch memory."""

    def __init__(self, recorder: Recorder, source: Any, metadata: Any) -> None:
        self._recorder = recorder
        code = source.fn.fn.__code__  # whatever the file makes of the lists that Triton keeps
        self._names = code.co_varnames[: code.co_argcount]
        self._scratch = metadata.global_scratch_size
        self._align = metadata.global_scratch_align

    def launch(
        self, x: int, y: int, z: int, stream: int, function: Any, packed: Any, *rest: Any
    ) -> None:
        """Launch nothing. `rest` is launch metadata, two hooks, and the kernel's arguments."""
        self._recorder.launching()
        for axis, (size, most) in enumerate(zip((x, y, z), MAX_GRID, strict=True)):
            if operator.index(size) > most:
                raise ValueError(f"axis {axis} of the grid has {size} programs, a GPU takes {most}")
        for name, value in zip(self._names, rest[3:], strict=False):
            for place, tensor in tensors_of(name, value):
                if self._recorder.memory.is_on_cpu(tensor):
                    raise ValueError(
                        f"{place}: got a tensor in the CPU's memory, expected the GPU's"
                    )
        if self._scratch:
            from triton.runtime import _allocation

            _allocation._allocator.get()(self._scratch, self._align, stream)


class _Log(io.TextIOBase):
    """Standard output in whose place the assembler's log is kept and all else passed on."""

    def __init__(self) -> None:
        self._text = ""
        self._under: Any = None

    def over(self, under: Any) -> _Log:
        if under is not self:
            self._under = under
        return self

    def write(self, text: str) -> int:
        if "ptxas" in text:
            self._text += text
        else:
            self._under.write(text)
        return len(text)

    def flush(self) -> None:
        self._under.flush()

    def take(self) -> str:
        text, self._text = self._text, ""
        return text


@contextlib.contextmanager
def _stderr() -> Iterator[Callable[[], str]]:
    """Keep what the process writes to descriptor 2."""
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


def _comes_from(error: BaseException, wanted: BaseException) -> bool:
    cause: BaseException | None = error
    for _ in range(20):
        if cause is None or cause is wanted:
            break
        cause = cause.__cause__ or cause.__context__
    return cause is wanted


def _is_compilers(error: Exception) -> bool:
    """Whether an error costs a compilation; those in arguments and grid come at once."""
    named = type(error).__name__ in ("OutOfResources", "PTXASError")
    return named or hasattr(error, "node") or isinstance(error, RuntimeError)


def _cause(error: Exception) -> tuple[type, str]:
    """What is the same when the same is refused again; ptxas is given another file each time."""
    text = str(error)
    return type(error), assembler.sentence(text) if assembler.is_refusal(text) else text[:1000]


def _named(kernel: Any, path: str) -> dict[str, Any]:
    """Return name and line of a kernel; 0 where it is not the submission's."""
    return {"kernel": kernel.fn.__name__, "line": kernel_line(kernel, path)}


def _constants(source: Any) -> str:
    names = source.fn.arg_names
    plain = {
        names[path[0]]: value
        for path, value in sorted(source.constants.items())
        if len(path) == 1 and isinstance(value, (bool, int, float, str, type(None)))
    }
    return " ".join(f"{name}={value}" for name, value in plain.items())


def _key(kernel: Any, args: tuple, kwargs: dict[str, Any]) -> tuple:
    """What a kernel is launched with, as far as a refusal depends on it."""
    named = sorted((name, _kind(v)) for name, v in kwargs.items() if name != "grid")
    return kernel.fn, *map(_kind, args), *named


def _kind(value: Any) -> str:
    if isinstance(value, (bool, int, float, str, type(None))):
        return repr(value)[:100]
    return f"{type(value).__name__} {getattr(value, 'dtype', '')}"
