"""`python -m grader predict`: how long an answer would take on GPUs that need not be there."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from itertools import groupby

from grader.base import stdout
from grader.base.text import clean, plural, styled, wrap
from grader.commands.options import SUBMISSION, UsageError, expect_folder
from grader.isolate.compiled import Call, Compiled, compile_calls, unavailable
from grader.judge import scoring
from grader.kernel.compile.model import GPUS
from grader.source.submission import Source, read_source
from grader.spec.cases import Case
from grader.spec.environment import EnvironmentFault
from grader.spec.kernel_report import PredictedTime, Prediction
from grader.spec.problem import Problem, load_problem, problems_named
from grader.spec.protocol import Ended, failed

HELP = "predict the time of your kernels on an A100, H100 and H200, without a GPU; never counts"
OPTIONS = SUBMISSION | {"--only p04,p05": "predict these problems only"}
_MOST_BYTES = 300 * 2**20  # of inputs, which lie in this machine's memory
_NAME, _TIME = 28, 13
_BAND = (
    "Half of the predictions for an H100 that were checked were within 7 %, nine of ten within"
    " 21 %; an A100 and an H200 were never measured. What PyTorch does beside the kernels is left"
    " out. See docs/predict.md."
)


@dataclasses.dataclass(frozen=True)
class Predicted:
    """What came of one problem: the shape, what was compiled for each chip, or why nothing was."""

    problem: Problem
    case: Case | None
    compiled: tuple[Compiled, ...] = ()
    reason: str = ""


def run(options: argparse.Namespace) -> int:
    """Show predictions; return 0 where there is one, else 1."""
    folder = expect_folder(options.submission)
    for gpu in GPUS:
        if (missing := unavailable(gpu.chip.capability)) is not None:
            raise EnvironmentFault(f"nothing can be predicted: {missing}")
    problems = [load_problem(id) for id in problems_named(options.only)]
    found = []
    for problem in problems:
        found.append(predicted(problem, read_source(problem, folder)))
        stdout.show(render, found[-1])
    if not found:
        raise UsageError("--only: got no problem, expected some of p02 to p09")
    told = any(chip.predictions for one in found for chip in one.compiled)
    return 0 if told else scoring.EXIT_POINTS_LOST


def predicted(problem: Problem, source: Source) -> Predicted:
    """Compile what the call of a problem's speed launches, for each chip, and predict it."""
    if not problem.uses_triton:
        return Predicted(problem, None, reason="it has no kernels to predict")
    if source.verdict is not None:
        why = source.message.headline if source.message else str(source.verdict)
        return Predicted(problem, None, reason=why)
    case = _case(problem)
    call = Call.of(problem, case, problem.outputs)
    chips = sorted({gpu.chip.capability for gpu in GPUS})
    compiled = compile_calls(source, problem, [call], capabilities=chips, predicts=True)
    return Predicted(problem, case, tuple(compiled))


def _case(problem: Problem) -> Case:
    """Return the largest shape in which speed is measured whose inputs this machine can hold."""
    cases = problem.benchmarks_on("cuda")
    fits = (c for c in cases if Call.of(problem, c, ()).layout.inputs_end <= _MOST_BYTES)
    return next(fits, cases[-1])


def render(one: Predicted, *, width: int = 80, color: bool = False) -> str:
    """Return times, bounds and the dearest lines of each kernel, or why there are none."""
    return styled(_lines(one, width), width, color=color)


def _lines(one: Predicted, width: int) -> Iterator[tuple[str, str]]:
    problem = one.problem
    if one.case is None:
        reason = clean(one.reason).removeprefix(f"{problem.id} ")
        yield from ((row, "") for row in wrap(f"{problem.id}: {reason}", width))
        return
    head = f"{problem.id} predicted, {one.case}: nothing was timed, and it never counts"
    yield from ((row, "bold") for row in wrap(head, width))
    for chip in one.compiled:
        for why in _why_not(chip):
            yield from ((row, "yellow") for row in wrap(f"  {clean(why)}", width, "", "  "))
    launches = _by_launch(one)
    if not launches:
        return
    yield "", ""
    yield f"  {'kernel':{_NAME}}" + "".join(f"{gpu.name:>{_TIME}}" for gpu in GPUS), ""
    totals: dict[str, float] = {}
    for prediction, times in launches:
        count = f" x {prediction.launches}" if prediction.launches > 1 else ""
        name = f"{clean(prediction.kernel, _NAME - len(count) - 1)}{count}"
        cells = []
        for gpu in GPUS:
            time = times.get(gpu.name)
            cells.append(f"{_ms(time.ms * prediction.launches) if time else '-':>{_TIME}}")
            if time:
                totals[gpu.name] = totals.get(gpu.name, 0.0) + time.ms * prediction.launches
        yield f"  {name:{_NAME}}{''.join(cells)}", ""
        for text in _facts(prediction, list(times.values())):
            yield from ((row, "dim") for row in wrap(text, width, "    ", "      "))
    whole = all(times for _, times in launches)
    if len(launches) > 1 and whole:
        cells = "".join(f"{_ms(totals[gpu.name]) if gpu.name in totals else '-':>{_TIME}}"
                        for gpu in GPUS)  # fmt: skip
        yield f"  {'all kernels':{_NAME}}{cells}", "bold"
    yield "", ""
    yield from ((row, "dim") for row in wrap(_BAND, width))


def _ms(ms: float) -> str:
    return f"{ms:.3g} ms"


def _by_launch(one: Predicted) -> list[tuple[Prediction, dict[str, PredictedTime]]]:
    """Return the launches in their order, each with its time on every GPU."""
    found: dict[int, tuple[Prediction, dict[str, PredictedTime]]] = {}
    for chip in one.compiled:
        for number, prediction in enumerate(chip.predictions):
            shown, times = found.get(number, (prediction, {}))
            times |= {time.gpu: time for time in prediction.times}
            found[number] = (prediction if prediction.times else shown), times
    return list(found.values())


def _facts(prediction: Prediction, times: list[PredictedTime]) -> Iterator[str]:
    if not times:
        yield f"cannot tell: {clean(prediction.unknown)}"
        return
    for bound, group in groupby(times, key=lambda time: time.bound):
        some = list(group)
        peak = f", {100 * some[0].peak:.0f} % of the peak of its dots" if some[0].peak else ""
        yield f"{', '.join(time.gpu for time in some)}: bound by {clean(bound)}{peak}"
    costs = [
        f"{f'{clean(cost.file)} ' if cost.file else ''}line {cost.line} ({100 * cost.share:.0f} %)"
        for cost in prediction.costs
    ]
    if costs:
        yield f"costs most: {', '.join(costs)}"
    yield f"{plural(prediction.programs, 'program')}"


def _why_not(chip: Compiled) -> Iterator[str]:
    """Say what kept kernels of a chip from being predicted, or the call from ending."""
    name = " and ".join(g.name for g in GPUS if g.chip.capability == chip.capability)
    for kernel in chip.refused:
        if kernel.kernel.refusal is not None:
            place = f"line {kernel.kernel.refusal.line}: " if kernel.kernel.refusal.line else ""
            yield f"{name}: {place}{kernel.kernel.refusal.text}"
    bad = [result for result in chip.results if failed(result)]
    if bad and not chip.refused:
        result = bad[0]
        said = str(result) if isinstance(result, Ended) else f"{result.error_type}: {result.text}"
        yield f"{name}: the call did not end: {said}"
    if not bad and not chip.launches:
        yield f"{name}: the call launched no kernel"
