"""Takes a kernel through the stages of Triton's compiler, and reads off what became of it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grader.kernel.compile import kept_kernels, machine_code
from grader.kernel.machine.capture import parsed


def stages(
    source: Any, target: Any, options: dict[str, Any], metadata: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield name and result of each stage, and note in `metadata` what Triton says of the kernel.

    Triton's own `compile` does the same, and keeps every stage in its cache.
    """
    from triton import __version__

    module, backend, known = parsed(source, target, options)
    metadata |= {"target": target, "compiler": (__version__, backend.hash()), **known.__dict__}
    found: dict[str, Any] = {}
    backend.add_stages(found, known, source.language)
    for name, stage in found.items():
        module = stage(module, metadata)
        yield name, module


def figures_of(
    source: Any, target: Any, options: dict[str, Any], path: str, folder: Path, log: list[str]
) -> dict[str, Any]:
    """Return the figures of a kernel of the submission at `path`.

    Those of the same text or code are taken from `folder`, and kept there if there are none.
    NVIDIA's assembler writes to `log`.
    """
    known = folder / f"{_digest(source.hash(), options | {'target': target})}.json"
    same_text = kept = kept_kernels.Kept(known)
    if (figures := same_text.read()) is not None:
        return figures
    figures, metadata, begun = {}, {}, time.perf_counter()
    log.clear()
    for name, made in stages(source, target, options, metadata):
        if not figures:
            text = made.str_nodebug() if hasattr(made, "str_nodebug") else str(made)
            digest, lines = _digest(text, metadata), machine_code.dot_lines(str(made), path)
            kept = kept_kernels.Kept(folder / f"{digest}.json", lines)
            if (found := kept.read()) is not None:
                same_text.write(found)
                return found
            figures |= {"digest": digest, "lines": lines}
        if name == "ttgir":
            figures["dots"] = machine_code.dots(str(made), path)
        elif name in machine_code.USAGE:
            figures |= machine_code.USAGE[name](made)
    figures |= machine_code.spills("".join(log))
    figures |= {
        "num_warps": metadata["num_warps"],
        "num_stages": metadata["num_stages"],
        "shared_bytes": metadata["shared"],
        "tensor_memory": metadata.get("tmem_size") or 0,
        "scratch": (metadata.get("global_scratch_size"), metadata.get("global_scratch_align")),
        "compile_ms": 1000 * (time.perf_counter() - begun),
    }
    kept.write(figures)
    same_text.write(figures)
    return figures


def _digest(text: str, given: dict[str, Any]) -> str:
    """Return what is the same for the same code on the same chip."""
    options = sorted((name, str(value)) for name, value in given.items())
    return hashlib.sha256(f"{options}\n{text}".encode()).hexdigest()
