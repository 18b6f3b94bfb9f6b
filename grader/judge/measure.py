"""Measures speed and memory of complete problems: a process that the judge starts.

It is trusted: it holds inputs, clock and oracle. The baseline (reference/naive) runs through the
same door as the submission, in a worker of its own, before and after the submission's worker lives;
if the two disagree the machine was busy and nothing is scored.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import torch

import reference
from grader.isolate import capacity, forks
from grader.isolate.compiled import call_of
from grader.isolate.compilers import Compilers
from grader.isolate.device_memory import DeviceMemoryFault
from grader.isolate.pipe import EventPipe, read_request
from grader.isolate.sandbox import prepare
from grader.judge.measurement import (
    Measurement,
    baseline_worker,
    reason_of,
    submission_worker,
    unmeasured,
)
from grader.kernel.compile.chips import chip_of
from grader.source.submission import Source
from grader.spec.findings import (
    Alive,
    Event,
    MeasureRequest,
    Phase,
    write_event,
)
from grader.spec.grade_record import Verdict
from grader.spec.problem import load_problem
from grader.timing import device_lock, speed
from grader.timing.stopwatch import Bench, CallFailed
from grader.timing.workers_ahead import WorkersAhead

_COMPILE_S = 60.0  # for the timed calls of all problems


class _NoSharedMemory(Exception):
    """Judge and worker cannot share memory of the GPU; says why."""


Emit = Callable[[Event], None]


def main(answer: Callable[[MeasureRequest, Emit], None] | None = None) -> None:
    """Measure every file of the request, or `answer` it otherwise; write one event a problem."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--request-fd", type=int, required=True)
    parser.add_argument("--events-fd", type=int, required=True)
    options = parser.parse_args()
    request = MeasureRequest.model_validate_json(read_request(options.request_fd))
    pipe = EventPipe(options.events_fd, write_event(Alive(), request.token))

    def emit(event: Event) -> None:
        pipe.send(write_event(event, request.token))

    prepare(jailed=request.jailed, gpu=request.device_uuid)
    try:
        torch.set_num_threads(max(1, int(capacity.cores())))
        reference.make_first_calls()
        (answer or measure)(request, emit)
    finally:
        forks.close_server()


def measure(request: MeasureRequest, emit: Callable[[Event], None]) -> None:
    """Measure every file of `request` and emit its evidence."""
    try:
        with ThreadPoolExecutor(1) as beside:
            compiled = beside.submit(_compile_ahead, request)
            with _workers_ahead(request, emit) as ahead:
                wait([compiled])
                # Held from the first context on: a driver reports all memory in use on a GPU.
                with device_lock.held(request.device_uuid or request.device, alone=True):
                    _measure_all(request, emit, ahead)
    except _NoSharedMemory as error:  # as on WSL
        reason = f"not measured: no GPU memory shared between processes ({str(error)[:120]})"
        for file in request.sources:
            emit(unmeasured(file.problem, Verdict.NOT_MEASURED, reason))


def _compile_ahead(request: MeasureRequest) -> None:
    """Compile what timed calls launch before waiting for a GPU, where their workers are jailed.

    Errors show in the first go, which compiles what the cache does not have.
    """
    chip, compilers = chip_of(request.capability), []
    if not (request.jailed and request.device == "cuda" and chip):
        return
    for file in request.sources:
        problem = load_problem(file.problem)
        source = Source(problem.id, file.data, policy=request.policy)
        cases = problem.benchmarks_on("cuda")
        fits = (c for c in cases if speed.naive_bytes(problem, c) < chip.memory_bytes)
        timed = [next(fits, cases[-1]), *(problem.memory_cases("cuda") or ())]
        calls = [call_of(problem, case, problem.outputs) for case in timed]
        if problem.uses_triton:
            compilers.append(Compilers(problem, source, calls, 1, request.capability))
    for compiler in compilers:
        compiler.wait(_COMPILE_S)


def _workers_ahead(request: MeasureRequest, emit: Callable[[Event], None]) -> WorkersAhead:
    """Start the workers of official blocks on a GPU, where each takes seconds to import torch."""
    if not (request.jailed and request.device == "cuda" and request.sources):
        return WorkersAhead()
    emit(Phase(problem=request.sources[0].problem, text="starting workers"))
    blocks = speed.student_blocks(request.device, official=request.official)
    starts = {
        file.problem: [functools.partial(submission_worker, file, request, held=True)] * blocks
        for file in request.sources
    }
    return WorkersAhead(
        functools.partial(baseline_worker, request.device, held=True, differentiates=True), starts
    )


def _measure_all(
    request: MeasureRequest, emit: Callable[[Event], None], ahead: WorkersAhead
) -> None:
    """Measure with one baseline.

    Raises:
        _NoSharedMemory: before the first file.
    """
    try:
        bench = Bench(request.device)
    except DeviceMemoryFault as fault:
        raise _NoSharedMemory(fault) from None
    with ahead.baseline() or baseline_worker(bench.device) as baseline:
        try:
            naive = bench.attach(baseline, entry="noncausal_attention")
        except CallFailed as error:
            raise _NoSharedMemory(reason_of(error.result)) from None
        for file in request.sources:
            try:
                found = Measurement(bench, naive, file, emit, request, ahead).run()
            except Exception as error:  # the judge's own: the next problem has its chance
                reason = f"the judge failed: {type(error).__name__}: {error}"
                found = unmeasured(file.problem, Verdict.INTERNAL, reason[:300])
            emit(found)


if __name__ == "__main__":
    main()
