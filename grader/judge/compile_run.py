"""The check that compiles: whether a file's kernels do, and whether they are what a GPU runs."""

from __future__ import annotations

import ast

from grader.checks import outcome
from grader.checks.translations import translation
from grader.isolate.compiled import Compiled, unavailable
from grader.isolate.evidence import CallEvidence
from grader.judge.answers import Answer
from grader.judge.case_report import ToldCase
from grader.judge.launched import MOST, Ran, lines_compiled, lines_of
from grader.source.submission import Source
from grader.spec.cases import Case
from grader.spec.findings import Finding
from grader.spec.grade_record import Message, Verdict
from grader.spec.protocol import MAX_KERNELS, Ended, Reply, Status, failed


class CompileRun(ToldCase):
    """The case of a check that compiles, without a GPU for those that are not there.

    On a GPU the call itself compiles; its numbers are another check's subject.
    """

    def judge(self) -> Finding:
        """Compile what this case launches, and kernels that other cases alone have launched."""
        if self.session.unusable is not None or not self.session.machine:
            return self._judge_call()
        reason = unavailable()
        if reason is not None:
            headline = f"not measured: {reason}"
            return Finding(verdict=Verdict.NOT_MEASURED, message=Message(headline=headline))
        trial = self.trial
        if trial.compiles_ahead and trial.called and not trial.compiling:
            message = Message(headline="not run: no call came back with a result", not_run=True)
            return Finding(verdict=Verdict.SKIPPED, message=message)
        compiled = self._compile(self.case)
        finding = self._not_compiled(compiled)
        for _ in range(MOST):
            left = self._left(lines_compiled(compiled))
            if finding is not None or not left:
                break
            line, runs = left[0]
            first = trial.first(runs)
            more = self._compile(first.case)
            finding = self._not_compiled(more)
            if finding is None and line not in lines_compiled(more):
                finding = self._never_on_a_gpu(line, first.case)
            compiled = [*compiled, *more]
        finding = finding or self._too_many(self._left(lines_compiled(compiled)))
        finding = finding or Finding(verdict=Verdict.PASS)
        kernels = (kernel for chip in compiled for kernel in chip.kernels)
        return finding.model_copy(update={"kernels": tuple(dict.fromkeys(kernels))})

    def _compile(self, case: Case) -> list[Compiled]:
        call = self.trial.call_of(case)
        return self.trial.compile_ahead(self.session.source, call).result()

    def _not_compiled(self, compiled: list[Compiled]) -> Finding | None:
        """Say what a compiler refused, or how a call ended; None where all is well."""
        for chip in compiled:
            if not chip.launches and not any(map(failed, chip.results)):
                headline = "no Triton kernel was launched when it was compiled for a GPU"
                help = "launch the same kernels with and without a GPU"
                return self._finding(Verdict.FAIL, headline, help=help)
            name = f"does not compile for compute capability {chip.capability / 10:.1f}"
            for kernel in chip.refused:
                refusal = kernel.kernel.refusal
                assert refusal is not None
                headline = f"{name}: {refusal.text}"
                help = translation(f"{refusal.error_type}: {refusal.text}")
                return self._finding(Verdict.FAIL, headline, line=refusal.line, help=help)
            for result in chip.results:
                failure = outcome.of_result(result, self.problem.signature, outcome.COMPILATION)
                values = chip.launches and _is_of_values(result, self.session.source)
                if failure is not None and not values:
                    evidence = CallEvidence(result=result, output=chip.output)
                    return self._failure(failure, evidence)
        return None

    # -- on a GPU ---------------------------------------------------------------------------------

    def _judge_call(self) -> Finding:
        """Make the call, and those of other cases whose kernels have not run on the GPU."""
        evidence = self.session.call(self.case, self.inputs(), self.problem.outputs)
        failure = outcome.of_call(evidence, self.problem.signature)
        if failure is not None:
            return self._failure(failure, evidence)
        lines = lines_of(evidence)
        for _ in range(MOST):
            left = self._left(lines)
            if not left:
                break
            line, runs = left[0]
            finding = self._judge_there(line, runs, lines)
            if finding is not None:
                return finding
            lines.add(line)  # what runs in its place is judged now
        return self._too_many(self._left(lines)) or Finding(verdict=Verdict.PASS)

    def _judge_there(self, line: int, runs: list[Ran], lines: set[int]) -> Finding | None:
        """Judge cases on the GPU until one runs the kernel at `line`; add what runs to `lines`."""
        trial = self.trial
        for ran in runs:
            where = (ran.check, ran.index, ran.case)
            answer = Answer.of(trial.problem, trial.seed, self.session, *where, 0)
            if answer.failure is not None:
                return self._failure(answer.failure, answer.evidence)
            launched = lines_of(answer.evidence)
            if not launched:
                return self._never_on_a_gpu(line, ran.case)
            lines |= launched
            if line in launched:
                return None
            if answer.differences:
                shown = answer.differences[0]
                headline = "on the GPU another kernel runs than without one, and"
                headline += f" {shown.name} is wrong; {ran.case}"
                shows = {"first": shown.first, "worst": shown.worst, "extent": shown.extent}
                return self._finding(Verdict.FAIL, headline, line=line, **shows)
        return None

    # -- kernels of other cases -------------------------------------------------------------------

    def _left(self, lines: set[int]) -> list[tuple[int, list[Ran]]]:
        """Return the kernels that ran on the machine, but for those in `lines`."""
        return self.trial.launched.waiting(lines) if self.session.source.policy else []

    def _too_many(self, left: list[tuple[int, list[Ran]]]) -> Finding | None:
        """Say that more kernels are left than are looked at one by one."""
        if not left and len(self.trial.launched.on_machine) < MAX_KERNELS:
            return None
        headline = f"too many kernels: fewer than {MAX_KERNELS} may run in all cases, and {MOST} at"
        headline += " most that the compiled case does not launch"
        return self._finding(Verdict.FAIL, headline, help="let constants tell kernels apart")

    def _never_on_a_gpu(self, line: int, case: Case) -> Finding:
        headline = "a kernel runs without a GPU and is not launched on one: another"
        headline += f" runs there, or none; {case}"
        help = "launch the same kernels with and without a GPU: they are judged there"
        return self._finding(Verdict.FAIL, headline, line=line, help=help)


def _is_of_values(result: Reply | Ended, source: Source) -> bool:
    """Whether the file itself ended its call, by an `assert` or a `raise` of its own.

    Kernels that are compiled alone leave outputs empty, and a file may look whether one holds NaN.
    A kernel that it would have launched after that is asked for by name: it ran in another case.
    """
    if not isinstance(result, Reply) or result.status != Status.EXCEPTION:
        return False
    ends = (n for n in ast.walk(ast.parse(source.data)) if isinstance(n, (ast.Assert, ast.Raise)))
    return any(n.lineno <= result.line <= (n.end_lineno or n.lineno) for n in ends)
