"""Finds what was compiled of the same code before, where the text of a kernel alone has changed.

Triton knows a kernel again by its text and its line. A line that is added moves all kernels below
it, and a comment in a function changes all that call it. What Triton's front end makes of a kernel,
without the lines it comes from, is then what it was, and so is all that follows from it. Beside the
figures of a kernel (see `kept_kernels`) lie the digest of that code and the lines of its dots.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grader.kernel.compile import kept_kernels, machine_code

_FILE = "code.json"
_BINARY = "cubin"


@dataclasses.dataclass(frozen=True)
class _Kept:
    """A kernel that was compiled: its files by stage, and its figures, with lines as they are."""

    files: dict[str, str | bytes]
    metadata: dict[str, Any]
    figures: dict[str, Any]


class KeptCode:
    """What the compilation under way has in common with an earlier one."""

    def __init__(self, path: str) -> None:
        self._path = path  # of the submission
        self._code: dict[str, Any] | None = None  # of the compilation under way
        self._kept: _Kept | None = None

    def install(self) -> None:
        """Have Triton's stages after the front end take what is kept, where it is the same."""
        from triton import knobs
        from triton._C.libtriton import ir
        from triton.backends.nvidia import compiler

        if not hasattr(ir.module, "str_nodebug"):  # then all is compiled
            return
        add_stages = compiler.CUDABackend.add_stages

        def added(backend: Any, stages: dict[str, Any], options: Any, *args: Any) -> None:
            add_stages(backend, stages, options, *args)
            self._code = self._kept = None
            if "ttir" in stages:
                given = f"{backend.hash()} {options.hash()}"
                stages["ttir"] = self._front_end(stages["ttir"], given, Path(knobs.cache.dir))
                for name in stages.keys() - {"ttir"}:
                    stages[name] = self._later(name, stages[name])

        compiler.CUDABackend.add_stages = added

    def _front_end(
        self, stage: Callable[..., Any], given: str, folder: Path
    ) -> Callable[[Any, dict[str, Any]], Any]:
        def ttir(source: Any, metadata: dict[str, Any]) -> Any:
            module = stage(source, metadata)
            code = f"{given}\n{module.str_nodebug()}"
            self._code = {
                "digest": hashlib.sha256(code.encode()).hexdigest(),
                "dots": machine_code.dot_lines(str(module), self._path),
            }
            self._kept = _find(folder, self._code)
            for name, value in self._kept.metadata.items() if self._kept else ():
                metadata.setdefault(name, value)
            return module

        return ttir

    def _later(self, name: str, stage: Callable[..., Any]) -> Callable[..., Any]:
        def made(source: Any, metadata: dict[str, Any]) -> Any:
            return self._kept.files[name] if self._kept else stage(source, metadata)

        return made

    def figures(self) -> dict[str, Any] | None:
        """Return the figures of the kernel that has just been compiled, if its code is kept."""
        return self._kept.figures if self._kept else None

    def keep(self, cubin: str) -> None:
        """Write down the code of a kernel that has just been compiled, beside its machine code."""
        if self._code is not None:
            kept_kernels.write(Path(cubin).with_name(_FILE), self._code)


def _find(folder: Path, code: dict[str, Any]) -> _Kept | None:
    """Return the kernel of this code in one of the folders below `folder`."""
    for path in folder.glob(f"*/{_FILE}"):
        found = kept_kernels.read(path)
        if found is not None and found.get("digest") == code["digest"]:
            moved = _moved(found.get("dots"), code["dots"])
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                if moved is not None:
                    return _taken(path.parent, moved)
    return None


def _taken(folder: Path, moved: dict[int, int]) -> _Kept:
    """Return what is kept in a folder, or raise; `moved` is where each line of dots is now."""
    (binary,) = folder.glob(f"*.{_BINARY}")
    figures = kept_kernels.read(folder / kept_kernels.FIGURES)
    metadata = kept_kernels.read(binary.with_suffix(".json"))
    if figures is None or metadata is None:
        raise LookupError(folder)
    dots = [{**dot, "line": moved[dot["line"]]} for dot in figures["dots"]]
    figures["dots"] = sorted(dots, key=lambda dot: dot["line"])
    files: dict[str, str | bytes] = {_BINARY: binary.read_bytes()}
    for name in ("ttgir", "llir", "ptx"):
        files[name] = binary.with_suffix(f".{name}").read_text(encoding="utf-8")
    return _Kept(files, metadata, figures)


def _moved(before: Any, now: list[int]) -> dict[int, int] | None:
    """Return where each line of dots is now; None where one has become two, or two have met."""
    if not isinstance(before, list) or len(before) != len(now):
        return None
    pairs = set(zip(before, now, strict=True))
    if not len(pairs) == len(set(before)) == len(set(now)):
        return None
    return dict(pairs)
