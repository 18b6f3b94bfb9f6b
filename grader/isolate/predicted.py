"""Joins what was predicted of a problem's kernels for each chip into what the record holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from grader.isolate.compiled import Compiled, call_of
from grader.kernel.compile.model import GPUS
from grader.spec.cases import Case
from grader.spec.kernel_report import PredictedCall, Prediction
from grader.spec.problem import Problem
from grader.spec.protocol import Ended, failed

MOST_BYTES = 300 * 2**20  # of inputs, which lie in this machine's memory
CHIPS = sorted({gpu.chip.capability for gpu in GPUS})


def timed_case(problem: Problem, most_bytes: int = MOST_BYTES) -> Case:
    """Return the largest shape in which speed is measured whose inputs this machine can hold."""
    cases = problem.benchmarks_on("cuda")
    fits = (c for c in cases if call_of(problem, c, ()).layout.inputs_end <= most_bytes)
    return next(fits, cases[-1])


def like(compiled: Case, timed: Case) -> Case:
    """Return a case as large as one that is timed, with the constants of one that is compiled.

    Those are heads, head_dim, cols, the dtype and the options, so that the same kernels are
    launched: Triton compiles a number that is 1, as that of the heads may be, into a kernel. More
    batches make up for fewer heads.
    """
    batch = max(1, timed.batch * timed.num_q_heads // compiled.num_q_heads)
    sizes = {name: getattr(timed, name) for name in ("seqlen_q", "seqlen_k", "rows")}
    return dataclasses.replace(compiled, batch=batch, **sizes)


def predicted_call(case: Case, chips: Sequence[Compiled]) -> PredictedCall:
    """Return the launches in their order, each with its times on the GPUs of all chips."""
    found: dict[int, Prediction] = {}
    for chip in chips:
        for number, new in enumerate(chip.predictions):
            known = found.get(number, new)
            if known.kernel == new.kernel and known is not new:
                shown = known if known.times or not new.times else new
                new = shown.model_copy(update={"times": known.times + new.times})
            found[number] = new
    whys = list(dict.fromkeys(why for chip in chips if (why := _why(chip))))
    unknown = "" if found else "; ".join(whys)
    return PredictedCall(shape=str(case), launches=tuple(found.values()), unknown=unknown)


def _why(chip: Compiled) -> str:
    """Return why nothing is predicted for a chip; "" if its launches are."""
    name = " and ".join(gpu.name for gpu in GPUS if gpu.chip.capability == chip.capability)
    for kernel in chip.refused:
        if kernel.kernel.refusal is not None:
            place = f"line {kernel.kernel.refusal.line}: " if kernel.kernel.refusal.line else ""
            return f"{name}: {place}{kernel.kernel.refusal.text}"
    result = chip.predicted
    if result is None or failed(result):
        bad = next((r for r in (result, *chip.results) if r is not None and failed(r)), None)
        if bad is None:
            return f"{name}: the call was not made"
        if isinstance(bad, Ended):
            return f"{name}: {bad.how('call')}"
        return f"{name}: the call did not end: {bad.error_type}: {bad.text}"
    return "" if chip.predictions else f"{name}: the call launched no kernel"
