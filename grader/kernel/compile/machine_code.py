"""Reads the figures of a compiled kernel: registers, spills, and the instructions of its dots.

Registers come from the machine code (cuobjdump is part of Triton) or from AMD's assembly, spills
from the log of NVIDIA's assembler, dots from the TTGIR, the last stage that has both a dot and its
line.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from typing import Any

from grader.kernel.machine.parse import Places

_USAGE = re.compile(r"\bREG:(\d+) STACK:(\d+)\b")
_AMD_USAGE = re.compile(r"^ +\.(vgpr_count|private_segment_fixed_size): +(\d+)$", re.MULTILINE)
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_DOT = re.compile(r"\b(tt\.dot(?:_scaled)?|ttng\.warp_group_dot) .*-> .*?, (#\w+)>.* loc\((.+)\)$")
_ANY_DOT = re.compile(r"\btt\.dot(?:_scaled)? .* loc\((.+)\)$")
_TOOL_S = 30.0


def inspected(tool: str, *options: str, cubin: bytes) -> subprocess.CompletedProcess[str] | None:
    """Run one of NVIDIA's tools that Triton has on machine code; None if it is absent or hangs."""
    from triton import knobs

    try:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            command = [getattr(knobs.nvidia, tool).path, *options, file.name]
            return subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_S)
    except (OSError, RuntimeError, subprocess.SubprocessError):
        return None


def usage(cubin: bytes) -> dict[str, int]:
    """Return `registers` and `stack_bytes` per thread of machine code.

    Functions that are not inlined have figures of their own: the largest ones count.
    """
    done = inspected("cuobjdump", "-res-usage", cubin=cubin)
    text = done.stdout if done else ""
    found = [(int(registers), int(stack)) for registers, stack in _USAGE.findall(text)]
    if not found:
        return {}
    return {"registers": max(r for r, _ in found), "stack_bytes": max(s for _, s in found)}


def amd_usage(assembly: str) -> dict[str, int]:
    """Return the same from the end of AMD's assembly."""
    found = {name: int(count) for name, count in _AMD_USAGE.findall(assembly)}
    names = {"registers": "vgpr_count", "stack_bytes": "private_segment_fixed_size"}
    return {ours: found[theirs] for ours, theirs in names.items() if theirs in found}


# By the compiler's stage whose result they read.
USAGE: dict[str, Callable[[Any], dict[str, int]]] = {"cubin": usage, "amdgcn": amd_usage}


def spills(log: str) -> dict[str, int]:
    """Return the bytes a thread stores and loads for lack of registers, from ptxas -v."""
    found = [(int(stores), int(loads)) for stores, loads in _SPILLS.findall(log)]
    if not found:
        return {}
    stores, loads = (sum(column) for column in zip(*found, strict=True))
    return {"spill_store_bytes": stores, "spill_load_bytes": loads}


def dots(text: str, path: str) -> list[dict[str, Any]]:
    """Return the dots of TTGIR by line of the submission at `path`: `mma`, `wgmma`, or `none`.

    A line that became several dots (a loop and its peeled rounds) is `none` if one of them is.
    """
    places = Places(text)
    found: dict[int, str] = {}
    for row in text.splitlines():
        match = _DOT.search(row)
        if match is None:
            continue
        operation, layout, place = match.groups()
        line = places.of(place).line_in(path)
        instruction = "none"
        if operation == "ttng.warp_group_dot":
            instruction = "wgmma"
        elif layout.startswith("#mma"):
            instruction = "mma"
        if found.get(line) != "none":
            found[line] = instruction
    return [{"line": line, "instruction": found[line]} for line in sorted(found)]


def dot_lines(ttir: str, path: str) -> list[int]:
    """Return the line in the submission at `path` of each dot in a text of TTIR, 0 for none."""
    places = Places(ttir)
    found = map(_ANY_DOT.search, ttir.splitlines())
    return [places.of(match[1]).line_in(path) for match in found if match is not None]
