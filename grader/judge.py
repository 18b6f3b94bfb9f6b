"""One case of one check: call the submission, judge what came back, say it to the student.

Over 400 lines: every way in which a case can go wrong is told in this one file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from grader.answers import Answer, inputs_of
from grader.cases import Case
from grader.checks import outcome
from grader.checks.correctness import Difference, Expected, expect, find_differences, ranges
from grader.checks.idle import right_without_kernels
from grader.checks.translations import translation
from grader.findings import Finding
from grader.following.program import Called
from grader.inputs import Inputs, invalidate
from grader.launched import MOST, First, lines_of
from grader.looking import Seen, look_again
from grader.manifest import Check, Problem
from grader.model import Message, Verdict
from grader.running.compiled import Call, Compiled, unavailable
from grader.running.evidence import CallEvidence
from grader.running.protocol import MAX_KERNELS, Reply, Status, failed
from grader.running.session import Session
from grader.sightings.scaled import of_numbers
from grader.sightings.sighting import Result
from grader.trial import Trial

_HEADLINE_LIMIT = 600
_ROUNDED = 0.03  # of the norm: more than that no rounding to 16 bits makes
# What else a message may name first for what is wrong about two arguments, or about one's shape.
_ALSO_NAMES = {
    "dtype": ("q", "x"),
    "head_dim": ("q",),
    "seqlen": ("seqlen_q", "seqlen_k", "q", "k"),
    "num_kv_heads": ("num_q_heads", "k"),
}


class CaseRun:
    """One case of one check of a trial, on the device of `session`.

    The first case of a check is called twice, the second time with other values: what was kept
    from the first call is no answer to the second. In between, it is called with those values while
    its kernels do nothing: what is right then, they did not compute.
    """

    def __init__(
        self, trial: Trial, session: Session, check: Check, index: int, case: Case
    ) -> None:
        self.trial = trial
        self.session = session
        self.problem = trial.problem.of(check)
        self.check = check
        self.index = index
        self.case = case
        self._earlier: Expected | None = None  # of the first call

    def judge(self) -> Finding:
        """Call the submission; its outputs must be the oracle's, or the call be refused.

        Of a check that `compiles` the kernels are compiled, and on a GPU launched.
        """
        if self.check.compiles:
            return self._judge_compilation()
        if self.case.invalid is not None:
            return self._judge_refusal()
        for call in range(2 if self.index == 0 else 1):
            finding = self._judge_outputs(call)
            if finding is not None:
                return finding
        return Finding(verdict=Verdict.PASS)

    def inputs(self, call: int = 0) -> Inputs:
        """Return the inputs of a call; they depend on the run's seed and the case alone."""
        trial = self.trial
        return inputs_of(trial.problem, trial.seed, self.check, self.index, self.case, call)

    def _answer(self, call: int) -> Answer:
        """Make a call, or take what came of it if it was made ahead of its turn."""
        trial, check = self.trial, self.check
        found = trial.ahead.take(check, self.index, call, self.session) if trial.ahead else None
        if found is not None:
            return found
        where = (self.session, check, self.index, self.case, call)
        return Answer.of(trial.problem, trial.seed, *where)

    def _judge_outputs(self, call: int) -> Finding | None:
        problem = self.problem
        judged = self.trial.problem.judged(self.check)
        self.trial.called = True
        answer = self._answer(call)
        evidence, expected = answer.evidence, answer.expected
        if answer.failure is not None or expected is None:
            assert answer.failure is not None
            if isinstance(evidence.result, Reply):
                self.trial.raised.add((evidence.result.error_type, evidence.result.line))
            return self._failure(answer.failure, evidence)
        if problem.uses_triton and not _launches(evidence):
            headline = f"no Triton kernel was launched: {problem.entry} returned without one"
            help = "the answer to this problem is a kernel: kernel[grid](...)"
            return self._finding(Verdict.ERROR, headline, help=help)
        self.trial.answered(self.session, bridge=self.check.bridge)
        if not self.check.bridge:
            where = (self.check, self.index, self.case)
            self.trial.launched.note(evidence, *where, interpret=self.session.interpret)
        if evidence.overwritten is not None:
            self.trial.overwritten = self.trial.overwritten or f"the input {evidence.overwritten}"
        differences = list(answer.differences)
        self._look_at_out(answer.names, judged, differences, answer.inputs)
        differences = [d for d in differences if d.name in judged]
        seen = self._learn(call, answer.inputs, answer.names, evidence, expected, differences)
        if not differences:
            race = outcome.of_race(evidence)
            if race is not None:
                return self._failure(race, evidence)
            earlier, self._earlier = self._earlier, expected
            return self._computed_elsewhere(judged, answer.idle, expected, earlier)
        kept = call > 0 and self._is_right_in_a_new_worker(answer)
        return self._wrong(differences, evidence, seen, kept=kept)

    def _is_right_in_a_new_worker(self, answer: Answer) -> bool:
        """Whether a call that was wrong is right where no call was made before it."""
        self.session.close()
        evidence = self.session.call(self.case, answer.inputs, answer.names)
        if answer.expected is None or outcome.of_call(evidence, self.problem.signature) is not None:
            return False
        return not find_differences(evidence.outputs, answer.expected)

    def _computed_elsewhere(
        self,
        judged: tuple[str, ...],
        idle: CallEvidence | None,
        expected: Expected,
        earlier: Expected | None,
    ) -> Finding | None:
        """Say which outputs are right without the kernels."""
        if idle is None or earlier is None or not idle.outputs:
            return None
        names = right_without_kernels(judged, idle.outputs, expected, earlier)
        if not names:
            return None
        headline = f"{_are(list(names))} right though no kernel ran: it does not come from your"
        headline += " kernels"
        help = "this call was made with kernels that do nothing; compute and store it in a kernel"
        return self._finding(Verdict.ERROR, headline, help=help)

    def _look_at_out(
        self,
        names: tuple[str, ...],
        judged: tuple[str, ...],
        differences: list[Difference],
        inputs: Inputs,
    ) -> None:
        """See whether a backward pass writes to `out`, which is the caller's by then.

        Then `out` is right in a call without one.
        """
        wrong = any(d.name == "out" for d in differences)
        if "out" in judged or "out" not in names or not wrong or self.trial.overwritten:
            return
        evidence = self.session.call(self.case, inputs, ("out",))
        if outcome.of_call(evidence, self.problem.signature) is None:
            expected = expect(self.problem, self.case, inputs, ("out",))
            if not find_differences(evidence.outputs, expected):
                self.trial.overwritten = "out, in the backward pass,"

    def _learn(
        self,
        call: int,
        inputs: Inputs,
        names: tuple[str, ...],
        evidence: CallEvidence,
        expected: Expected,
        differences: list[Difference],
    ) -> Seen:
        """Let the casebook know of a result; where it is wrong, see what the kernels did."""
        casebook = self.trial.bridge_casebook if self.check.bridge else self.trial.casebook
        assert casebook is not None
        if not differences:
            casebook.add_right(self.case, lambda: self._again(call, names))
            return Seen()
        place = (self.check.id, self.index)
        casebook.add_wrong(place, self.case, inputs, evidence.outputs, expected)
        if self.check.bridge:  # what is seen is told of the problem's own entry
            return Seen()
        result = _result(differences, evidence.outputs, expected)
        seen = Seen()
        if not call:
            where = (self.problem, self.session.source, self.check, self.index + 1, self.case)
            called = Called(*where, self.trial.seed, inputs, expected, evidence, differences)
            seen = look_again(self.trial, self.session, called, names, result)
        numbers = (inputs, result.wrong, evidence.outputs, expected)
        found = of_numbers(self.problem.id, self.case, *numbers)
        if found is not None:
            casebook.add_seen(place, found)
        return seen

    def _again(self, call: int, names: tuple[str, ...]) -> tuple[Inputs, Callable[[], Expected]]:
        inputs = self.inputs(call)
        return inputs, lambda: expect(self.problem, self.case, inputs, names)

    def _wrong(
        self,
        differences: list[Difference],
        evidence: CallEvidence,
        seen: Seen,
        *,
        kept: bool,
    ) -> Finding:
        """Tell wrong numbers apart: never written, NaN from other memory, or computed as NaN.

        And `kept` from the call before, or plainly wrong.
        """
        shown = differences[0]
        got, unwritten = evidence.outputs[shown.name], evidence.unwritten[shown.name]
        left_over = evidence.left_over[shown.name]
        help, extent = None, shown.extent
        if bool(unwritten.any()):
            headline = f"{shown.name} was not written everywhere"
            extent = f"{_places(unwritten)} hold what was there before the call; {extent}"
            help = "which program stores these rows? look at program_id, the grid and the mask"
        elif bool(left_over.any()):
            headline = f"{shown.name} was made from memory that nobody wrote (torch.empty)"
            extent = f"{_places(left_over)} are NaN that lay there before; {extent}"
            help = (
                "a tensor from torch.empty is read before every element of it was stored: look at"
                " the grid and the mask of the kernel that stores it; what is added to, as by"
                " atomic_add, begins as torch.zeros"
            )
        elif bool(got.isnan().any()):
            headline = f"{shown.name} was computed as NaN"
            extent = f"{_places(got.isnan())} are NaN; {extent}"
            help = "NaN comes from -inf - (-inf), 0 * inf, 0 / 0 or inf / inf"
        elif kept:
            headline = f"{shown.name} is wrong in a second call with other values of the same shape"
            help = "a result may depend on nothing that an earlier call left behind"
        else:
            on_gpu = self.problem.uses_triton and not self.session.interpret
            if self.case.exact and on_gpu:  # the interpreter has seen such dots before
                help = 'on a GPU tl.dot of fp32 is TF32 unless it has input_precision="ieee"'
            wrong = [d.name for d in differences]
            headline = f"{_are(wrong)} wrong"
            right = [n for n in self.trial.problem.judged(self.check) if n not in wrong]
            if right and help is None:
                made = f"{shown.name} alone is" if len(wrong) == 1 else _are(wrong)
                help = f"{_are(right)} right: look at what {made} made of"
        return self._finding(
            Verdict.FAIL,
            headline,
            first=shown.first,
            worst=shown.worst,
            extent=extent,
            help=help,
            tiles=seen.tiles,
            errors=shown.errors,
            trace=seen.trace,
            wrong_outputs=tuple(d.name for d in differences),
            margin=max(d.margin for d in differences),
        )

    def _judge_compilation(self) -> Finding:
        problem, names = self.problem, self.problem.outputs
        used_up = self.session.budget.used_up() is not None
        if used_up or self.session.unusable is not None or not self.session.interpret:
            # On a GPU the call itself compiles; its numbers are another check's subject.
            evidence = self.session.call(self.case, self.inputs(), names)
            failure = outcome.of_call(evidence, problem.signature)
            if failure is not None:
                return self._failure(failure, evidence)
            return self._not_on_gpu(lines_of(evidence)) or Finding(verdict=Verdict.PASS)
        reason = unavailable()
        if reason is not None:
            headline = f"not measured: {reason}"
            return Finding(verdict=Verdict.NOT_MEASURED, message=Message(headline=headline))
        trial = self.trial
        if trial.compiles_ahead and trial.called and not trial.compiling:
            message = Message(headline="not run: no call came back with a result", not_run=True)
            return Finding(verdict=Verdict.SKIPPED, message=message)
        call = Call.of(problem, self.case, names)
        compiled = self.trial.compile_ahead(self.session.source, call).result()
        finding = self._not_compiled(compiled)
        for _ in range(MOST):
            left = self._left(compiled)
            if finding is not None or not left:
                break
            line, first = left[0]
            call = Call.of(problem, first.case, names)
            more = self.trial.compile_ahead(self.session.source, call).result()
            finding = self._not_compiled(more) or self._without(line, more, first.case)
            compiled = [*compiled, *more]
        finding = finding or self._too_many(self._left(compiled))
        kernels = tuple(kernel for chip in compiled for kernel in chip.kernels)
        finding = finding or Finding(verdict=Verdict.PASS)
        return finding.model_copy(update={"kernels": tuple(dict.fromkeys(kernels))})

    def _left(self, compiled: list[Compiled]) -> list[tuple[int, First]]:
        """Return the kernels that ran in other cases than the one that was compiled."""
        if not self.session.source.policy:
            return []
        lines = {kernel.kernel.line for chip in compiled for kernel in chip.kernels}
        return self.trial.launched.waiting(lines)

    def _without(self, line: int, compiled: list[Compiled], case: Case) -> Finding | None:
        """Say that a case launches a kernel in the interpreter, and none of these does."""
        for chip in compiled:
            if all(kernel.kernel.line != line for kernel in chip.kernels):
                return self._only_interpreted(line, case)
        return None

    def _not_on_gpu(self, lines: set[int]) -> Finding | None:
        """Call the cases on the GPU whose kernels ran in the interpreter alone."""
        for _ in range(MOST if self.session.source.policy else 0):
            waiting = self.trial.launched.waiting(lines)
            if not waiting:
                break
            line, first = waiting[0]
            where = (self.trial.problem, self.trial.seed, first.check, first.index, first.case)
            evidence = self.session.call(first.case, inputs_of(*where), self.problem.outputs)
            failure = outcome.of_call(evidence, self.problem.signature)
            if failure is not None:
                return self._failure(failure, evidence)
            if line not in lines_of(evidence):
                return self._only_interpreted(line, first.case)
            lines |= lines_of(evidence)
        policy = self.session.source.policy
        return self._too_many(self.trial.launched.waiting(lines) if policy else [])

    def _too_many(self, left: list[tuple[int, First]]) -> Finding | None:
        """Say that more kernels are left than are looked at one by one."""
        if not left and len(self.trial.launched.interpreted) < MAX_KERNELS:
            return None
        headline = (
            f"too many kernels: fewer than {MAX_KERNELS} may run in all cases, and those that"
        )
        headline += f" the compiled case does not launch in no more than {MOST} others"
        return self._finding(Verdict.FAIL, headline, help="let constants tell kernels apart")

    def _only_interpreted(self, line: int, case: Case) -> Finding:
        headline = "a kernel runs in Triton's interpreter and is not launched on a GPU: another"
        headline += f" runs there, or none; {case}"
        help = "launch the same kernels with and without TRITON_INTERPRET: they are judged there"
        return self._finding(Verdict.FAIL, headline, line=line, help=help)

    def _not_compiled(self, compiled: list[Compiled]) -> Finding | None:
        """Say what a compiler refused, or how a call ended; None where all is well."""
        for chip in compiled:
            if not chip.launches and not any(map(failed, chip.results)):
                headline = "no Triton kernel was launched when it was compiled for a GPU"
                help = "launch the same kernels with and without TRITON_INTERPRET"
                return self._finding(Verdict.FAIL, headline, help=help)
            name = f"does not compile for compute capability {chip.capability / 10:.1f}"
            for kernel in chip.refused:
                refusal = kernel.kernel.refusal
                assert refusal is not None
                headline = f"{name}: {refusal.text}"
                help = translation(f"{refusal.error_type}: {refusal.text}")
                return self._finding(Verdict.FAIL, headline, line=refusal.line, help=help)
            for result in chip.results:
                failure = outcome.of_result(result, self.problem.signature, "compilation")
                if failure is not None:
                    evidence = CallEvidence(result=result, output=chip.output)
                    return self._failure(failure, evidence)
        return None

    def _judge_refusal(self) -> Finding:
        """An unsupported argument must raise a ValueError that names it before any other.

        Also judged here: no supported one was written to.
        """
        case, overwritten = self.case, self.trial.overwritten
        if overwritten is not None:  # by an earlier case, whose numbers may be right all the same
            headline = f"{overwritten} was overwritten: it is the caller's"
            help = "put the result into a tensor of your own: q * 2, not q *= 2 or q.mul_(2)"
            return self._finding(Verdict.FAIL, headline, help=help)
        inputs = invalidate(self.inputs(), case.mutate)
        evidence = self.session.call(case, inputs, ())
        wanted = f"expected ValueError naming {case.invalid!r} for {case.mutate or _option(case)}"
        failure = outcome.of_call(evidence, self.problem.signature)
        reply = evidence.result
        if failure is None or (isinstance(reply, Reply) and reply.status == Status.BAD_RETURN):
            return self._finding(Verdict.FAIL, f"no error was raised: {wanted}")
        if not isinstance(reply, Reply) or reply.status not in (
            Status.EXCEPTION,
            Status.COMPILE_FAILED,
        ):
            return self._failure(failure, evidence)
        if reply.error_type != "ValueError":
            if (reply.error_type, reply.line) in self.trial.raised:  # by supported ones too
                return self._failure(failure, evidence)
            headline = f"got {reply.error_type or reply.status.name}: {reply.text}; {wanted}"
            return self._finding(Verdict.FAIL, headline, line=reply.line)
        named = first_named(reply.text, self.problem)
        if named not in (case.invalid, *_ALSO_NAMES.get(case.invalid or "", ())):
            begins = "does not begin with the argument" if named else "names no argument"
            headline = f"the ValueError {begins}: got {reply.text!r}; {wanted}"
            return self._finding(Verdict.FAIL, headline, line=reply.line)
        return Finding(verdict=Verdict.PASS)

    # -- what the student reads ---------------------------------------------------------------

    def _failure(self, failure: outcome.Outcome, evidence: CallEvidence) -> Finding:
        return self._finding(
            failure.verdict,
            failure.headline,
            line=failure.line,
            extent=failure.extent,
            help=failure.help or self._of_given_code(failure),
            elsewhere=failure.elsewhere,
            looping=failure.looping,
            output=evidence.output,
            not_run=evidence.result is None,
        )

    def _of_given_code(self, failure: outcome.Outcome) -> str | None:
        """Say of an error outside of all steps that what a step computed may have led to it."""
        source = self.session.source
        line = failure.line if failure.verdict is Verdict.ERROR else 0
        if not 0 < line <= source.num_lines or not source.has_steps:
            return None
        if source.step_at(line) is not None:
            return None
        return "this line is in no step: if it is as given, look at what your steps hand to it"

    def _step(self, line: int, *, elsewhere: bool, looping: bool) -> int | None:
        """Return the step of a line, if the mistake lies there; a bridge is a step of its own.

        A call that does not end was stopped somewhere in its loop: all of that has to be one step.
        """
        if self.check.bridge and self.trial.problem.bridge is not None:
            return self.trial.problem.bridge.step
        if not line or elsewhere:
            return None
        source = self.session.source
        return source.step_of_loops_at(line) if looping else source.step_at(line)

    def _finding(
        self,
        verdict: Verdict,
        headline: str,
        *,
        line: int = 0,
        elsewhere: bool = False,
        looping: bool = False,
        output: str = "",
        wrong_outputs: tuple[str, ...] = (),
        margin: float | None = None,
        **details: Any,
    ) -> Finding:
        problem = self.problem
        line = line if line <= self.session.source.num_lines else 0
        message = Message(
            headline=" ".join(headline.split())[:_HEADLINE_LIMIT],
            test=self.check.test_name,
            file=problem.file,
            line=line or None,
            step=self._step(line, elsewhere=elsewhere, looping=looping),
            input=str(self.case),
            output=output or None,
            repeat=f"make grade P={problem.id} SEED={self.trial.seed}",
            **details,
        )
        return Finding(verdict=verdict, message=message, wrong_outputs=wrong_outputs, margin=margin)


def first_named(text: str, problem: Problem) -> str | None:
    """Return the argument that a message names first; a list of all arguments names the first."""
    known = set(re.findall(r"\w+", problem.signature.partition("(")[2].partition(")")[0]))
    known -= {"None", "True", "False"}
    known |= {case.invalid for check in problem.checks for case in check.cases if case.invalid}
    known |= {name for names in _ALSO_NAMES.values() for name in names}
    return next((word for word in re.findall(r"\w+", text) if word in known), None)


def _result(
    differences: list[Difference], got: dict[str, torch.Tensor], expected: Expected
) -> Result:
    wrong = tuple(difference.name for difference in differences)
    close = True
    for name in wrong:
        error = (got[name].double() - expected.truth[name]).norm()
        close &= bool(error <= _ROUNDED * expected.truth[name].norm())
    nan = any(bool(got[name].isnan().any()) for name in wrong)
    place = differences[0].place
    return Result(wrong, nan, close, place[:3] if len(place) > 2 else None)


def _are(names: list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last} are" if first else f"{last} is"


def _launches(evidence: CallEvidence) -> int:
    return evidence.result.launches if isinstance(evidence.result, Reply) else 0


def _places(where: torch.Tensor) -> str:
    """Name the rows, of which heads, in which `where` is true anywhere."""
    if where.dim() == 4:
        where = where.any(3)
    share = int(where.sum())
    text = f"{share} of {where.numel()} rows"
    if where.dim() == 3:
        rows, heads = where.flatten(0, 1).any(0), where.any(2).flatten()
        text += f", rows {ranges(rows)}" if not rows.all() else ""
        if heads.numel() > 1 and not heads.all():
            text += f" of heads {ranges(heads)}"
    elif where.dim() == 1 and not where.all():
        text += f", rows {ranges(where)}"
    return text


def _option(case: Case) -> str:
    return ", ".join(f"{k}={v}" for k, v in case.options) or str(case)
