"""Compiles the kernels here without a GPU, and reports on their machine code.

`python -m benchmarks.limits.compiled` calls each case as on an H100 and compiles it, but runs
nothing. It reports registers at the start (setmaxnreg moves them between warpgroups afterwards),
bytes of stack and instructions that access it (spills), shared memory, tensor-core instructions,
waits for them, and `under`: how many of the loops over tiles compute exponentials while a product
runs, which is all of them in the gradients, and none in the forward kernel.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from grader.kernel.compile import absent_gpu, machine_code, stages
from grader.kernel.compile.chips import CHIPS
from grader.kernel.given import offer_given
from grader.kernel.machine import capture

_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*?);", re.M)

# A thread computes BLOCK_N / 2 exponentials per tile; the smallest tile has 64 keys.
_FEWEST_POWERS = 24


@dataclasses.dataclass(frozen=True)
class Case:
    """A call with 2 heads, or with `grouped` 8 query heads and 2 kv heads.

    Gradients with a window are computed with sink logits.
    """

    name: str
    head_dim: int
    seqlen: int = 1024
    grouped: bool = False
    rule: dict[str, Any] = dataclasses.field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16
    is_backward: bool = False


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A compiled kernel: its name, machine code and shared memory."""

    name: str
    code: bytes
    shared_bytes: int


_CAUSAL = {"is_causal": True}
_WINDOW = _CAUSAL | {"window_size": 600}
_SINKS = _WINDOW | {"num_sink_tokens": 4}
_WIDE = _SINKS | {"window_size": 1024}
CASES = (
    Case("full", 128, rule={"is_causal": False}),
    Case("full-ragged", 128, 1000, rule={"is_causal": False}, dtype=torch.float16),
    Case("causal", 128, rule=_CAUSAL),
    Case("gqa", 128, grouped=True, rule=_CAUSAL),
    Case("window", 128, grouped=True, rule=_WINDOW),
    Case("sinks", 128, grouped=True, rule=_SINKS),
    Case("full-d64", 64, rule={"is_causal": False}),
    Case("backward", 128, grouped=True, rule=_CAUSAL, is_backward=True),
    Case("backward-window", 128, 2048, grouped=True, rule=_WIDE, is_backward=True),
    Case("backward-d64", 64, grouped=True, rule=_CAUSAL, is_backward=True),
    Case("backward-narrow-d64", 64, grouped=True, rule=_SINKS, is_backward=True),
)


def compile_case(case: Case, found: list[Kernel]) -> list[dict[str, Any]]:
    """Return the figures of each kernel of a case; `found` is the list that `pretend` returned."""
    from benchmarks.limits import launch, training

    num_q_heads, num_kv_heads = (8, 2) if case.grouped else (2, 2)
    found.clear()
    q = torch.zeros(1, num_q_heads, case.seqlen, case.head_dim, dtype=case.dtype)
    k = torch.zeros(1, num_kv_heads, case.seqlen, case.head_dim, dtype=case.dtype)
    if case.is_backward:
        leaves = [x.requires_grad_() for x in (q, k, torch.zeros_like(k))]
        logits = {}
        if "window_size" in case.rule:
            logits = {"sink_logits": torch.zeros(num_q_heads).requires_grad_()}
        out = training.attention(*leaves, **case.rule, **logits)
        leaves += logits.values()
        torch.autograd.grad(out, leaves, torch.zeros_like(out))
    else:
        launch.attention(q, k, torch.zeros_like(k), **case.rule)
    wanted = "backward_kernel" if case.is_backward else "attention_kernel"
    return [
        {"name": case.name, "shared_bytes": kernel.shared_bytes} | figures(kernel.code)
        for kernel in found
        if kernel.name == wanted
    ]


def pretend() -> list[Kernel]:
    """Pretend for the rest of this process that there is an H100.

    The returned list gets each kernel at its first launch.
    """
    found: list[Kernel] = []

    def make(source: Any, target: Any, options: dict[str, Any]) -> capture.Kernel:
        metadata: dict[str, Any] = {}
        *_, (_, code) = stages.stages(source, target, options, metadata)
        found.append(Kernel(metadata["name"], code, metadata["shared"]))
        return capture.Kernel(source.fn, source.name, "", source.signature, False)

    absent_gpu.install(CHIPS[90])
    capture.install(lambda launch: None, make)
    return found


def figures(code: bytes) -> dict[str, int]:
    """Return the figures of a kernel's machine code that the module's docstring describes."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(code)
        usage = machine_code.usage(code)
        command = [knobs.nvidia.nvdisasm.path, "-c", str(path)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    instructions = _INSTRUCTION.findall(text)
    names = [name for name, _ in instructions]
    loops, under = _loops(instructions)
    return usage | {
        "instructions": len(names),
        "spills": sum(name.startswith(("LDL", "STL")) for name in names),
        "products": sum(name.startswith("HGMMA") for name in names),
        "waits": sum(name.startswith("WARPGROUP.DEPBAR") for name in names),
        "loops": loops,
        "under": under,
    }


def _loops(instructions: list[tuple[str, str]]) -> tuple[int, int]:
    """Return how many waits leave one of two products running, and how many a softmax follows.

    The last few exponentials of the softmax may come after the next wait.
    """
    loops = under = issued = 0
    powers: int | None = None
    for name, operands in instructions:
        if name.startswith("WARPGROUP.DEPBAR"):
            under += powers is not None and powers >= _FEWEST_POWERS
            leaves_one = "0x1" in operands and issued == 2
            loops += leaves_one
            powers, issued = 0 if leaves_one else None, 0
        elif name.startswith("HGMMA"):
            issued += "gsb0" in operands  # the last instruction of a product
        elif name == "MUFU.EX2" and powers is not None:
            powers += 1
    return loops, under


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits.compiled")
    names = [case.name for case in CASES]
    parser.add_argument("--only", metavar="A,B", default=",".join(names), help=", ".join(names))
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args(argv)
    wanted = options.only.split(",")
    if not set(wanted) <= set(names):
        parser.error(f"--only: got {options.only}, expected among {', '.join(names)}")
    offer_given()
    found = pretend()
    for case in CASES:
        if case.name in wanted:
            for row in compile_case(case, found):
                print(json.dumps(row) if options.json else as_row(row), flush=True)
    return 0


def as_row(row: dict[str, Any]) -> str:
    """Return a row of the table in README.md."""
    kib = f"{row['shared_bytes'] / 1024:.1f} KiB"
    under = f"{row['under']} of {row['loops']}"
    cells = (row["name"], row["registers"], kib, row["spills"], row["products"], under)
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    raise SystemExit(main())
