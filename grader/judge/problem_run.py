"""One problem of one submission under test.

A session calls a case, and returns its evidence (`CallEvidence`). Together with what is expected
that is a `Called`, from which a `Finding` is made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from grader.causes.diagnose import Casebook, named_alike
from grader.causes.rules.numbers import rounded
from grader.causes.rules.scaled import of_numbers
from grader.causes.rules.sighting import Result
from grader.causes.state.program import Called, trimmed
from grader.checks import outcome
from grader.checks.correctness import (
    Expected,
    expect,
    find_differences,
    right_without_kernels,
)
from grader.checks.work import count_work, disbelieved
from grader.isolate.evidence import CallEvidence
from grader.isolate.session import Session
from grader.judge import scoring
from grader.judge.awaited import with_awaited
from grader.judge.case import CheckCase
from grader.judge.compile_run import CompileRun
from grader.judge.finding import CaseFindings, unusable
from grader.judge.looks import Looks, Seen
from grader.judge.roundings import hidden_rounding, of_tf32, rounded_output
from grader.judge.sessions import Sessions
from grader.judge.smallest import smaller_case
from grader.source.submission import Source
from grader.spec.cases import Case
from grader.spec.findings import CaseBegins, CauseFound, Event, Evidence, Finding, Phase
from grader.spec.grade_record import Verdict
from grader.spec.inputs import Inputs, case_seed, invalidate, make_inputs
from grader.spec.problem import Problem
from grader.spec.problem_tables import WORK
from grader.spec.protocol import Reply, Status

_ROUNDED = 0.03  # of the norm: no rounding to 16 bits makes a larger error
_FEWEST = 16  # numbers, too many to be the same for other inputs
# How a result that something kept from an earlier call makes wrong is wrong.
_SECOND = "in a second call with other values of the same shape"
_AFTER_OTHERS = "after other calls, and right in a new process"
_NOTHING = Expected({}, {}, {}, "fp32", 1.0)  # of a call that brought no outputs


class ProblemRun:
    """Judges the cases of one problem, and remembers what was seen in earlier ones."""

    def __init__(
        self,
        problem: Problem,
        source: Source,
        seed: str,
        sessions: Sessions,
        *,
        compiles_ahead: bool = False,
        kernels: Path | None = None,
        chips: tuple[int, ...] = (),
        shrinks: int = 0,
        send: Callable[[Event], None] = lambda event: None,
    ) -> None:
        """Judge with the inputs of a seed; for `shrinks` wrong cases, search for a smaller one.

        `compiles_ahead`, `kernels` and `chips` are for `CompileRun`; `send` gets an event before
        each case, and for each chip that is compiled for.
        """
        torch.set_num_threads(1)
        self.problem, self.source, self.seed, self.sessions = problem, source, seed, sessions
        self.calls = 0  # cases in which the submission's code may have run
        self._casebook = Casebook(problem)
        self._of_bridge = Casebook(problem, bridge=True) if problem.bridge else None
        self.compiling = CompileRun(
            *(problem, source, seed, compiles_ahead, kernels, chips),
            tell=lambda text: send(Phase(problem=problem.id, text=text, submission=True)),
        )
        self._looks = Looks(self._casebook)
        self._shrinks, self._send = shrinks, send
        self._raised: set[tuple[str, int]] = set()  # errors of supported calls, and their lines
        self._overwritten: str | None = None  # what a call wrote to and may not
        self._right: set[bytes] = set()  # digests of outputs
        self._kept: dict[str, bool] = {}  # by check: whether a wrong call is right without others

    def judge(self, at: CheckCase) -> Finding:
        """Call the submission; its outputs must be the reference's, or the call be refused.

        A check that `compiles` compiles the kernels, or launches them on a GPU. A file that cannot
        run is reported once.
        """
        if self.source.verdict is not None:
            self.calls += 1
            return unusable(self.source, again=self.calls > 1)
        session = self._begin(self.sessions.of(at), *at.place)
        earlier, self.calls = self.calls, self.calls + 1
        at = at.on_machine() if session.machine else at
        say = CaseFindings(at, self.source, self.seed, self.compiling.on_machine)
        if at.check.compiles:
            finding = self.compiling.judge(session, at, say)
        elif at.case.invalid is not None:
            finding = self._judge_refusal(session, at, say)
        else:
            finding = self._judge_results(session, at, say)
        after_calls = finding.verdict is Verdict.INTERNAL and earlier > 0
        return finding.model_copy(update={"after_calls": after_calls})

    @property
    def may_have_run(self) -> bool:
        """Whether code of the submission may have run: in a call, or as a worker imported it."""
        return self.calls > 0 or self.sessions.has_started

    def _begin(self, session: Session, check: str, index: int) -> Session:
        """Say that the submission runs from now on: its import may end or stop this process."""
        self._send(CaseBegins(check=check, index=index))
        session.budget.check = check
        if session.budget.used_up() is None:
            session.start()
        return session

    def causes(self) -> list[CauseFound]:
        """Return the causes of wrong results, see `Casebook.settle`."""
        named = self._casebook.settle(self.source)
        of_bridge = self._of_bridge.settle(self.source) if self._of_bridge else []
        found = [*named_alike(of_bridge, named, self.source), *named]
        return [with_awaited(cause, self.problem, self.source) for cause in found]

    def _casebook_of(self, at: CheckCase) -> Casebook:
        return self._of_bridge if at.check.bridge and self._of_bridge else self._casebook

    # -- a case -----------------------------------------------------------------------------------

    def _judge_refusal(self, session: Session, at: CheckCase, say: CaseFindings) -> Finding:
        """Judge a call to be refused, and whether earlier cases wrote to the caller's tensors."""
        if self._overwritten is not None:
            return say.overwritten(self._overwritten)
        evidence = session.call(at.case, invalidate(at.inputs(self.seed), at.case.mutate), ())
        return say.refusal(evidence, self._raised)

    def _judge_results(self, session: Session, at: CheckCase, say: CaseFindings) -> Finding:
        """Judge the first case of a check in two calls, the second one with other values.

        A result kept from the first call is wrong in the second. In between, a call with the second
        values has kernels that do nothing: they do not compute what is right then.
        """
        earlier, idle = None, None
        for number in range(2 if at.index == 0 and at.check.judges == "numbers" else 1):
            inputs = at.inputs(self.seed, number)
            if number and at.problem.uses_triton:
                idle = session.call(at.case, inputs, at.names, idle=True)
            called = self._call(session, at, inputs)
            finding = self._judge_call(session, at, called, say, number)
            if finding is None and idle is not None and earlier is not None and idle.outputs:
                names = right_without_kernels(at.judged, idle.outputs, called.expected, earlier)
                finding = say.made_elsewhere(names) if names else None
            if finding is not None:
                return finding
            earlier = called.expected
        return Finding(verdict=Verdict.PASS)

    def _call(self, session: Session, at: CheckCase, inputs: Inputs) -> Called:
        """Call the submission, and compare what it returned with the reference.

        What is expected is computed while the worker computes.
        """
        self.compiling.asked()
        case, names = at.case, at.names
        is_made = session.unusable is None and session.budget.used_up() is None
        waiting = _beside().submit(expect, at.problem, case, inputs, names) if is_made else None
        evidence = session.call(case, inputs, names, idle=at.check.judges == "launch")
        failure = outcome.of_call(evidence, at.problem.signature)
        expected = _NOTHING if failure or waiting is None else waiting.result()
        wrong = [] if failure else find_differences(evidence.outputs, expected)
        where = (at.problem, self.source, at.check, at.index + 1, case, self.seed)
        return Called(*where, inputs, expected, evidence, wrong, failure)

    def _judge_call(
        self, session: Session, at: CheckCase, called: Called, say: CaseFindings, number: int
    ) -> Finding | None:
        """Return the finding of the call of this number; None where all is right."""
        evidence, reply = called.evidence, called.evidence.result
        if called.failure is not None:
            if isinstance(reply, Reply):
                self._raised.add((reply.error_type, reply.line))
            if at.check.bridge or not self._is_fault_seen(session, called):
                self._casebook_of(at).add_failed(at.place, at.case)
            return say.failed(called.failure, evidence)
        assert isinstance(reply, Reply)
        if at.problem.uses_triton and not reply.launches:
            return say.not_launched()
        if at.check.judges == "launch":
            return None
        if at.check.judges == "products":
            return say.products(reply.multiply_adds, self._products_of_all(session, called))
        self.compiling.came_back(session, at, evidence)
        if evidence.overwritten is not None:
            self._overwritten = self._overwritten or f"the input {evidence.overwritten}"
        right = evidence.outputs.keys() - {d.name for d in called.differences}
        judged = [d for d in called.differences if d.name in at.judged]
        if at.check.judges == "stores":
            judged = [d for d in judged if bool(evidence.unwritten[d.name].any())]
        if judged and not session.machine and of_tf32(called, judged):
            return say.rounded(tuple(judged))
        self._look_at_out(session, at, called)
        is_right = not called.differences  # an output that is not judged here may be wrong
        called = dataclasses.replace(called, differences=judged)
        try:
            seen = self._learn(session, at, called, number, is_right=is_right)
        except Exception as error:  # of the judge's own: what is wrong is known by now
            seen = Seen(fault=f"{type(error).__name__}: {error}")
        self._right.update(_digest(evidence.outputs[n]) for n in right if _varies(evidence, n))
        if judged:
            return self._judge_wrong(session, called, say, seen, number)
        remark = outcome.of_remark(evidence, at.judged)
        if remark is not None:
            self._looks.at_race(session, called, remark)
            return say.failed(remark, evidence)
        sums = session.machine and at.case.exact and at.case.dtype != "fp32" and not number
        found = hidden_rounding(session, called) if sums else None
        found = found or rounded_output(called)
        if found is None:
            return None
        self._casebook_of(at).add_raced(at.place, rounded(at.case, found))
        return say.rounds(found)

    def _products_of_all(self, session: Session, called: Called) -> int:
        """Return the multiply-adds of the call without is_causal, 0 where it does not return."""
        options = tuple((n, v) for n, v in called.case.options if n != "is_causal")
        case = dataclasses.replace(called.case, options=options)
        reply = session.call(case, called.inputs, tuple(called.evidence.outputs)).result
        return reply.multiply_adds if isinstance(reply, Reply) else 0

    def _is_fault_seen(self, session: Session, called: Called) -> bool:
        """Find why a kernel accessed memory outside of its tensors; return whether it was seen."""
        reply = called.evidence.result
        if not isinstance(reply, Reply) or reply.status is not Status.OUT_OF_BOUNDS:
            return False
        try:
            of = outcome.pointer_of(reply)
            return self._looks.at_fault(session, called, reply.error_type, reply.line, of)
        except Exception:  # of the judge's own: the fault itself is known
            return False

    def _judge_wrong(
        self, session: Session, called: Called, say: CaseFindings, seen: Seen, number: int
    ) -> Finding:
        """Call as often as it takes to say what is wrong about the numbers."""
        outputs = called.evidence.outputs
        kept = same = _digest(outputs[called.differences[0].name]) in self._right
        id, known = called.check.id, self._kept
        may_keep = id not in known and (any(known.values()) or not known)
        # It may be right without earlier calls, which the first of a case has behind it, too.
        if not kept and (number or (session.machine and self.calls > 1 and may_keep)):
            session.close()
            kept = known[id] = _is_right_again(session, called)
        nan = any(bool(outputs[d.name].isnan().any()) for d in called.differences)
        bare = nan and session.machine and _is_right_again(session, called, lenient=True)
        if bare:  # then undefined lanes make the state wrong, and not its own lines
            self._casebook_of(say.at).add_undefined(say.at.place)
            seen = dataclasses.replace(seen, trace=None)
        small = None
        if not kept and self._shrinks and session.device == "cpu" and called.case.layout != "far":
            self._shrinks -= 1
            small = smaller_case(session, called)
        how = _SECOND if number or same else _AFTER_OTHERS
        return say.wrong(called, seen, kept=how if kept else "", bare=bare, small=small)

    def _look_at_out(self, session: Session, at: CheckCase, called: Called) -> None:
        """Note whether a backward pass writes to `out`, which is the caller's by then.

        It does if `out` is right in a call without a backward pass.
        """
        wrong = any(difference.name == "out" for difference in called.differences)
        if "out" in at.judged or not wrong or self._overwritten:
            return
        evidence = session.call(at.case, called.inputs, ("out",))
        if outcome.of_call(evidence, at.problem.signature) is None:
            expected = expect(at.problem, at.case, called.inputs, ("out",))
            if not find_differences(evidence.outputs, expected):
                self._overwritten = "out, in the backward pass,"

    def _learn(
        self, session: Session, at: CheckCase, called: Called, number: int, *, is_right: bool
    ) -> Seen:
        """Add a result to the casebook; where it is wrong, watch what the kernels do."""
        casebook, case, names = self._casebook_of(at), at.case, at.names

        def again():
            made = at.inputs(self.seed, number)
            return made, lambda: expect(at.problem, case, made, names)

        if is_right:
            casebook.add_right(case, again)
        if not called.differences:
            return Seen()
        wrong = called.outputs
        casebook.add_wrong(at.place, wrong, again)
        if at.check.bridge and case.rows is None:
            return Seen()
        result, is_own = _result(called), not at.check.bridge  # what is seen is of that entry
        seen = self._looks.again(session, called, result) if is_own and not number else Seen()
        casebook.add_numbers(at.place, functools.partial(of_numbers, wrong, result.wrong))
        return seen

    # -- work -------------------------------------------------------------------------------------

    def count_work(self) -> Evidence:
        """Return the figures of the call in which the submission did most beyond what it needed."""
        session = self._begin(self.sessions.open(self.problem), WORK, 0)
        counted = []
        try:
            for index, case in enumerate(self.problem.work_cases(self.seed)):
                found = self._work_of(session, index, case)
                if found.figures is None:
                    return found
                counted.append(found)
        except Exception as error:  # the judge's own: the cases are reported all the same
            reason = f"the judge failed: {type(error).__name__}: {error}"[:600]
            return Evidence(verdict=Verdict.INTERNAL, reason=reason)
        return min(counted, key=lambda found: scoring.work_fraction(found.figures))

    def _work_of(self, session: Session, index: int, case: Case) -> Evidence:
        problem, names = self.problem, self.problem.outputs
        assert problem.counted is not None
        inputs = make_inputs(problem, case, case_seed(self.seed, problem.id, WORK, index))
        where = (problem, self.source, problem.counted, index + 1, case, self.seed)
        called = Called(*where, inputs, expect(problem, case, inputs, names), CallEvidence(), [])
        evidence = self._looks.watched(session, called)
        failure, reply = outcome.of_call(evidence, problem.signature), evidence.result
        if isinstance(reply, Reply) and reply.status is Status.TRACE_FAILED:
            reason = f"the judge's tracer failed: {reply.text}"[:600]
            return Evidence(verdict=Verdict.INTERNAL, reason=reason)
        if failure is not None:
            failure = outcome.of_choice(failure, reply, ran=bool(self.compiling.on_machine))
            return Evidence(verdict=failure.verdict, reason=f"{failure.headline} ({case})")
        if find_differences(evidence.outputs, called.expected):
            return Evidence(verdict=Verdict.FAIL, reason=f"the result is wrong ({case})")
        if evidence.trace is None:
            return Evidence(verdict=Verdict.NOT_MEASURED, reason="nothing was seen")
        reason = disbelieved(problem, case, evidence.trace)
        if reason is not None:
            return Evidence(verdict=Verdict.FAIL, reason=reason)
        figures = count_work(problem, case, evidence.trace)
        with contextlib.suppress(Exception):  # the judge's own: the count is right all the same
            if evidence.rounds is not None:
                trace = trimmed(called.report(evidence).record)
                figures = figures.model_copy(update={"trace": trace})
        return Evidence(figures=figures)


@functools.cache
def _beside() -> ThreadPoolExecutor:
    """Return the thread in which what is expected is computed."""
    return ThreadPoolExecutor(1, "expected")


def _is_right_again(session: Session, called: Called, *, lenient: bool = False) -> bool:
    names = tuple(called.evidence.outputs)
    evidence = session.call(called.case, called.inputs, names, lenient=lenient)
    if outcome.of_call(evidence, called.problem.signature) is not None:
        return False
    return not find_differences(evidence.outputs, called.expected)


def _result(called: Called) -> Result:
    got, evidence, truth = called.evidence.outputs, called.evidence, called.expected.truth
    wrong = tuple(difference.name for difference in called.differences)
    errors = {name: (got[name].double() - truth[name]).norm() for name in wrong}
    close = all(error <= _ROUNDED * truth[name].norm() for name, error in errors.items())
    nan = {name: got[name].isnan() for name in wrong}
    before = {name: evidence.unwritten[name] | evidence.left_over[name] for name in wrong}
    computed = any(bool((nan[name] & ~before[name]).any()) for name in wrong)
    first, any_nan = called.differences[0].place, any(bool(found.any()) for found in nan.values())
    left_over = any(bool(evidence.left_over[name].any()) for name in wrong)
    place = first[:3] if len(first) > 2 else None
    return Result(wrong, any_nan, close, place, computed, left_over)


def _varies(evidence: CallEvidence, name: str) -> bool:
    """Whether an output identifies its inputs: one number everywhere may be right for others."""
    output = evidence.outputs[name]
    return output.numel() >= _FEWEST and bool((output != output.flatten()[0]).any())


def _digest(output: torch.Tensor) -> bytes:
    values = output.cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.blake2b(values.numpy(), digest_size=16).digest()
