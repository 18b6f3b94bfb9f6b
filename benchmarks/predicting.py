"""`python -m benchmarks.predicting`: times kernels, and fits the model that predicts times to them.

`time FILE` needs a GPU: it times every kernel of the model answers and of the unusual right ones.
`fit FILE RECORD` needs none: it compiles the same calls (some twenty minutes of one core), fits the
constants of grader/kernel/compile/model.py on one half of the answers, and writes what
docs/predict.md rests on. `--only WORDS` leaves out all answers whose id does not contain the words.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import hashlib
import importlib.util
import json
import math
import multiprocessing
import pickle
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import record
from grader.kernel.compile.chips import EVERY_CHIP
from grader.kernel.compile.model import FITTED, GPUS, Constants, Launched, predict
from grader.kernel.compile.predicting import Predictor
from grader.kernel.compile.recorder import Recorder
from grader.kernel.compile.work import Work
from grader.kernel.machine import capture
from grader.kernel.machine.ttir import NotMeasured
from grader.spec.cases import resolve
from grader.spec.inputs import make_inputs
from grader.spec.problem import load_problem, problem_ids
from tests.harness import whole_answer
from tests.unusual import ANSWERS

H100 = next(gpu for gpu in GPUS if gpu.name == "H100")
DTYPE = "bf16"
_FLUSH_BYTES = 256 * 2**20
_CALLS = 3
_ROUNDS, _STEP, _LEAST_STEP = 12, 0.2, 0.015
_MOST = 0.5  # cap on an error's logarithm, so that outliers weigh no more
_LONG = {"batch": 1, "num_q_heads": 32, "num_kv_heads": 8, "seqlen": 8192, "head_dim": 128}
_MANY = {"batch": 2, "num_q_heads": 32, "num_kv_heads": 8, "seqlen": 4096, "head_dim": 64}
_SHORT = {"batch": 8, "num_q_heads": 16, "num_kv_heads": 4, "seqlen": 1024, "head_dim": 128}
_EACH = [
    {"batch": 2, "num_q_heads": 16, "num_kv_heads": 16, "seqlen": 4096, "head_dim": 128},
    {"batch": 1, "num_q_heads": 32, "num_kv_heads": 32, "seqlen": 8192, "head_dim": 64},
    {"batch": 8, "num_q_heads": 16, "num_kv_heads": 16, "seqlen": 1024, "head_dim": 128},
]
_WIDE, _NARROW = {"window_size": 1024}, {"window_size": 128, "seqlen": 8192}
_SINKS = {"num_sink_tokens": 4}
SHAPES: dict[str, list[dict[str, Any]]] = {
    "p02": [
        {"rows": 16384, "cols": 4096},
        {"rows": 65536, "cols": 1024},
        {"rows": 4096, "cols": 8192, "layout": "transposed"},
    ],
    "p03": _EACH,
    "p04": _EACH,
    "p05": [_LONG, _MANY, _SHORT],
    "p06": [_LONG | _WIDE, _MANY | _NARROW],
    "p07": [_LONG | _WIDE | _SINKS, _MANY | _NARROW | _SINKS],
    "p08": [_LONG | {"seqlen": 4096}, _MANY, _SHORT | {"batch": 4}],
    "p09": [
        _LONG | _WIDE | _SINKS | {"sink_logits": True},
        _LONG | _NARROW | {"head_dim": 64, "sink_logits": True},
    ],
}


def answers(words: str = "") -> dict[str, tuple[str, str]]:
    """Return, by id, problem and source of the answers whose id contains `words`."""
    found = {f"{id}-answer": (id, whole_answer(id)) for id in problem_ids() if id in SHAPES}
    for answer in ANSWERS:
        if answer.problem in SHAPES and answer.lacks() is None:
            found[answer.id] = answer.problem, answer.applied_to(whole_answer(answer.problem))
    return {id: one for id, one in sorted(found.items()) if words in id}


def is_fitted(id: str) -> bool:
    """Whether the constants are fitted on an answer; the others are held out for validation."""
    return hashlib.sha256(id.encode()).digest()[0] % 2 == 0


def calls_of(
    problem_id: str, path: Path, shape: dict[str, Any], device: str
) -> dict[str, Callable[[], Any]]:
    """Return functions that call the forward pass and, if there is one, the backward pass."""
    problem = load_problem(problem_id)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    torch.set_default_dtype(torch.float32)  # one of the answers changes these
    torch.set_default_device(None)
    case = resolve(shape, DTYPE, "")
    inputs = make_inputs(problem, case, 1, device)
    entry, tensors = getattr(module, problem.entry), inputs.tensors
    if case.layout == "transposed":
        tensors["x"] = tensors["x"].t().contiguous().t()

    def forward() -> Any:
        return entry(**tensors, **case.kwargs)

    if not problem.gradients:
        return {"forward": forward}
    for tensor in tensors.values():
        tensor.requires_grad_()
    out = forward()
    out = out[0] if isinstance(out, tuple) else out
    given = list(tensors.values())

    def backward() -> Any:
        return torch.autograd.grad(out, given, inputs.dout, retain_graph=True)

    return {"forward": forward, "backward": backward}


def written(folder: Path, words: str) -> list[tuple[str, str, Path]]:
    """Write the answers into files, which Triton needs; return id, problem and path of each."""
    found = []
    for number, (id, (problem_id, source)) in enumerate(answers(words).items()):
        path = folder / f"answer_{number}.py"
        path.write_text(source, "utf-8")
        found.append((id, problem_id, path))
    return found


# -- on a GPU ---------------------------------------------------------------------------------


def launch_once(job: tuple[str, str, Path]) -> None:
    """Compile all kernels that an answer launches into Triton's cache."""
    _, problem_id, path = job
    for shape in SHAPES[problem_id]:
        try:
            for call in calls_of(problem_id, path, shape, "cuda").values():
                call()
        except Exception as error:  # reported when it is timed
            print(f"{job[0]}: {type(error).__name__}", file=sys.stderr)
        torch.cuda.empty_cache()


def timed(call: Callable[[], Any]) -> dict[str, tuple[float, float]]:
    """Return, by kernel, the launches per call and the milliseconds of one launch."""
    from torch.profiler import ProfilerActivity, profile

    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    for _ in range(2):
        call()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(_CALLS):
            flush.zero_()
            call()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = collections.defaultdict(list)
    for event in profiled.events():
        if "CUDA" in str(event.device_type):
            found[event.name].append(event.device_time / 1e3)
    return {name: (len(ms) / _CALLS, statistics.mean(ms)) for name, ms in found.items()}


def time_all(path: Path, words: str) -> None:
    """Time every kernel of every answer; write the file at the end."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        jobs = written(Path(folder), words)
        workers = max(1, min(len(jobs), (torch.get_num_threads() or 1) - 1, 15))
        with multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=4) as pool:
            pool.map(launch_once, jobs, chunksize=1)
        for id, problem_id, file in jobs:
            for shape in SHAPES[problem_id]:
                try:
                    for which, call in calls_of(problem_id, file, shape, "cuda").items():
                        rows.append({"id": id, "shape": shape, "which": which,
                                     "kernels": timed(call)})  # fmt: skip
                except Exception as error:
                    print(f"{id} {shape}: {type(error).__name__}: {error}", file=sys.stderr)
    found = record.new_record("kernel times", {"dtype": DTYPE, "calls": _CALLS})
    record.save(found | {"results": rows}, path)


# -- anywhere ---------------------------------------------------------------------------------


class _Kept(Predictor):
    """Collects the model's input for each launch, or the reason why there is none."""

    def __init__(self, path: str) -> None:
        super().__init__(path, H100.chip.capability)
        self.found: list[tuple[str, tuple[Work, Launched] | str]] = []

    def launched(self, launch: capture.Launch, line: int) -> None:
        name = launch.kernel.fn.__name__
        try:
            self.found.append((name, self.known(launch)))
        except NotMeasured as error:
            self.found.append((name, str(error)))


Launches = list[tuple[str, "tuple[Work, Launched] | str"]]


def launches_of(job: tuple[str, str, Path]) -> bytes:
    """Return an answer's launches, by shape and pass, without a GPU.

    The result is pickled: PyTorch would share tensors' memory with a process that has ended.
    """
    _, problem_id, path = job
    torch.set_num_threads(1)
    kept = _Kept(str(path))
    recorder = Recorder(str(path), EVERY_CHIP[90], lambda _: None, kept)
    recorder.predicts = True
    recorder.install()
    found: dict[str, Launches] = {}
    for shape in SHAPES[problem_id]:
        try:
            kept.found = []
            calls = calls_of(problem_id, path, shape, "cpu")
            for which, call in calls.items():
                kept.found = []
                call()
                found[f"{json.dumps(shape)} {which}"] = kept.found
        except Exception as error:
            print(f"{job[0]} {shape}: {type(error).__name__}: {error}", file=sys.stderr)
    return pickle.dumps(found)


@dataclasses.dataclass
class Measured:
    """A kernel of an answer: the time of one launch, and the model's input for its launches."""

    id: str
    which: str
    kernel: str
    shape: dict[str, Any]
    ms: float
    launches: list[tuple[Work, Launched]]

    def predicted(self, constants: Constants) -> float:
        """Return the milliseconds of one launch that the model predicts."""
        times = [predict(*launch, H100, constants).ms for launch in self.launches]
        return statistics.mean(times)

    def error(self, constants: Constants) -> float:
        """Return the absolute logarithm of predicted over measured time."""
        return abs(math.log(self.predicted(constants) / self.ms))


def matched(times: dict[str, Any], words: str) -> tuple[list[Measured], list[dict[str, str]]]:
    """Compile the timed answers; return kernels with launches, and those without a prediction."""
    kernels, unknown = [], []
    with tempfile.TemporaryDirectory() as folder:
        jobs = written(Path(folder), words)
        spawn = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(
            mp_context=spawn, max_tasks_per_child=1
        ) as pool:
            made = map(pickle.loads, pool.map(launches_of, jobs))
            launched: dict[str, dict[str, Launches]] = dict(
                zip((job[0] for job in jobs), made, strict=True)
            )
    for row in times["results"]:
        own = launched.get(row["id"], {}).get(f"{json.dumps(row['shape'])} {row['which']}", [])
        for kernel, (often, ms) in row["kernels"].items():
            mine = [what for name, what in own if name == kernel]
            why = next((what for what in mine if isinstance(what, str)), None)
            if why is not None:
                unknown.append({"id": row["id"], "kernel": kernel, "why": why})
            elif mine and len(mine) == often:  # others are PyTorch's, or differ in number
                alike = [what for what in mine if not isinstance(what, str)]
                of = row["id"], row["which"], kernel, row["shape"]
                kernels.append(Measured(*of, ms, alike[:2]))
    return kernels, unknown


def fitted(kernels: Sequence[Measured]) -> Constants:
    """Return constants that minimise the errors, found by coordinate descent."""
    names = [field.name for field in dataclasses.fields(Constants) if field.name != "launch_s"]

    def badness(constants: Constants) -> float:
        errors = [min(_MOST, kernel.error(constants)) for kernel in kernels]
        return statistics.mean(errors) + 0.3 * math.sqrt(statistics.mean(e * e for e in errors))

    best, least = FITTED, badness(FITTED)
    steps = dict.fromkeys(names, _STEP)
    for _ in range(_ROUNDS):
        for name in names:
            for step in (steps[name], -steps[name]):
                moved = getattr(best, name) * math.exp(step)
                other = dataclasses.replace(best, **{name: moved})
                if (bad := badness(other)) < least - 1e-6:
                    best, least, steps[name] = other, bad, steps[name] * 1.3
                    break
            else:
                steps[name] /= 2
        if max(steps.values()) < _LEAST_STEP:
            break
    return dataclasses.replace(best, **{n: float(f"{getattr(best, n):.3g}") for n in names})


def summary(kernels: Sequence[Measured], constants: Constants) -> Iterator[str]:
    """Give a sentence on the model's errors for each half of the answers."""
    for name, half in (("fitted", True), ("held out", False)):
        errors = sorted(k.error(constants) for k in kernels if is_fitted(k.id) is half)
        if errors:
            middle, often = statistics.median(errors), errors[math.ceil(0.9 * len(errors)) - 1]
            yield (
                f"{name}: {len(errors)} kernels, half within {math.expm1(middle):.1%}, nine of ten"
                f" within {math.expm1(often):.1%}"
            )


def fit_all(path: Path, target: Path, words: str) -> None:
    """Fit the constants, print them, and write the record of kernels and predictions."""
    times = record.load(path)
    kernels, unknown = matched(times, words)
    fitting = [kernel for kernel in kernels if is_fitted(kernel.id)]
    constants = fitted(fitting) if fitting else FITTED
    print(constants, *summary(kernels, constants), sep="\n")
    rows = [
        {"id": k.id, "which": k.which, "kernel": k.kernel, "shape": k.shape,
         "measured_ms": float(f"{k.ms:.4g}"),
         "predicted_ms": float(f"{k.predicted(constants):.4g}"),
         "bound": predict(*k.launches[0], H100, constants).bound, "fitted": is_fitted(k.id)}
        for k in kernels
    ]  # fmt: skip
    kept = {name: times[name] for name in times if name != "results"}
    record.save(kept | {"kind": "predictions", "kernels": rows, "unknown": unknown}, target)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predicting", description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    for name, files in (("time", ("file",)), ("fit", ("file", "record"))):
        command = commands.add_parser(name)
        for file in files:
            command.add_argument(file, type=Path)
        command.add_argument("--only", default="", metavar="WORDS")
    options = parser.parse_args(argv)
    if options.command == "time":
        time_all(options.file, options.only)
    else:
        fit_all(options.file, options.record, options.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
