"""The tile machine beside Triton's interpreter: `python -m tests.machine_compare p04 p06`.

Calls all cases of right and wrong submissions on both, and compares what comes back: the same but
for the order of sums, the same verdict, or a difference, which is printed. With `--time` each
submission is called twice over in one worker: cold, then warm, in CPU seconds of the worker.
With `--trace` what is compared is the trace of a case of each check: arrays and counters.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from triton import compiler
from triton.runtime import driver

from grader.checks.correctness import Difference
from grader.isolate import arena, returned, sandbox
from grader.isolate import session as sessions
from grader.isolate.evidence import CallEvidence
from grader.isolate.placing import place
from grader.isolate.session import Budget, Session
from grader.judge.answers import Answer
from grader.kernel import given
from grader.kernel.compile import asked_gpu
from grader.kernel.compile.chips import CHIPS
from grader.kernel.machine.engine import Engine
from grader.kernel.observers.stepping import Stepping, Steps
from grader.kernel.observers.tracing import Tracing
from grader.kernel.observers.rounds import Rounds, RoundsShape
from grader.kernel.observers.trace import Counter, Trace, TraceShape
from grader.source.submission import Source
from grader.spec.cases import Case
from grader.spec.inputs import Inputs, make_inputs
from grader.spec.problem import Problem, load_problem, problem_ids
from grader.spec.protocol import Reply, Status
from tests import trials
from tests.forked import forked_workers
from tests.harness import SEED, cases_of, whole_answer
from tests.mutants import MUTANTS
from tests.wrong import WRONG

KINDS = ("answers", "unusual", "mutants", "wrong")
EQUAL, ALIKE, SAME, DIFFERENT, UNMODELLED = (
    *("equal", "equal but for rounding", "same verdict", "different", "not modelled"),
)
_ROUNDINGS = {torch.float32: 2.0**-16, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def submissions(kind: str, problem: str) -> dict[str, tuple[str, bool]]:
    """Return the submissions of a kind: id -> source, whether the source policy holds."""
    if kind in ("answers", "unusual"):
        found = trials.right_answers(kind).items()
        return {id: (source, True) for id, (of, source) in found if of == problem}
    if kind == "mutants":
        return {
            mutant.id: (mutant.applied_to(whole_answer(problem)), mutant.keeps_policy)
            for mutant in MUTANTS
            if mutant.problem == problem and mutant.needs_cuda is None
        }
    return {wrong.id: (wrong.source(), True) for wrong in WRONG if wrong.problem == problem}


class Side:
    """Calls of one submission, on the machine or in the interpreter, in a worker of its own."""

    def __init__(self, problem: Problem, source: Source, *, machine: bool) -> None:
        """Start no worker yet: the first call does."""
        self.cpu_s: list[float] = []
        self._problem = problem
        self._source = source
        self._machine = machine
        self._sessions: dict[str, Session] = {}

    def answers(self, places: list[tuple]) -> list[Answer]:
        """Call all cases, and count the CPU seconds of it."""
        made = functools.partial(sandbox.Sandbox, machine=self._machine)
        with mock.patch.object(sessions, "Sandbox", made):
            before = self._used()
            found = [self._answer(*place) for place in places]
            self.cpu_s.append(self._used() - before)
        return found

    def _answer(self, check: object, index: int, case: object) -> Answer:
        view = self._problem.of(check)
        interpret = view.uses_triton and not self._machine
        if view.entry not in self._sessions:
            limits = self._problem.limits.model_copy(update={"total_s": 1e9, "lost_s": 60.0})
            self._sessions[view.entry] = Session(
                view, self._source, device="cpu", machine=machine, budget=Budget(limits)
            )
        session = self._sessions[view.entry]
        return Answer.of(self._problem, SEED, session, check, index, case, 0)

    def _used(self) -> float:
        total = 0.0
        for session in self._sessions.values():
            with contextlib.suppress(AttributeError, OSError, IndexError):
                with open(f"/proc/{session._sandbox.pid}/stat") as file:
                    user, system = file.read().rpartition(")")[2].split()[11:13]
                total += (int(user) + int(system)) * _TICK_S
        return total

    def close(self) -> None:
        """End the workers."""
        for session in self._sessions.values():
            session.close()


@dataclasses.dataclass(frozen=True)
class Compared:
    """One case: how both sides compare, and in words what is different."""

    kind: str
    text: str = ""


def compare(old: Answer, new: Answer) -> Compared:
    """Compare what came back from the interpreter with what the machine made of the same call."""
    was, now = _ended(old), _ended(new)
    if "is not modelled" in now:
        return Compared(UNMODELLED, now)
    if was != now:
        kind = SAME if _verdict(was) == _verdict(now) else DIFFERENT
        return Compared(kind, f"{was or 'came back'} | {now or 'came back'}")
    if was:
        return Compared(EQUAL)
    worst = 0.0
    for name, values in old.evidence.outputs.items():
        worst = max(worst, _distance(values, new.evidence.outputs[name]))
    if worst == 0.0:
        return Compared(EQUAL)
    if worst <= 1.0:
        return Compared(ALIKE)
    before, after = _wrong(old.differences), _wrong(new.differences)
    kind = SAME if before.keys() == after.keys() else DIFFERENT
    return Compared(kind, f"{worst:.3g} roundings apart; out of tolerance: {before} | {after}")


def _wrong(differences: tuple[Difference, ...]) -> dict[str, float]:
    return {d.name: float(f"{d.margin:.3g}") for d in differences}


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return how far two outputs are from each other, 1 for what another order of sums may do."""
    x, y = a.double(), b.double()
    same = (x == y) | (x.isnan() & y.isnan())
    if bool(same.all()):
        return 0.0
    finite = torch.isfinite(x) & torch.isfinite(y)
    if not bool((finite | same).all()):
        return float("inf")
    size = x[finite].abs().max().item() + 1e-30
    return float((x - y)[finite].abs().max()) / (size * _ROUNDINGS.get(a.dtype, 2.0**-16))


def _ended(answer: Answer) -> str:
    """Say how a call ended that brought no outputs, "" of one that did."""
    result = answer.evidence.result
    if isinstance(result, Reply) and result.status == Status.OK:
        return ""
    if isinstance(result, Reply):
        text = f"{result.status.name} line {result.line}: {result.error_type}: {result.text}"
        return text[:300]
    return answer.failure.headline if answer.failure else repr(result)[:200]


def _verdict(ended: str) -> str:
    return ended.partition(":")[0]


def compared(
    problem_id: str, kind: str, id: str, passes: int = 1, most: int = 1000
) -> tuple[list, list, list]:
    """Call all cases of a submission on both sides; return what compares how, and CPU seconds."""
    problem = load_problem(problem_id)
    text, policy = submissions(kind, problem_id)[id]
    source = Source(problem_id, text.encode(), policy=policy)
    checks = [check.id for check in problem.checks if not check.compiles]
    places = [place for place in cases_of(problem, checks) if place[2].invalid is None]
    places = [place for place in places if place[1] < most]
    sides = [Side(problem, source, machine=machine) for machine in (False, True)]
    try:
        made = [[side.answers(places) for _ in range(passes)] for side in sides]
    finally:
        for side in sides:
            side.close()
    found = [
        (place, compare(old, new))
        for place, old, new in zip(places, made[0][0], made[1][0], strict=True)
    ]
    return found, sides[0].cpu_s, sides[1].cpu_s


# -- traces ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def machine_in_process(observe: Callable[[Any], Any]) -> Iterator[None]:
    """Let kernels that are compiled inside run on the machine, in this process."""
    nothing = asked_gpu._nothing
    active = asked_gpu._Driver(CHIPS[80], nothing, nothing)
    with (
        mock.patch.object(compiler, "compile", compiler.compile),
        mock.patch.object(driver, "_active", active),
    ):
        _engine().install()
        with _engine().watched(observe):
            yield


@functools.cache
def _engine() -> Engine:
    """Return the one engine: kernels of `given` stay compiled for it."""
    return Engine("")


def machine_trace(
    problem: Problem,
    source: Source,
    case: Case,
    inputs: Inputs,
    follow: RoundsShape | None = None,
) -> tuple[Trace, Rounds | None]:
    """Return the trace of one call on the machine, in this process, and rounds of a program."""
    names = problem.outputs
    shape = TraceShape.of(case, source.num_lines)
    memory = np.zeros(shape.total_bytes, np.uint8)
    gradients = any(name in problem.gradients for name in names)
    inputs = inputs if gradients else dataclasses.replace(inputs, dout=None)
    layout = place(case, inputs, names)
    given.offer_given()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(arena.Arena(layout.total_bytes)) as shared,
    ):
        path = Path(folder) / problem.file
        path.write_bytes(source.data)
        sessions._write_inputs(shared, layout, inputs)
        tensors = {view.name: view.of(shared.memory) for view in layout.inputs}
        places = shape, memory, str(path), source.data, tensors
        own = np.zeros(follow.total_bytes if follow else 0, np.uint8)
        tracing = Tracing(*places)
        if follow:
            tracing = Stepping(*places, steps=Steps(follow, own, str(path)))
        with machine_in_process(tracing):
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


def interpreted(
    problem: Problem,
    source: Source,
    case: Case,
    inputs: Inputs,
    follow: RoundsShape | None = None,
) -> CallEvidence:
    """Return what was seen of one call in the interpreter, in a worker, with its trace."""
    limits = problem.limits.model_copy(update={"total_s": 1e9, "lost_s": 60.0})
    budget = Budget(limits)
    session = Session(problem, source, device="cpu", machine=True, budget=budget)
    try:
        return session.call(case, inputs, problem.outputs, traced=True, follow=follow)
    finally:
        session.close()


def differing(old: Trace, new: Trace) -> dict[str, str]:
    """Return what differs in two traces by the names of arrays and counters, in words."""
    found = {}
    for counter in Counter:
        if old.count(counter) != new.count(counter):
            found[counter.name] = f"{old.count(counter)} | {new.count(counter)}"
    for name, was in old.arrays.items():
        now = new.arrays[name]
        if name in ("masked_at", "taken_at", "again_at"):  # numbers of lines, in any order
            was, now = (_lines_of(trace, trace.arrays[name]) for trace in (old, new))
        elif name in ("dots", "accesses", "programs"):
            was, now = (np.array(sorted(rows.tolist())) for rows in (was, now))
        elif name == "lines":
            was, now = np.unique(was), np.unique(now)
        if name != "counters" and (was.shape != now.shape or (was != now).any()):
            found[name] = _in_words(was, now)
    return found


def _lines_of(trace: Trace, numbers: np.ndarray) -> np.ndarray:
    return np.append(trace.arrays["lines"], [-1])[numbers.astype(int)]


def _in_words(was: np.ndarray, now: np.ndarray) -> str:
    if was.shape != now.shape or was.size <= 24:
        return f"{was.tolist()} | {now.tolist()}"[:400]
    return f"{int((was != now).sum())} of {was.size} numbers"


def traced(problem_id: str, kind: str, id: str, most: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield what differs in the traces of a submission, for the first case of each check."""
    problem = load_problem(problem_id)
    text, _ = submissions(kind, problem_id)[id]
    source = Source(problem_id, text.encode(), policy=True)
    checks = [c.id for c in problem.checks if not c.compiles and problem.of(c) is problem]
    firsts = [case for _, index, case in cases_of(problem, checks) if not index]
    for number, case in enumerate([case for case in firsts if case.invalid is None][:most]):
        inputs = make_inputs(problem, case, number)
        old = interpreted(problem, source, case, inputs).trace
        new, _ = machine_trace(problem, source, case, inputs)
        yield str(case), {"no trace": ""} if old is None else differing(old, new)


def _compare_traces(arguments: argparse.Namespace) -> int:
    count = 0
    for problem, kind, id in _chosen(arguments):
        for case, found in traced(problem, kind, id, arguments.cases):
            count += bool(found)
            print(f"{id} ({case}): {'different' if found else EQUAL}", flush=True)
            for name, text in found.items():
                print(f"    {name}: {text}")
    return int(count > 0)


def _chosen(arguments: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    for problem in arguments.problems:
        for kind in arguments.kinds:
            for number, id in enumerate(submissions(kind, problem)):
                if number % arguments.share == 0 and (arguments.only or id) in id:
                    yield problem, kind, id


def main() -> int:
    """Compare what the command line asks for; 1 where anything is different."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="*", default=problem_ids())
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["answers", "unusual"])
    parser.add_argument("--only", help="submissions with this in their ids")
    parser.add_argument("--share", type=int, default=1, help="every so many submissions")
    parser.add_argument("--cases", type=int, default=1000, help="so many of each check")
    parser.add_argument(
        "--trace", action="store_true", help="compare traces of the first case of each check"
    )
    parser.add_argument("--time", action="store_true", help="call each twice over")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    totals: dict[tuple[str, str], collections.Counter[str]] = {}
    seconds: dict[tuple[str, str], list[float]] = {}
    with forked_workers():
        if arguments.trace:
            return _compare_traces(arguments)
        for problem, kind, id in _chosen(arguments):
            found, old_s, new_s = compared(
                problem, kind, id, 2 if arguments.time else 1, arguments.cases
            )
            counter = totals.setdefault((problem, kind), collections.Counter())
            counter.update(result.kind for _, result in found)
            spent = seconds.setdefault((problem, kind), [0.0] * 4)
            for index, value in enumerate((old_s[0], old_s[-1], new_s[0], new_s[-1])):
                spent[index] += value
            times = " ".join(f"{value:.2f}" for value in (*old_s, *new_s))
            print(f"{id}: {len(found)} cases, {times} s", flush=True)
            for (check, index, case), result in found:
                if result.text:
                    print(f"    {result.kind}: {check.id} {index} ({case}): {result.text}")
    print("\nproblem kind: cases; CPU s interpreter cold, last; machine cold, last")
    for key, counter in totals.items():
        counts = ", ".join(f"{counter[k]} {k}" for k in (EQUAL, ALIKE, SAME, DIFFERENT, UNMODELLED))
        print(*key, f"{counts};", " ".join(f"{value:.2f}" for value in seconds[key]))
    return int(any(counter[DIFFERENT] for counter in totals.values()))


if __name__ == "__main__":
    sys.exit(main())
