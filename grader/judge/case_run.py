"""One case of one check: call the submission, and judge what came back."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable

import torch

from grader.causes.diagnose import Casebook
from grader.causes.known_mistakes import WrongResult
from grader.causes.rules.scaled import of_numbers
from grader.causes.rules.sighting import Result
from grader.causes.state.program import Called
from grader.checks import outcome
from grader.checks.correctness import (
    Difference,
    Expected,
    expect,
    find_differences,
    is_of_tf32,
    ranges,
)
from grader.checks.idle import right_without_kernels
from grader.isolate.evidence import CallEvidence
from grader.judge.answers import Answer
from grader.judge.case_report import ToldCase
from grader.judge.compile_run import CompileRun
from grader.judge.retrace import Seen, look_again, look_at_race
from grader.judge.smallest import smaller_case
from grader.spec.cases import Case
from grader.spec.findings import Finding
from grader.spec.grade_record import Verdict
from grader.spec.inputs import Inputs, invalidate
from grader.spec.problem import Problem
from grader.spec.protocol import Reply, Status

_HELP_LIMIT = 300
_ROUNDED = 0.03  # of the norm: more than that no rounding to 16 bits makes
# What else a message may name first for what is wrong about two arguments, or about one's shape.
_ALSO_NAMES = {
    "dtype": ("q", "x"),
    "head_dim": ("q",),
    "seqlen": ("seqlen_q", "seqlen_k", "q", "k"),
    "num_kv_heads": ("num_q_heads", "k"),
}


class CaseRun(ToldCase):
    """One case of one check of a trial, on the device of `session`.

    The first case of a check is called twice, the second time with other values: what was kept
    from the first call is no answer to the second. In between, it is called with those values while
    its kernels do nothing: what is right then, they did not compute.
    """

    _earlier: Expected | None = None  # of the first call

    def judge(self) -> Finding:
        """Call the submission; its outputs must be the oracle's, or the call be refused.

        Of a check that `compiles` the kernels are compiled, and on a GPU launched.
        """
        self.session.budget.check = self.check.id
        if self.check.compiles:
            where = (self.check, self.index, self.case)
            return CompileRun(self.trial, self.session, *where).judge()
        if self.case.invalid is not None:
            return self._judge_refusal()
        for call in range(2 if self.index == 0 else 1):
            finding = self._judge_outputs(call)
            if finding is not None:
                return finding
        return Finding(verdict=Verdict.PASS)

    def _judge_outputs(self, call: int) -> Finding | None:
        problem = self.problem
        judged = self.trial.problem.judged(self.check)
        self.trial.called = True
        where = (self.session, self.check, self.index, self.case, call)
        answer = Answer.of(self.trial.problem, self.trial.seed, *where)
        evidence, expected = answer.evidence, answer.expected
        if answer.failure is not None or expected is None:
            assert answer.failure is not None
            self._casebook.add_failed((self.check.id, self.index))
            if isinstance(evidence.result, Reply):
                self.trial.raised.add((evidence.result.error_type, evidence.result.line))
            return self._failure(answer.failure, evidence)
        if problem.uses_triton and not _launches(evidence):
            headline = f"no Triton kernel was launched: {problem.entry} returned without one"
            help = "the answer to this problem is a kernel: kernel[grid](...)"
            return self._finding(Verdict.ERROR, headline, help=help)
        differences = answer.wrong(judged)
        self.trial.answered(self.session, bridge=self.check.bridge)
        if not self.check.bridge:
            where = (self.check, self.index, self.case)
            self.trial.launched.note(evidence, *where, machine=self.session.machine)
            self.trial.compile_more(self.session)
        if evidence.overwritten is not None:
            self.trial.overwritten = self.trial.overwritten or f"the input {evidence.overwritten}"
        if self._is_of_tf32(answer, differences, expected):
            return self._rounded_by_dots(differences)
        self._look_at_out(answer, judged)
        try:
            seen = self._learn(call, answer.inputs, answer.names, evidence, expected, differences)
        except Exception as error:  # of the judge's own: what is wrong is known by now
            seen = Seen(fault=f"{type(error).__name__}: {error}")
        for name in evidence.outputs.keys() - {d.name for d in answer.differences}:
            self.trial.note_right(evidence.outputs[name])
        if not differences:
            remark = outcome.of_remark(evidence)
            if remark is not None:
                if evidence.result.error_type == "race":
                    where = (self.check.id, self.index), self.case, answer, remark.headline
                    look_at_race(self.trial, self.session, *where)
                return self._failure(remark, evidence)
            earlier, self._earlier = self._earlier, expected
            return self._computed_elsewhere(judged, answer.idle, expected, earlier)
        kept = self.trial.was_right_before(evidence.outputs[differences[0].name])
        kept = kept or (call > 0 and self._is_right_in_a_new_worker(answer))
        nan = any(bool(evidence.outputs[d.name].isnan().any()) for d in differences)
        bare = nan and self.session.machine and self._is_right_again(answer, zeros=True)
        where = (self.trial, self.session, self.problem, self.case)
        small = None if kept else smaller_case(*where, differences[0].name, nan=nan)
        return self._wrong(differences, evidence, seen, kept=kept, bare=bare, small=small)

    def _is_of_tf32(self, answer: Answer, wrong: list[Difference], expected: Expected) -> bool:
        """Whether a GPU's dots cut their operands to TF32; the machine sees that before.

        What is wrong then is no sign of another mistake.
        """
        exact = self.case.exact and self.case.dtype == "fp32"
        if not wrong or not exact or self.session.machine:
            return False
        case = dataclasses.replace(self.case, exact=False)
        cut = expect(self.problem, case, answer.inputs, answer.names)
        got = answer.evidence.outputs
        return all(is_of_tf32(got[d.name], d.name, expected, cut) for d in wrong)

    def _rounded_by_dots(self, wrong: list[Difference]) -> Finding:
        names = [difference.name for difference in wrong]
        has = "has" if len(names) == 1 else "have"
        return self._finding(
            Verdict.FAIL,
            f"{' and '.join(names)} {has} the error of tl.dot in TF32, which rounds fp32 operands",
            first=wrong[0].first,
            worst=wrong[0].worst,
            extent=wrong[0].extent,
            help=f"your fp32 dot runs in TF32: {outcome.ROUNDING_HELP['TF32']}",
            errors=wrong[0].errors,
            wrong_outputs=tuple(names),
            margin=max(difference.margin for difference in wrong),
        )

    def _is_right_in_a_new_worker(self, answer: Answer) -> bool:
        """Whether a call that was wrong is right where no call was made before it."""
        self.session.close()
        return self._is_right_again(answer)

    def _is_right_again(self, answer: Answer, *, zeros: bool = False) -> bool:
        evidence = self.session.call(self.case, answer.inputs, answer.names, zeros=zeros)
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

    def _look_at_out(self, answer: Answer, judged: tuple[str, ...]) -> None:
        """See whether a backward pass writes to `out`, which is the caller's by then.

        Then `out` is right in a call without one.
        """
        wrong = any(d.name == "out" for d in answer.differences)
        if "out" in judged or not wrong or self.trial.overwritten:
            return
        evidence = self.session.call(self.case, answer.inputs, ("out",))
        if outcome.of_call(evidence, self.problem.signature) is None:
            expected = expect(self.problem, self.case, answer.inputs, ("out",))
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
        casebook = self._casebook
        if not differences:
            casebook.add_right(self.case, functools.partial(self._again, call, names))
            return Seen()
        place = (self.check.id, self.index)
        own = inputs, evidence.outputs, expected
        again = functools.partial(self._again, call, names)
        casebook.add_wrong(WrongResult(place, self.case, *own, again))
        if self.check.bridge:  # what is seen is told of the problem's own entry
            return Seen()
        result = _result(differences, evidence, expected)
        seen = Seen()
        if not call:
            where = (self.problem, self.session.source, self.check, self.index + 1, self.case)
            called = Called(*where, self.trial.seed, inputs, expected, evidence, differences)
            seen = look_again(self.trial, self.session, called, names, result)
        numbers = (inputs, result.wrong, evidence.outputs, expected)
        look = functools.partial(of_numbers, self.problem.id, self.case, *numbers)
        casebook.add_numbers(place, look)
        return seen

    @property
    def _casebook(self) -> Casebook:
        casebook = self.trial.bridge_casebook if self.check.bridge else self.trial.casebook
        assert casebook is not None
        return casebook

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
        bare: bool,
        small: str | None,
    ) -> Finding:
        """Tell wrong numbers apart: never written, NaN from other memory, or computed as NaN.

        And made from lanes of a `bare` load, `kept` from an earlier call, or plainly wrong.
        """
        shown = differences[0]
        got, unwritten = evidence.outputs[shown.name], evidence.unwritten[shown.name]
        left_over = evidence.left_over[shown.name]
        help, extent, line = None, shown.extent, 0
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
        elif bare:
            headline = f"{shown.name} depends on lanes that a load without other= left undefined"
            help = (
                "lanes that a mask turns off may hold anything, here NaN; zeros there give the"
                " right result: pass other=0.0 to the load, or whichever value changes nothing"
            )
        elif bool(got.isnan().any()):
            headline = f"{shown.name} was computed as NaN"
            extent = f"{_places(got.isnan())} are NaN; {extent}"
            help = "NaN comes from -inf - (-inf), 0 * inf, 0 / 0 or inf / inf"
        elif kept:
            headline = f"{shown.name} is wrong in a second call with other values of the same shape"
            help = "a result may depend on nothing that an earlier call left behind"
        else:
            wrong = [d.name for d in differences]
            headline = f"{_are(wrong)} wrong"
            right = [n for n in self.trial.problem.judged(self.check) if n not in wrong]
            if right and help is None:
                made = f"{shown.name} alone is" if len(wrong) == 1 else _are(wrong)
                help = f"{_are(right)} right: look at what {made} made of"
            remark = outcome.of_remark(evidence)
            if remark is not None:
                headline, line, help = remark.headline, remark.line, remark.help
                extent = "; ".join(filter(None, (remark.extent, extent)))
        if seen.fault:
            help = "the result is wrong, but the judge failed to look for the cause; please report"
            help = f"{help} this error: {seen.fault}"[:_HELP_LIMIT]
        return self._finding(
            Verdict.FAIL,
            headline,
            line=line,
            first=shown.first,
            worst=shown.worst,
            extent=extent,
            small=small,
            help=help,
            tiles=seen.tiles,
            errors=shown.errors,
            trace=seen.trace,
            output=evidence.output,
            wrong_outputs=tuple(d.name for d in differences),
            margin=max(d.margin for d in differences),
        )

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


def first_named(text: str, problem: Problem) -> str | None:
    """Return the argument that a message names first; a list of all arguments names the first."""
    known = set(re.findall(r"\w+", problem.signature.partition("(")[2].partition(")")[0]))
    known -= {"None", "True", "False"}
    known |= {case.invalid for check in problem.checks for case in check.cases if case.invalid}
    known |= {name for names in _ALSO_NAMES.values() for name in names}
    return next((word for word in re.findall(r"\w+", text) if word in known), None)


def _result(differences: list[Difference], evidence: CallEvidence, expected: Expected) -> Result:
    wrong, got = tuple(difference.name for difference in differences), evidence.outputs
    close = True
    for name in wrong:
        error = (got[name].double() - expected.truth[name]).norm()
        close &= bool(error <= _ROUNDED * expected.truth[name].norm())
    nan = {name: got[name].isnan() for name in wrong}
    before = {name: evidence.unwritten[name] | evidence.left_over[name] for name in wrong}
    computed = any(bool((nan[name] & ~before[name]).any()) for name in wrong)
    first, any_nan = differences[0].place, any(bool(found.any()) for found in nan.values())
    place = first[:3] if len(first) > 2 else None
    return Result(wrong, any_nan, close, place, computed)


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
