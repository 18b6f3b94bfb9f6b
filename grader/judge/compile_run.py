"""Judges whether a file's kernels compile, and whether a GPU runs the kernels that were judged.

The machine must judge what a GPU runs: a kernel that runs only on the machine would be judged in
place of another one, whether a file means it or not.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from grader.base.chip_name import chip_name
from grader.checks import outcome
from grader.checks.correctness import expect, find_differences
from grader.checks.translations import translation
from grader.isolate import predicted
from grader.isolate.compiled import Compiled, call_of, compile_calls, not_compiled, unavailable
from grader.isolate.evidence import CallEvidence
from grader.isolate.session import Session
from grader.judge.case import CheckCase
from grader.judge.finding import CaseFindings
from grader.source.submission import Source
from grader.spec.cases import Case
from grader.spec.findings import Finding
from grader.spec.grade_record import Message, Verdict
from grader.spec.kernel_report import Compilation
from grader.spec.problem import Problem
from grader.spec.protocol import MAX_KERNELS, Ended, Reply, Status, failed

_MOST_BYTES = 64 * 2**20  # of the inputs of the call whose launches are predicted
_MOST = 8  # kernels that are compiled or called in another case than the one that compiles

Ran = tuple[int, list[CheckCase]]  # the line of a kernel, and the cases that ran it


class CompileRun:
    """The kernels of one submission: which ran, in which cases, and how their compilation ended."""

    def __init__(
        self,
        problem: Problem,
        source: Source,
        seed: str,
        ahead: bool,
        kernels: Path | None,
        chips: tuple[int, ...] = (),
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Begin to compile `ahead` of the check, when the first call has returned a result.

        The folder `kernels` keeps what is compiled for the next run. The check compiles for `chips`
        too, which decides nothing, and reports each to `tell`.
        """
        self._chips, self._tell = chips, tell
        self.on_machine: dict[int, list[CheckCase]] = {}  # by line
        self._on_gpu: set[int] = set()
        self._problem, self._source, self._seed = problem, source, seed
        self._ahead, self._kernels = ahead, kernels
        self._begun: dict[str, Future[list[Compiled]]] = {}  # by call
        self._asked = False
        self._predicted: Case | None = None

    def asked(self) -> None:
        """Note that a case asks for a result."""
        self._asked = True

    def came_back(self, session: Session, at: CheckCase, evidence: CallEvidence) -> None:
        """Note the kernels of a call, and begin to compile for GPUs that are not there."""
        if self._ahead and not self._begun and session.machine and not at.check.bridge:
            self._compile_check()
        if not at.check.bridge:
            self.note(at, evidence, machine=session.machine)
            self._compile_more()

    def note(self, at: CheckCase, evidence: CallEvidence, *, machine: bool) -> None:
        """Note the kernels of a call; the second call of a case adds nothing."""
        for line in _lines_of(evidence):
            cases = self.on_machine.setdefault(line, []) if machine else []
            if not machine:
                self._on_gpu.add(line)
            elif not cases or cases[-1].place != at.place:
                cases.append(at)

    def _compile_check(self) -> None:
        checks = (c for c in self._problem.checks if c.compiles and not unavailable())
        for check in checks:
            for case in self._problem.cases(check, self._seed).values():
                self._begin(case)

    def _compile_more(self) -> None:
        """Begin to compile a kernel that has run and that no compiled call launches.

        One call at a time, and none after a refusal, which decides the check.
        """
        begun = list(self._begun.values())
        if not self._ahead or not 0 < len(begun) <= _MOST:
            return
        if not all(future.done() and future.exception() is None for future in begun):
            return
        compiled = [chip for future in begun for chip in future.result()]
        left = self.waiting(_lines_compiled(compiled))
        if left and not any(chip.refused for chip in compiled):
            self._begin(self._first(left[0][1]).case)

    def _begin(self, case: Case) -> Future[list[Compiled]]:
        """Begin to compile what a case launches, or return what has begun."""
        call = call_of(self._problem, case, self._problem.outputs)
        if repr(call) not in self._begun:
            pool = ThreadPoolExecutor(1)
            run = functools.partial(compile_calls, kernels=self._kernels)
            if not self._begun:  # the first is that of the check
                self._predicted = predicted.like(
                    case, predicted.timed_case(self._problem, _MOST_BYTES)
                )
                shape = call_of(self._problem, self._predicted, self._problem.outputs)
                run = functools.partial(run, predicts=shape)
            self._begun[repr(call)] = pool.submit(run, self._source, self._problem, [call])
            pool.shutdown(wait=False)
        return self._begun[repr(call)]

    def _first(self, cases: list[CheckCase]) -> CheckCase:
        """Return the first of the cases that ran a kernel, if possible one that is compiled."""
        outputs = self._problem.outputs
        begun = (
            at for at in cases if repr(call_of(self._problem, at.case, outputs)) in self._begun
        )
        return next(begun, cases[0])

    def waiting(self, lines: set[int]) -> list[Ran]:
        """Return the kernels that ran on the machine, but for those in `lines` or on a GPU.

        No kernels where a file may contain anything.
        """
        left = self.on_machine.keys() - lines - self._on_gpu if self._source.policy else ()
        return [(line, self.on_machine[line]) for line in sorted(left)]

    # -- the check --------------------------------------------------------------------------------

    def judge(self, session: Session, at: CheckCase, say: CaseFindings) -> Finding:
        """Return the finding of the check, with the kernels on other chips that were asked for."""
        finding = self._judge(session, at, say)
        if finding.verdict is Verdict.SKIPPED:
            return finding
        more = self._on_request(at.case, say)
        return finding.model_copy(update={"kernels": (*finding.kernels, *more)})

    def _judge(self, session: Session, at: CheckCase, say: CaseFindings) -> Finding:
        """Compile what this case launches, and kernels that other cases alone have launched.

        On a GPU calls compile; another check judges the numbers of this case.
        """
        compiled: list[Compiled] = []
        if session.unusable is not None or not session.machine:
            evidence = session.call(at.case, at.inputs(self._seed), self._problem.outputs)
            failure = outcome.of_call(evidence, self._problem.signature)
            finding = say.failed(failure, evidence) if failure is not None else None
            lines = _lines_of(evidence)
        elif (reason := unavailable()) is not None:
            message = Message(headline=f"not measured: {reason}")
            return Finding(verdict=Verdict.NOT_MEASURED, message=message)
        elif self._ahead and self._asked and not self._begun:
            message = Message(headline="not run: no call came back with a result", not_run=True)
            return Finding(verdict=Verdict.SKIPPED, message=message)
        else:
            compiled += self._begin(at.case).result()
            finding, lines = self._not_compiled(compiled, say), _lines_compiled(compiled)
        for _ in range(_MOST):
            left = self.waiting(lines)
            if finding is not None or not left:
                break
            if session.machine:
                finding = self._compile_there(left[0], compiled, say)
                lines |= _lines_compiled(compiled)
            else:
                finding = self._judge_there(session, left[0], lines, say)
                lines.add(left[0][0])  # what runs in its place is judged now
        finding = finding or self._too_many(lines, say) or Finding(verdict=Verdict.PASS)
        kernels = (kernel for chip in compiled for kernel in chip.kernels)
        found: dict[str, object] = {"kernels": tuple(dict.fromkeys(kernels))}
        if self._predicted is not None and (first := next(iter(self._begun.values()), None)):
            found["predicted"] = predicted.predicted_call(self._predicted, first.result())
        return finding.model_copy(update=found)

    def _on_request(self, case: Case, say: CaseFindings) -> list[Compilation]:
        """Compile a case for the chips that were asked for; say of each that fails why."""
        found: list[Compilation] = []
        for chip in compile_calls(
            self._source,
            self._problem,
            [call_of(self._problem, case, self._problem.outputs)],
            capabilities=self._chips,
            kernels=self._kernels,
            begins=lambda chip: self._tell(f"compiling for {chip_name(chip)}"),
        ):
            found += chip.kernels
            failed = None if chip.refused else self._not_compiled([chip], say)
            if failed is not None and failed.message is not None:
                said = failed.message
                found.append(not_compiled(chip.capability, said.headline, said.line or 0))
        return found

    def _compile_there(
        self, ran: Ran, compiled: list[Compiled], say: CaseFindings
    ) -> Finding | None:
        """Compile a case that ran this kernel; add the results to `compiled`."""
        line, cases = ran
        case = self._first(cases).case
        more = self._begin(case).result()
        finding = self._not_compiled(more, say)
        if finding is None and line not in _lines_compiled(more):
            finding = _never_on_a_gpu(line, case, say)
        compiled += more
        return finding

    def _not_compiled(self, compiled: list[Compiled], say: CaseFindings) -> Finding | None:
        """Say what a compiler refused, or how a call ended; None where all is well."""
        for chip in compiled:
            if not chip.launches and not any(map(failed, chip.results)):
                headline = "no Triton kernel was launched when it was compiled for a GPU"
                help = "launch the same kernels with and without a GPU"
                return say.of(Verdict.FAIL, headline, help=help)
            name = f"does not compile for compute capability {chip_name(chip.capability)}"
            for kernel in chip.refused:
                refusal = kernel.kernel.refusal
                assert refusal is not None
                headline = f"{name}: {refusal.text}"
                help = translation(f"{refusal.error_type}: {refusal.text}")
                return say.of(Verdict.FAIL, headline, line=refusal.line, help=help)
            for result in chip.results:
                failure = outcome.of_result(result, self._problem.signature, outcome.COMPILATION)
                values = chip.launches and _is_of_values(result, self._source)
                if failure is not None and not values:
                    evidence = CallEvidence(result=result, output=chip.output)
                    return say.failed(failure, evidence)
        return None

    def _judge_there(
        self, session: Session, ran: Ran, lines: set[int], say: CaseFindings
    ) -> Finding | None:
        """Judge cases on the GPU until one runs this kernel; add what runs to `lines`."""
        line, cases = ran
        for at in cases:
            inputs = at.inputs(self._seed)
            evidence = session.call(at.case, inputs, at.names)
            failure = outcome.of_call(evidence, at.problem.signature)
            if failure is not None:
                return say.failed(failure, evidence)
            launched = _lines_of(evidence)
            if not launched:
                return _never_on_a_gpu(line, at.case, say)
            lines |= launched
            if line in launched:
                return None
            expected = expect(at.problem, at.case, inputs, at.names)
            for shown in find_differences(evidence.outputs, expected):
                headline = "on the GPU another kernel runs than without one, and"
                headline += f" {shown.name} is wrong; {at.case}"
                shows = {"first": shown.first, "worst": shown.worst, "extent": shown.extent}
                return say.of(Verdict.FAIL, headline, line=line, **shows)
        return None

    def _too_many(self, lines: set[int], say: CaseFindings) -> Finding | None:
        """Say that more kernels are left than are judged one by one."""
        if not self.waiting(lines) and len(self.on_machine) < MAX_KERNELS:
            return None
        headline = f"too many kernels: fewer than {MAX_KERNELS} may run in all cases, and {_MOST}"
        headline += " at most that the compiled case does not launch"
        return say.of(Verdict.FAIL, headline, help="let constants tell kernels apart")


def _never_on_a_gpu(line: int, case: Case, say: CaseFindings) -> Finding:
    headline = "a kernel runs without a GPU and is not launched on one: another"
    headline += f" runs there, or none; {case}"
    help = "launch the same kernels with and without a GPU: they are judged there"
    return say.of(Verdict.FAIL, headline, line=line, help=help)


def _lines_of(evidence: CallEvidence) -> set[int]:
    """Return the lines of the kernels that a call launched."""
    return set(evidence.result.kernels) if isinstance(evidence.result, Reply) else set()


def _lines_compiled(compiled: Iterable[Compiled]) -> set[int]:
    """Return the lines of the kernels that were compiled, for any chip."""
    return {kernel.kernel.line for chip in compiled for kernel in chip.kernels}


def _is_of_values(result: Reply | Ended, source: Source) -> bool:
    """Whether the file itself ended its call, by an `assert` or a `raise` of its own.

    Kernels that are only compiled store nothing, and a file may check its outputs for NaN. A kernel
    that it would have launched after that is compiled in another case, in which it ran.
    """
    if not isinstance(result, Reply) or result.status != Status.EXCEPTION:
        return False
    nodes = ast.walk(source.tree) if source.tree else ()
    ends = (n for n in nodes if isinstance(n, (ast.Assert, ast.Raise)))
    return any(n.lineno <= result.line <= (n.end_lineno or n.lineno) for n in ends)
