"""Kernels and submissions on the tile machine, in the process of the tests."""

import contextlib
import dataclasses
import functools
import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton
from triton import compiler
from triton.runtime import driver

from grader.isolate import arena, returned
from grader.isolate import session as sessions
from grader.isolate.placing import place
from grader.kernel import given
from grader.kernel.compile import absent_gpu
from grader.kernel.compile.chips import CHIPS
from grader.kernel.machine.engine import Engine
from grader.kernel.observers.rounds import Rounds, RoundsShape
from grader.kernel.observers.stepping import Steps
from grader.kernel.observers.trace import Trace, TraceShape
from grader.kernel.observers.tracing import Tracing
from grader.kernel.observers.watch import Watch
from grader.source.submission import Source
from grader.spec.cases import Case
from grader.spec.inputs import Inputs
from grader.spec.problem import Problem


@contextlib.contextmanager
def machine_in_process(engine: Engine, names: dict[str, Any] | None = None) -> Iterator[Engine]:
    """Let kernels that are compiled inside run on the machine; those among `names` anew."""
    active = absent_gpu.Driver(CHIPS[80], tensors=torch.device("cpu"))
    for kernel in (names or {}).values():
        if isinstance(kernel, triton.JITFunction):
            kernel.device_caches.clear()
    with (
        mock.patch.object(compiler, "compile", compiler.compile),
        mock.patch.object(driver, "_active", active),
    ):
        engine.install()
        yield engine


@functools.cache
def _engine() -> Engine:
    """Return the one engine: kernels of `given` stay compiled for it."""
    engine = Engine("")
    engine.reset(far=True)
    return engine


def machine_trace(
    problem: Problem, source: Source, case: Case, inputs: Inputs, follow: RoundsShape | None = None
) -> tuple[Trace, Rounds | None]:
    """Return the trace of one call on the machine, in this process, and rounds of a program."""
    names = problem.outputs
    shape = TraceShape.of(case, source.num_lines)
    memory = np.zeros(shape.total_bytes, np.uint8)
    gradients = any(name in problem.gradients for name in names)
    inputs = inputs if gradients else dataclasses.replace(inputs, dout=None)
    layout = place(case, inputs, names)
    given.offer_given()
    with tempfile.TemporaryDirectory() as folder, arena.Arena(layout.total_bytes) as shared:
        path = Path(folder) / problem.file
        path.write_bytes(source.data)
        sessions._write_inputs(shared, layout, inputs)
        tensors = {view.name: view.of(shared.memory) for view in layout.inputs}
        places = shape, memory, str(path), source.data, tensors
        own = np.zeros(follow.total_bytes if follow else 0, np.uint8)
        tracing = Tracing(*places, Steps(follow, own, str(path)) if follow else None)
        with machine_in_process(_engine()) as engine, engine.watched(Watch(str(path)), tracing):
            spec = importlib.util.spec_from_file_location(path.stem, path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            request = {"kwargs": case.kwargs, "returns": list(problem.returns)}
            results = returned.of_call(
                getattr(module, problem.entry), tensors, {"gradients": gradients, **request}
            )
            tracing.finish(results)
        assert not tracing.fault, tracing.fault
    return Trace.of(shape, memory), Rounds.of(follow, own) if follow else None
