"""`python -m grader race`: your answer beside naive PyTorch, SDPA and the model answer's time."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import secrets
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from grader.base.text import clean
from grader.commands.race.recorded import Recorded, recorded
from grader.isolate.processes import Children, Ending
from grader.judge import scoring
from grader.source.submission import read_source
from grader.spec.environment import EnvironmentFault, JudgeFault
from grader.spec.findings import MEASURE_S, MeasureRequest, Phase, Raced, SourceFile, read_event
from grader.spec.grade_record import Environment
from grader.spec.problem import ManifestError, Problem
from grader.spec.roofline import Roof, roof


@dataclasses.dataclass(frozen=True)
class Race:
    """What took part, what is known of the model answer, and the roofline of this GPU."""

    environment: Environment
    raced: Raced
    recorded: Recorded | None
    roof: Roof | None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `race`."""
    parser.add_argument("--only", metavar="p04", help="the problem")


def run(
    problem: Problem,
    submission: Path,
    environment: Environment,
    console: Console,
    show: Callable[[Callable[..., str]], None],
    render: Callable[..., str],
) -> int:
    """Time all, `show` what it came to; return 0, or 1 where your answer could not be timed.

    Raises:
        ManifestError: the answer cannot be run.
        EnvironmentFault: there is no GPU, or nothing can be measured on it.
        JudgeFault: the process that measures ended early, or a kernel of the judge failed.
    """
    if environment.device != "cuda":
        raise EnvironmentFault(
            "race: got no CUDA GPU, expected one: only there a kernel has a speed; see"
            " docs/where-to-work.md for GPUs that can be borrowed"
        )
    source = read_source(problem, submission)
    if source.verdict is not None:
        told = source.message.headline if source.message else str(source.verdict)
        raise ManifestError(f"race: {problem.id}/{problem.file}: {told}; make grade P={problem.id}")
    raced = _raced(SourceFile.of(problem.id, source.data), environment, console)
    if raced.internal:
        raise JudgeFault(f"race: {problem.id} was not timed: {clean(raced.fault)}")
    if raced.fault or raced.naive is None or raced.yours is None:
        raise EnvironmentFault(f"race: {problem.id} cannot be timed here: {clean(raced.fault)}")
    case = next((c for c in problem.benchmarks_on("cuda") if str(c) == raced.shape), None)
    made = Race(
        environment,
        raced,
        recorded(environment, problem.id, raced.shape),
        roof(problem, case, environment) if case else None,
    )
    show(functools.partial(render, made))
    return scoring.EXIT_POINTS_LOST if raced.yours.reason else scoring.EXIT_FULL_MARKS


def _raced(file: SourceFile, environment: Environment, console: Console) -> Raced:
    ending = Ending()
    children = Children()
    request = MeasureRequest(
        sources=(file,),
        device="cuda",
        token=secrets.token_hex(),
        device_uuid=environment.device_uuid,
    )
    found = None
    try:
        with console.status("starting") as status:
            lines = children.events(
                "grader.commands.race.racing", [], request.model_dump_json(), MEASURE_S, ending
            )
            for line in lines:
                event = read_event(line, request.token)
                if isinstance(event, Phase):
                    status.update(clean(event.text, 60))
                elif isinstance(event, Raced):
                    found = event
    finally:
        children.stop()
        children.close()
    fault = f"the measuring process ended early: {ending.last_line}"
    return found or Raced(problem=file.problem, fault=fault, internal=True)
