"""Takes a kernel through the stages of Triton's compiler, and reads figures off their results.

A cache has a kernel's figures by its text and by its TTIR. An unchanged text in an unchanged line
needs no stage. A new line in a file moves all kernels below it, and a comment changes the text of
one, but its TTIR without lines stays the same. So do all figures except the lines of its dots,
which the cache stores beside them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grader.base.atomic_write import write_whole_bytes
from grader.kernel.compile import machine_code

_CODE = ".code"
# Files of some twenty versions of a problem's kernels: two of half a KiB each, 20 KiB of code and
# as much disassembly; and, for each set of types and constants, some 6 KiB of TTIR.
MOST_KEPT = 1024


@dataclasses.dataclass(frozen=True)
class CachedKernel:
    """The file of a kernel, and the present lines of its dots, None if they are those in it."""

    path: Path
    lines: list[int] | None = None

    def read(self) -> dict[str, Any] | None:
        """Return the figures and mark them as used; None if there are none, or damaged ones."""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            found = json.loads(self.path.read_text(encoding="utf-8"))
            lines = found["lines"] if self.lines is None else self.lines
            pairs = set(zip(found["lines"], lines, strict=True))
            moved = dict(pairs)
            if not len(pairs) == len(moved) == len(set(moved.values())):
                return None  # one line has become two, or two one
            dots = [{**dot, "line": moved[dot["line"]]} for dot in found["dots"]]
            os.utime(self.path)
            found["dots"] = sorted(dots, key=lambda dot: dot["line"])
            return {**found, "lines": lines}
        return None

    def write(self, figures: dict[str, Any]) -> None:
        """Write the figures down, whole or not at all."""
        self._write(self.path, json.dumps(figures).encode())

    def write_code(self, made: dict[str, Any]) -> None:
        """Write TTGIR and machine code down beside the figures."""
        ttgir = made["ttgir"].encode()
        data = zlib.compress(len(ttgir).to_bytes(8, "big") + ttgir + made["cubin"], 1)
        self._write(self.path.with_suffix(_CODE), data)

    def read_code(self) -> dict[str, Any]:
        """Return TTGIR and machine code of just this text; an empty dict if they are absent."""
        with contextlib.suppress(OSError, ValueError, zlib.error):
            path = self.path.with_suffix(_CODE)
            data = zlib.decompress(path.read_bytes())
            os.utime(path)
            end = 8 + int.from_bytes(data[:8], "big")
            return {"ttgir": data[8:end].decode(), "cubin": data[end:]}
        return {}

    def _write(self, path: Path, data: bytes) -> None:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole_bytes(path, data)


def make_room(folder: Path) -> None:
    """Remove all but the `MOST_KEPT` kernels that were used last; nobody may be compiling."""
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir(), key=lambda path: path.lstat().st_mtime)[:-MOST_KEPT]:
            path.unlink()


def stages(
    source: Any, target: Any, options: dict[str, Any], metadata: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the name and the result of each stage; Triton fills `metadata`.

    Triton's own `compile` does the same, but stores every stage in its cache.
    """
    # Imported here, as the watch calls `make_room` and needs no torch.
    from triton import __version__

    from grader.kernel.machine.capture import parsed

    module, backend, known = parsed(source, target, options)
    metadata |= {"target": target, "compiler": (__version__, backend.hash()), **known.__dict__}
    found: dict[str, Any] = {}
    backend.add_stages(found, known, source.language)
    for name, stage in found.items():
        module = stage(module, metadata)
        yield name, module


def figures_of(
    source: Any,
    target: Any,
    options: dict[str, Any],
    path: str,
    folder: Path,
    log: list[str],
    made_of: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the figures of a kernel of the submission at `path`.

    They come from `folder` if it has those of the same text or TTIR, and are stored there if not.
    TTGIR and machine code go into `made_of`; they contain source lines, so that `folder` has them
    only by text. NVIDIA's assembler writes to `log`.
    """
    text = _digest(source.hash(), options | {"target": target})
    same_text = cached = CachedKernel(folder / f"{text}.json")
    if made_of is not None:
        made_of |= same_text.read_code()
    is_known = made_of is None or "cubin" in made_of
    if is_known and (figures := same_text.read()) is not None:
        return figures
    figures, metadata, begun = {}, {}, time.perf_counter()
    log.clear()
    for name, made in stages(source, target, options, metadata):
        if not figures:
            text = made.str_nodebug() if hasattr(made, "str_nodebug") else str(made)
            digest, lines = _digest(text, metadata), machine_code.dot_lines(str(made), path)
            cached = CachedKernel(folder / f"{digest}.json", lines)
            if made_of is None and (found := cached.read()) is not None:
                same_text.write(found)
                return found
            figures |= {"digest": digest, "lines": lines}
        if name == "ttgir":
            text = str(made)
            figures["dots"] = machine_code.dots(text, path)
            if made_of is not None:
                made_of[name] = text
        elif name in machine_code.USAGE:
            figures |= machine_code.USAGE[name](made)
            if made_of is not None:
                made_of[name] = made
    figures |= machine_code.spills("".join(log))
    figures |= {
        "num_warps": metadata["num_warps"],
        "num_stages": metadata["num_stages"],
        "shared_bytes": metadata["shared"],
        "tensor_memory": metadata.get("tmem_size") or 0,
        "scratch": (metadata.get("global_scratch_size"), metadata.get("global_scratch_align")),
        "compile_ms": 1000 * (time.perf_counter() - begun),
    }
    cached.write(figures)
    same_text.write(figures)
    if made_of and "cubin" in made_of:
        same_text.write_code(made_of)
    return figures


def _digest(text: str, given: dict[str, Any]) -> str:
    """Return a key that is equal for the same code on the same chip."""
    options = sorted((name, str(value)) for name, value in given.items())
    return hashlib.sha256(f"{options}\n{text}".encode()).hexdigest()
