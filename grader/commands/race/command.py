"""`python -m grader race`: your answer beside naive PyTorch, SDPA and the model answer's time."""

from __future__ import annotations

import argparse
import functools
import secrets

from rich.console import Console

from grader.base import stdout
from grader.base.text import clean
from grader.commands.options import SUBMISSION, UsageError, expect_folder, one_or_all
from grader.commands.race.view import Race, recorded, render
from grader.isolate.processes import Children, Ending
from grader.judge import scoring
from grader.source.submission import read_source
from grader.spec.environment import EnvironmentFault, JudgeFault, probe
from grader.spec.findings import MEASURE_S, MeasureRequest, Phase, Raced, SourceFile, read_event
from grader.spec.grade_record import Environment
from grader.spec.problem import ManifestError, load_problem
from grader.spec.roofline import roof

HELP = "time your answer beside naive PyTorch and SDPA"


OPTIONS = {"--only p04": "the problem", **SUBMISSION}


def run(options: argparse.Namespace) -> int:
    """Time all, show what it came to; return 0, or 1 where your answer could not be timed.

    Raises:
        UsageError: an option cannot be used.
        ManifestError: the answer cannot be run.
        EnvironmentFault: there is no GPU, or nothing can be measured on it.
        JudgeFault: the process that measures ended early, or a kernel of the judge failed.
    """
    if options.only is None:
        raise UsageError("--only: got nothing, expected one problem: make race P=p04")
    (id,) = one_or_all(options.only)
    folder, problem = expect_folder(options.submission), load_problem(id)
    environment = probe("auto")
    if environment.device != "cuda":
        raise EnvironmentFault(
            "race: got no CUDA GPU, expected one: only there a kernel has a speed; see"
            " docs/where-to-work.md for GPUs that can be borrowed"
        )
    source = read_source(problem, folder)
    if source.verdict is not None:
        told = source.message.headline if source.message else str(source.verdict)
        raise ManifestError(f"race: {problem.id}/{problem.file}: {told}; make grade P={problem.id}")
    raced = _raced(SourceFile.of(problem.id, source.data), environment)
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
    stdout.show(functools.partial(render, made))
    return scoring.EXIT_POINTS_LOST if raced.yours.reason else scoring.EXIT_FULL_MARKS


def _raced(file: SourceFile, environment: Environment) -> Raced:
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
        with Console(stderr=True).status("starting") as status:
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
