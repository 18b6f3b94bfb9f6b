"""Measures the shapes of a problem: checks every contender, then times them in turns."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks import shapes as sh
from benchmarks.contenders import (
    NAIVE,
    OURS,
    PEER,
    Contender,
    Missing,
    build,
    is_fatal,
    reason,
)
from benchmarks.inputs import CheckFailed, check, make_inputs, oracle
from benchmarks.peers import Unavailable
from benchmarks.timing import (
    Clock,
    Entrant,
    Traffic,
    ceilings,
    extra_bytes,
    interleave,
    spread,
)

_LEAVES = ("q", "k", "v", "sink_logits")
# The share of the GPU's memory that naive attention may use.
_NAIVE_SHARE = 0.8


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to measure; `seconds` is for one pass of one shape."""

    device: str = "cuda"
    seconds: float = 2.0
    rounds: int = 41
    sets: int = 3
    seed: int = 2026
    compiled: bool = True
    wanted: frozenset[str] | None = None


class Runner:
    """Runs one pass of a contender on any of several input sets."""

    def __init__(self, problem: str, contender: Contender, inputs: list[dict], which: str) -> None:
        self.contender = contender
        self.which = which
        self.sets = [dict(contender.prepare(x)) for x in inputs[: contender.max_sets]]
        self._trained = problem in sh.TRAINED
        self._graphs: list[torch.Tensor] = []
        if self._trained:
            for tensors in self.sets:
                for name in set(_LEAVES) & set(tensors):
                    tensors[name] = tensors[name].detach().requires_grad_()
        if which == sh.BACKWARD:
            self._graphs = [contender.call(tensors) for tensors in self.sets]

    def __call__(self, number: int) -> dict[str, torch.Tensor]:
        """Run the pass; return its results, by name, in the contender's own layout."""
        tensors = self.sets[number]
        if self.which == sh.BACKWARD:
            return self._gradients(self._graphs[number], tensors, retain_graph=True)
        returned = self.contender.call(tensors)
        if not isinstance(returned, tuple):
            returned = (returned,)
        made = dict(zip(self.contender.returns, returned, strict=False))
        if self.which == sh.BOTH:
            made |= self._gradients(made["out"], tensors, retain_graph=False)
        return made

    def _gradients(
        self, out: torch.Tensor, tensors: dict[str, torch.Tensor], *, retain_graph: bool
    ) -> dict[str, torch.Tensor]:
        names = [name for name in _LEAVES if name in tensors]
        leaves = [tensors[name] for name in names]
        found = torch.autograd.grad(out, leaves, tensors["dout"], retain_graph=retain_graph)
        return {f"d{name}": gradient for name, gradient in zip(names, found, strict=True)}

    def check(self, expected: dict[str, torch.Tensor]) -> dict[str, Any]:
        """Return the errors on the first input set; raise CheckFailed if they are too large."""
        contender = self.contender
        made = {name: tensor.detach() for name, tensor in self(0).items()}
        if contender.returns != ("y",):
            made = {n: contender.restore(t) if t.ndim >= 3 and n != "lse" else t
                    for n, t in made.items()}  # fmt: skip
        dtype = contender.shape.dtype
        return check(made, expected, dtype, contender.tolerance_factor)


def measure(
    problem: str,
    shape: sh.Shape | sh.Matrix,
    settings: Settings,
    clock: Clock,
    ceiling: dict[str, float],
) -> Iterator[dict[str, Any]]:
    """Yield the result of each pass of a shape, as plain data for the record."""
    inputs = [
        make_inputs(problem, shape, settings.seed + number, settings.device)
        for number in range(settings.sets)
    ]
    contenders = build(
        problem, shape, settings.device, compiled=settings.compiled, wanted=settings.wanted
    )
    oracles: dict[tuple, dict[str, torch.Tensor]] = {}

    def expected(contender: Contender) -> dict[str, torch.Tensor]:
        own = contender.shape
        key = (getattr(own, "num_sink_tokens", 0), own.sink_logits)
        if key not in oracles:
            oracles[key] = oracle(problem, own, inputs[0])
        return oracles[key]

    failed: dict[str, str] = {}
    for which in sh.passes(problem):
        started = time.perf_counter()
        rows = _one_pass(problem, which, contenders, inputs, expected, failed, settings, clock)
        yield _result(problem, shape, which, rows, ceiling) | {
            "seconds": round(time.perf_counter() - started, 2)
        }
        _forget(settings.device)


def _one_pass(
    problem: str,
    which: str,
    contenders: list[Contender | Missing],
    inputs: list[dict],
    expected: Callable[[Contender], dict[str, torch.Tensor]],
    failed: dict[str, str],
    settings: Settings,
    clock: Clock,
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    entrants: dict[str, Entrant] = {}
    claimed = 0.0
    for contender in contenders:
        row: dict[str, Any] = {
            "id": contender.id, "label": contender.label, "role": contender.role
        }  # fmt: skip
        rows.append(row)
        if isinstance(contender, Missing):
            row |= {"status": "not available", "reason": contender.reason}
            continue
        if contender.id in failed:
            row |= {"status": "not available", "reason": failed[contender.id]}
            continue
        runner = None
        try:
            needed = contender.needs_bytes[which != sh.FORWARD]
            _require_memory(needed, claimed, settings.device)
            claimed += needed if which == sh.BACKWARD else 0.0
            runner = Runner(problem, contender, inputs, which)
            row["errors"] = runner.check(expected(contender))
            for number in range(1, len(runner.sets)):
                runner(number)
            if contender.role == NAIVE:
                with Traffic() as traffic:
                    runner(0)
                row["moved_bytes"] = traffic.moved
            if clock.is_cuda:
                row["extra_bytes"] = extra_bytes(lambda r=runner: r(0), lambda d: list(d.values()))
            entrants[contender.id] = Entrant(runner, len(runner.sets))
        except Exception as error:
            if is_fatal(error):
                raise
            is_wrong = isinstance(error, CheckFailed)
            row |= {"status": "wrong" if is_wrong else "not available", "reason": reason(error)}
            if not is_wrong:
                failed[contender.id] = reason(error)
        if contender.id not in entrants:
            del runner
            _forget(settings.device)
    interleave(
        list(entrants.values()),
        clock,
        seconds=settings.seconds,
        rounds=settings.rounds,
        rng=random.Random(settings.seed),
    )
    for row in rows:
        entrant = entrants.get(row["id"])
        if entrant is None:
            continue
        if entrant.fault is not None or not entrant.samples_ms:
            fault = entrant.fault or RuntimeError("no sample was taken")
            row |= {"status": "not available", "reason": reason(fault)}
        else:
            row |= {"status": "timed"} | spread(entrant.samples_ms)
    return rows


def _require_memory(needed: float, claimed: float, device: str) -> None:
    total = 8 * 2**30
    if device.startswith("cuda"):
        total = torch.cuda.get_device_properties(0).total_memory
    if needed + claimed > _NAIVE_SHARE * total:
        raise Unavailable(f"needs about {needed / 2**30:.0f} GiB of memory")


def _forget(device: str) -> None:
    gc.collect()
    if device.startswith("cuda"):
        with contextlib.suppress(Exception):
            torch.cuda.empty_cache()


def _result(
    problem: str,
    shape: sh.Shape | sh.Matrix,
    which: str,
    rows: list[dict[str, Any]],
    ceiling: dict[str, float],
) -> dict[str, Any]:
    """Return the result of a pass; add rate, fraction of the ceiling, and ratio to ours to rows."""
    unit, work = shape.work(which)
    top = ceiling["matmul_tflops" if unit == "TFLOP/s" else "copy_gbps"]
    timed = {row["id"]: row for row in rows if row["status"] == "timed"}
    ours = next((row for row in timed.values() if row["role"] == OURS), None)
    for row in timed.values():
        # The work of the full shape; our own kernel without sinks does slightly less.
        row["rate"] = work / row["median_ms"] * 1e3
        row["fraction"] = row["rate"] / top
        if ours is not None:
            row["ratio"] = row["median_ms"] / ours["median_ms"]
    peers = [row for row in timed.values() if row["role"] == PEER]
    best = min(peers, key=lambda row: row["median_ms"], default=None)
    targets = {}
    if which in sh.TARGET_PASSES.get(problem, (sh.FORWARD,)) and ours is not None:
        for name, least in shape.targets.items():
            ratio = ours["fraction"] if name == "copy" else timed.get(name, {}).get("ratio")
            reached = None if ratio is None else ratio >= least
            targets[name] = {"least": least, "ratio": ratio, "reached": reached}
    return {
        "problem": problem,
        "shape": shape.facts(),
        "pass": which,
        "unit": unit,
        "ceilings": ceiling,
        "contenders": rows,
        "best_peer": best["id"] if best else None,
        "ratio": best["ratio"] if best and ours else None,
        "targets": targets,
    }


def run_problem(
    problem: str,
    wanted: list[sh.Shape | sh.Matrix],
    settings: Settings,
    clock: Clock,
    deadline: Callable[[float], bool],
    say: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """Yield results of a problem's shapes until `deadline(seconds for the next shape)` is true."""
    if not wanted:
        return
    ceiling = ceilings(clock, settings.device)
    longest = 0.0
    for shape in wanted:
        if deadline(longest):
            say(f"{problem} {shape.label}: not run, the budget ends")
            return
        started = time.perf_counter()
        try:
            yield from measure(problem, shape, settings, clock, ceiling)
        except Exception as error:
            say(f"{problem} {shape.label}: {reason(error)}")
            if is_fatal(error):
                raise
        _forget(settings.device)
        longest = max(longest, time.perf_counter() - started)
