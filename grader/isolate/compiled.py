"""Whether the kernels of a submission compile for a GPU, on a machine that need not have one.

One worker per chip makes the calls and launches nothing. Its report on each kernel is read here
within bounds: a submission runs in that process and can write into it what it likes. It gains only
sentences in its own grade report by that; verdicts are made elsewhere.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import ValidationError

from grader.base.chip_name import is_amd
from grader.base.dtypes import TORCH_DTYPES
from grader.isolate import capacity
from grader.isolate.arena import Call
from grader.isolate.placing import place
from grader.isolate.sandbox import PATIENCE, Sandbox
from grader.kernel.compile.chips import CHIPS, EVERY_CHIP, resident_programs
from grader.kernel.compile.predicting import MAX_LAUNCHES
from grader.source.submission import Source
from grader.spec.cases import Case
from grader.spec.inputs import Inputs
from grader.spec.kernel_report import Compilation, KernelReport, Prediction, Refusal
from grader.spec.problem import Problem
from grader.spec.protocol import Ended, Reply, failed

TIMEOUT_S = 60.0  # without the time in which the worker waits for a core
MAX_KERNELS = 40  # those that compile, and refusals
_PREDICTING_S = 10.0
_CHIPS_AT_A_TIME = 2  # where there are as many cores
_MAX_REPORT_BYTES = 2**20
_MAX_LINE_BYTES = 16 * 1024
_Line = TypeVar("_Line", KernelReport, Prediction)


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The results of the calls for one chip.

    `results` has one entry per call that was made, the last of which may be an `Ended`; if the
    import failed, its entry alone. `kernels` are in the order of their first launch, and so are
    `predictions`, if they were asked for; `predicted` is how the call for these ended.
    """

    capability: int
    kernels: tuple[Compilation, ...]
    results: tuple[Reply | Ended, ...]
    launches: int
    seconds: float
    output: str = ""
    predictions: tuple[Prediction, ...] = ()
    predicted: Reply | Ended | None = None

    @property
    def refused(self) -> tuple[Compilation, ...]:
        return tuple(k for k in self.kernels if k.kernel.refusal is not None)


def unavailable(capability: int = min(CHIPS)) -> str | None:
    """Return why nothing can be compiled for a chip on this machine, None when it can."""
    tool = "ptxas-blackwell" if capability >= 100 else "ptxas"
    file, what = f"nvidia/bin/{tool}", f"NVIDIA's assembler, {tool}"
    if is_amd(capability):
        file, what = "amd/compiler.py", "AMD's compiler"
    elif f"TRITON_{tool.upper().replace('-', '_')}_PATH" in os.environ:
        return None
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:
        return "Triton is not installed"
    there = os.access(Path(found.origin).parent / "backends" / file, os.R_OK)
    return None if there else f"this Triton came without {what}"


def compile_calls(
    source: Source,
    problem: Problem,
    calls: Sequence[Call],
    *,
    capabilities: Sequence[int] = tuple(CHIPS),
    timeout_s: float = TIMEOUT_S,
    kernels: Path | None = None,
    predicts: Call | None = None,
    begins: Callable[[int], None] = lambda capability: None,
) -> list[Compiled]:
    """Compile what `calls` launch, for each of `capabilities`.

    Args:
        capabilities: of `EVERY_CHIP`.
        timeout_s: seconds of one core for all calls for one chip, without the start of the worker,
            and without the time in which a busy machine has no core for it.
        kernels: folder in which what is compiled is kept for the next time.
        predicts: a call made after the others, whose launches are predicted and decide nothing.
        begins: called with each chip when its turn comes.
    """
    cores = capacity.cores()

    def compile_one(capability: int) -> Compiled:
        missing = unavailable(capability)
        if missing is not None:
            return Compiled(capability, (not_compiled(capability, missing),), (), 0, 0.0)
        begins(capability)
        limit_s = timeout_s / min(1.0, cores)
        return _compile(source, problem, calls, capability, limit_s, kernels, predicts)

    # A worker dies with the thread that started it: each thread starts and ends its own.
    at_a_time = max(1, min(_CHIPS_AT_A_TIME, int(cores)))
    with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
        return list(pool.map(compile_one, capabilities))


def _compile(
    source: Source,
    problem: Problem,
    calls: Sequence[Call],
    capability: int,
    timeout_s: float,
    cache: Path | None,
    predicts: Call | None,
) -> Compiled:
    start = time.monotonic()
    results: list[Reply | Ended] = []
    report = os.memfd_create("report", os.MFD_CLOEXEC)
    try:
        with Sandbox(
            source.data,
            problem.file,
            problem.entry,
            device="cpu",
            role="compile",
            kernels=cache or Path("cache"),
            capability=capability,
            predicts=predicts is not None,
        ) as sandbox:
            result = sandbox.ready()
            if failed(result):
                results.append(result)
                calls, predicts = (), None
            left_s = timeout_s
            for call in calls:
                begun = time.monotonic()
                result = _ask(sandbox, call, left_s, report)
                results.append(result)
                left_s = max(0.0, left_s - (time.monotonic() - begun - sandbox.starved_s))
                if isinstance(result, Ended):
                    break
            kernels, output = _kernels(report, capability), sandbox.output()
            launches = sum(r.launches for r in results if isinstance(r, Reply))
            seconds = time.monotonic() - start
            predicted: Reply | Ended | None = results[-1] if results else None
            if predicts is not None and not isinstance(predicted, Ended):
                predicted = _ask(sandbox, predicts, min(left_s, _PREDICTING_S), report, True)
        predictions = tuple(_read(report, Prediction))[: MAX_LAUNCHES + 1]
    finally:
        os.close(report)
    made = (capability, kernels, tuple(results), launches, seconds, output)
    return Compiled(*made, predictions, predicted)


def call_of(problem: Problem, case: Case, outputs: tuple[str, ...]) -> Call:
    """Return the call that judges `outputs` of a case; no input is computed for it."""
    gradients = any(name in problem.gradients for name in outputs)
    layout = place(case, _blank(problem, case, gradients), outputs)
    return Call(layout, case.kwargs, problem.returns, gradients)


def _ask(
    sandbox: Sandbox, call: Call, seconds: float, report: int, predicts: bool = False
) -> Reply | Ended:
    fields = call._asdict() | {"predicts": predicts}
    return sandbox.ask("compile", seconds, (report,), patience=PATIENCE, **fields)


def not_compiled(capability: int, why: str, line: int = 0) -> Compilation:
    """Return a refusal in place of all kernels on a chip, where none of them is to blame."""
    refusal = Refusal(error_type="", line=line, text=why)
    kernel = KernelReport(kernel="", line=0, refusal=refusal)
    return Compilation(capability=capability, kernel=kernel)


def _read(report: int, kind: type[_Line]) -> list[_Line]:
    """Return the lines of a report that are of a kind."""
    found: list[_Line] = []
    for line in os.pread(report, _MAX_REPORT_BYTES, 0).split(b"\n")[:-1]:
        if len(line) <= _MAX_LINE_BYTES:
            with contextlib.suppress(ValidationError):
                found.append(kind.model_validate_json(line))
    return found


def _kernels(report: int, capability: int) -> tuple[Compilation, ...]:
    """Return the kernels of a report, without those that repeat."""
    found = dict.fromkeys(_read(report, KernelReport))
    return tuple(_on_chip(capability, kernel) for kernel in found)[:MAX_KERNELS]


def _on_chip(capability: int, kernel: KernelReport) -> Compilation:
    """Return a kernel's report, with how many of its programs share a multiprocessor."""
    programs, limit = None, None
    if kernel.refusal is not None:
        programs = 0
    elif not is_amd(capability) and None not in (
        kernel.num_warps, kernel.registers, kernel.shared_bytes
    ):  # fmt: skip
        programs, limit = resident_programs(
            EVERY_CHIP[capability],
            num_warps=kernel.num_warps or 1,
            registers=kernel.registers or 0,
            shared_bytes=kernel.shared_bytes or 0,
        )
    return Compilation(capability=capability, kernel=kernel, programs=programs, limit=limit)


def _blank(problem: Problem, case: Case, gradients: bool) -> Inputs:
    """Return inputs of the right shapes and dtypes without values."""

    def blank(*size: int, dtype: str = case.dtype) -> torch.Tensor:
        return torch.empty(size, dtype=TORCH_DTYPES[dtype], device="meta")

    if case.rows is not None and case.cols is not None:
        tensors = {"x": blank(case.rows, case.cols), "w": blank(case.cols)}
        return Inputs({name: tensors[name] for name in problem.inputs})
    q = (case.batch, case.num_q_heads, case.seqlen_q, case.head_dim)
    kv = (case.batch, case.num_kv_heads, case.seqlen_k, case.head_dim)
    tensors = {"q": blank(*q), "k": blank(*kv), "v": blank(*kv)}
    if case.sink_logits:
        tensors["sink_logits"] = blank(case.num_q_heads, dtype="fp32")
    return Inputs(tensors, blank(*q) if gradients else None)
