"""`python -m grader predict`: predicts the times of an answer on GPUs that need not be here."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator

from grader.base import stdout
from grader.base.text import clean, styled, wrap
from grader.commands.options import SUBMISSION, UsageError, expect_folder
from grader.judge import scoring
from grader.report.predicted import BAND, GPU_NAMES, facts_of, time_cells
from grader.source.submission import Source, read_source
from grader.spec.environment import EnvironmentFault
from grader.spec.kernel_report import PredictedCall
from grader.spec.problem import Problem, load_problem, problems_named

HELP = "predict the time of your kernels on an A100, H100 and H200, without a GPU; never counts"
OPTIONS = SUBMISSION | {"--only p04,p05": "predict these problems only"}
_NAME, _TIME = 28, 13


@dataclasses.dataclass(frozen=True)
class Predicted:
    """The prediction for one problem: its call, or the reason why there is none."""

    problem: Problem
    call: PredictedCall | None
    reason: str = ""


def run(options: argparse.Namespace) -> int:
    """Show predictions; return 0 where there is at least one, else 1."""
    from grader.isolate.compiled import unavailable  # imports torch, which --help need not
    from grader.isolate.predicted import CHIPS

    folder = expect_folder(options.submission)
    for chip in CHIPS:
        if (missing := unavailable(chip)) is not None:
            raise EnvironmentFault(f"nothing can be predicted: {missing}")
    problems = [load_problem(id) for id in problems_named(options.only)]
    found = []
    for problem in problems:
        found.append(predicted(problem, read_source(problem, folder)))
        stdout.show(render, found[-1])
    if not found:
        raise UsageError("--only: got no problem, expected some of p02 to p09")
    any_predicted = any(one.call and one.call.launches for one in found)
    return 0 if any_predicted else scoring.EXIT_POINTS_LOST


def predicted(problem: Problem, source: Source) -> Predicted:
    """Compile the kernels of a problem's timed call for each chip, and predict their times."""
    from grader.isolate.compiled import call_of, compile_calls
    from grader.isolate.predicted import CHIPS, predicted_call, timed_case

    if not problem.uses_triton:
        return Predicted(problem, None, reason="it has no kernels to predict")
    if source.verdict is not None:
        why = source.message.headline if source.message else str(source.verdict)
        return Predicted(problem, None, reason=why)
    case = timed_case(problem)
    call = call_of(problem, case, problem.outputs)
    chips = compile_calls(source, problem, [call], capabilities=CHIPS, predicts=call)
    return Predicted(problem, predicted_call(case, chips))


def render(one: Predicted, *, width: int = 80, color: bool = False) -> str:
    """Return times, bounds and the dearest lines of each kernel, or why there are none."""
    return styled(_lines(one, width), width, color=color)


def _lines(one: Predicted, width: int) -> Iterator[tuple[str, str]]:
    problem, call = one.problem, one.call
    if call is None:
        reason = clean(one.reason).removeprefix(f"{problem.id} ")
        yield from ((row, "") for row in wrap(f"{problem.id}: {reason}", width))
        return
    head = f"{problem.id} predicted, {call.shape}: nothing was timed, and it never counts"
    yield from ((row, "bold") for row in wrap(head, width))
    for why in call.unknown.split("; ") if call.unknown else ():
        yield from ((row, "yellow") for row in wrap(f"  {clean(why)}", width, "", "  "))
    if not call.launches:
        return
    yield "", ""
    yield f"  {'kernel':{_NAME}}" + "".join(f"{name:>{_TIME}}" for name in GPU_NAMES), ""
    for launch in call.launches:
        count = f" x {launch.launches}" if launch.launches > 1 else ""
        name = f"{clean(launch.kernel, _NAME - len(count) - 1)}{count}"
        cells = "".join(f"{cell:>{_TIME}}" for cell in time_cells([launch]))
        yield f"  {name:{_NAME}}{cells}", ""
        for text in facts_of(launch):
            yield from ((row, "dim") for row in wrap(text, width, "    ", "      "))
    if len(call.launches) > 1 and all(launch.times for launch in call.launches):
        cells = "".join(f"{cell:>{_TIME}}" for cell in time_cells(call.launches))
        yield f"  {'all kernels':{_NAME}}{cells}", "bold"
    yield "", ""
    yield from ((row, "dim") for row in wrap(BAND, width))
