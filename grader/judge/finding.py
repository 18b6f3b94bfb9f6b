"""Makes the verdict and the message of a case from the evidence of its calls."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from typing import Any

import torch

from grader.causes.rules.numbers import Rounding
from grader.causes.state.program import Called
from grader.checks import outcome
from grader.checks.correctness import Difference, are, named_ranges
from grader.checks.raised import of_error, of_return
from grader.isolate.evidence import CallEvidence
from grader.judge.awaited import awaited
from grader.judge.case import CheckCase
from grader.judge.looks import Seen
from grader.source.feeding import Spot
from grader.source.submission import Source
from grader.spec.findings import Finding
from grader.spec.grade_record import Message, Verdict
from grader.spec.problem import Problem
from grader.spec.protocol import Reply, Status

_HEADLINE_LIMIT = 600
_HELP_LIMIT = 300
_MOST_PRODUCTS = 0.75  # of all; tiles of 64 up to the diagonal of 1024 have 0.53
_GIVEN_HELP = (
    "this line is in no step: if you did not change it, look at what your steps pass to it"
)
_SEARCH_FAILED = (
    "the result is wrong, but the judge failed to look for the cause; please report this error: "
)
# Other names that a message may name first, of two arguments that do not fit, or for a wrong shape.
_ALSO_NAMES = {
    "dtype": ("q", "x"),
    "head_dim": ("q",),
    "seqlen": ("seqlen_q", "seqlen_k", "q", "k"),
    "num_kv_heads": ("num_q_heads", "k"),
}


@dataclasses.dataclass(frozen=True)
class CaseFindings:
    """Makes the findings of one case of a submitted file.

    `ran` has the kernels of the file that have run on the machine.
    """

    at: CheckCase
    source: Source
    seed: str
    ran: Collection[int]

    def of(
        self,
        verdict: Verdict,
        headline: str,
        *,
        line: int = 0,
        spot: Spot | None = None,
        looping: bool = False,
        output: str = "",
        wrong: tuple[Difference, ...] = (),
        **details: Any,
    ) -> Finding:
        """Return a finding; its message shows the first of the outputs that are `wrong`."""
        at, source = self.at, self.source
        line = line if line <= source.num_lines else 0
        spot = spot if line and spot is not None else Spot(line, located=True)
        empty = awaited(at.problem, source, at.check.id, verdict)
        if wrong:
            shows = ("first", "worst", "extent", "errors")
            details = {name: getattr(wrong[0], name) for name in shows} | details
        message = Message(
            headline=" ".join(headline.split())[:_HEADLINE_LIMIT],
            test=at.check.test_name,
            file=at.problem.file,
            line=line or None,
            fed_by=() if empty else source.fed_by(spot),
            step=empty or self._step(spot, looping=looping),
            input=str(at.case),
            output=output or None,
            repeat=f"make grade P={at.problem.id} SEED={self.seed}",
            **details,
        )
        names = tuple(difference.name for difference in wrong)
        margin = max((difference.margin for difference in wrong), default=None)
        return Finding(verdict=verdict, message=message, wrong_outputs=names, margin=margin)

    def _step(self, spot: Spot, *, looping: bool) -> int | None:
        """Return the step of a line, if the mistake lies there; a bridge is a step of its own.

        A call that does not end is stopped anywhere in its loop: all of the loop must be one step.
        """
        bridge, source = self.at.whole.bridge, self.source
        if self.at.check.bridge and bridge is not None:
            return bridge.step
        if looping:
            return source.step_of_loops_at(spot.line)
        return source.step_behind(spot)

    def failed(self, failure: outcome.CaseOutcome, evidence: CallEvidence) -> Finding:
        """Return the finding of a call without outputs to compare, or of a remark about one."""
        reply = evidence.result
        failure = outcome.of_choice(failure, reply, ran=bool(self.ran))
        if isinstance(reply, Reply) and reply.status in (Status.EXCEPTION, Status.COMPILE_FAILED):
            failure = of_error(failure, reply, self.at.problem, self.source) or failure
        if isinstance(reply, Reply) and reply.status == Status.BAD_RETURN:
            failure = of_return(failure, reply, self.source, self.at.problem.entry)
        found = self.of(
            failure.verdict,
            failure.headline,
            line=failure.line,
            extent=failure.extent,
            help=failure.help or self._of_given_code(failure),
            spot=failure.spot,
            looping=failure.looping,
            output=evidence.output,
            not_run=evidence.result is None,
        )
        return found.model_copy(update={"wrong_outputs": failure.wrong})

    def _of_given_code(self, failure: outcome.CaseOutcome) -> str | None:
        """Say of an error outside of all steps that what a step computed may have led to it."""
        line = failure.line if failure.verdict is Verdict.ERROR else 0
        if not 0 < line <= self.source.num_lines or not self.source.has_steps:
            return None
        return _GIVEN_HELP if self.source.step_at(line) is None else None

    # -- numbers ----------------------------------------------------------------------------------

    def not_launched(self) -> Finding:
        """Return the finding of a call that launched no kernel."""
        headline = f"no Triton kernel was launched: {self.at.problem.entry} returned without one"
        help = "the answer to this problem is a kernel: kernel[grid](...)"
        return self.of(Verdict.ERROR, headline, help=help)

    def products(self, causal: int, full: int) -> Finding | None:
        """Return the finding of a call that multiplies nearly as much with is_causal as without.

        Both numbers are of the same answer, which may thus compute each score several times.
        """
        if not causal or not full:
            headline = "not measured: no torch.matmul, bmm or einsum was seen in this call"
            if causal:
                headline = "not measured: the same call without is_causal multiplied nothing"
            return Finding(verdict=Verdict.NOT_MEASURED, message=Message(headline=headline))
        share = causal / full
        if share <= _MOST_PRODUCTS:
            return None
        headline = (
            f"with is_causal the answer computes {share:.0%} of the products that it computes"
            f" without, expected at most {_MOST_PRODUCTS:.0%}"
        )
        help = "no query of a tile sees a key after the tile's last query: end the loop there"
        return self.of(Verdict.FAIL, headline, help=help)

    def rounds(self, found: Rounding) -> Finding:
        """Return the finding of a right result that hides a rounding."""
        headline = f"{found.what} before it is {'used' if found.line else 'returned'}"
        help = (
            "accumulate in fp32, and keep lse and delta in fp32; round the weights before a product"
            " and the result before it is stored, not what is still computed with"
        )
        return self.of(Verdict.FAIL, headline, line=found.line, extent=found.proof, help=help)

    def made_elsewhere(self, names: tuple[str, ...]) -> Finding:
        """Return the finding of outputs that are right although kernels did nothing."""
        headline = f"{are(names)} right though no kernel ran: it does not come from your kernels"
        help = "this call was made with kernels that do nothing; compute and store it in a kernel"
        return self.of(Verdict.ERROR, headline, help=help)

    def rounded(self, wrong: tuple[Difference, ...]) -> Finding:
        """Return the finding of outputs with the error of dots in TF32."""
        names = [difference.name for difference in wrong]
        has = "has" if len(names) == 1 else "have"
        headline = f"{' and '.join(names)} {has} the error of tl.dot in TF32, which rounds fp32"
        help = f"your fp32 dot runs in TF32: {outcome.ROUNDING_HELP['TF32']}"
        return self.of(Verdict.FAIL, f"{headline} operands", wrong=wrong, help=help)

    def wrong(
        self, called: Called, seen: Seen, *, kept: str, bare: bool, small: str | None
    ) -> Finding:
        """Return the finding of wrong numbers, by the first way to become wrong that applies.

        They are never written, NaN of other memory, made from lanes of a `bare` load, rounded,
        computed as NaN, kept from an earlier call (`kept` says when they are wrong, "" if they are
        not), raced for, or plainly wrong.
        """
        evidence, shown, line, spot = called.evidence, called.differences[0], 0, None
        name, extent = shown.name, shown.extent
        names = tuple(difference.name for difference in called.differences)
        got, unwritten = evidence.outputs[name], evidence.unwritten[name]
        left_over = evidence.left_over[name]
        if bool(unwritten.any()):
            headline = f"{name} was not written everywhere"
            extent = f"{_places(unwritten)} hold what was there before the call; {extent}"
            help = "which program stores these rows? look at program_id, the grid and the mask"
        elif bool(left_over.any()):
            headline = f"{name} was made from memory that nobody wrote (torch.empty)"
            extent = f"{_places(left_over)} are NaN that lay there before; {extent}"
            help = (
                "a tensor from torch.empty is read before every element of it was stored: look at"
                " the grid and the mask of the kernel that stores it; what is added to, as by"
                " atomic_add, begins as torch.zeros"
            )
        elif bare:
            line, lacks = self.source.bare_load()
            headline = f"{name} depends on lanes that a load without {lacks}= left undefined"
            help = (
                "lanes that a mask or boundary_check turns off may hold anything, here NaN; zeros"
                " there give the right result: pass other=0.0 to the load, of a block pointer"
                ' padding_option="zero", or whichever value changes nothing'
            )
        elif seen.rounding is not None:
            line, help = seen.rounding.line, seen.rounding.proof
            headline = f"the formula is right, but {seen.rounding.what} on its way to {name}"
        elif bool(got.isnan().any()):
            headline = f"{name} was computed as NaN"
            extent = f"{_places(got.isnan())} are NaN; {extent}"
            line, how = seen.nan
            spot = Spot(line)  # NaN shows there; the mistake may lie elsewhere
            help = "NaN comes from -inf - (-inf), 0 * inf, 0 / 0 or inf / inf"
            help = f"the first NaN comes out of this line: {how}" if how else help
        elif kept:
            headline = f"{are(names)} wrong {kept}"
            help = (
                "a result may depend on nothing that an earlier call left behind, as in a tensor or"
                " a dict of the module, or in a cache: allocate it, or set it to zero, in each call"
            )
        elif remark := outcome.of_remark(evidence, names):
            headline, line, help = remark.headline, remark.line, remark.help
            extent = "; ".join(filter(None, (remark.extent, extent)))
        else:
            headline, help = self._plainly(names)
        if seen.fault:
            help = f"{_SEARCH_FAILED}{seen.fault}"[:_HELP_LIMIT]
        return self.of(
            Verdict.FAIL,
            headline,
            line=line,
            spot=spot,
            extent=extent,
            small=small,
            help=help,
            tiles=seen.tiles,
            trace=seen.trace,
            output=evidence.output,
            wrong=tuple(called.differences),
        )

    def _plainly(self, wrong: tuple[str, ...]) -> tuple[str, str | None]:
        """Return headline and help where only the numbers say what is wrong."""
        right = tuple(name for name in self.at.judged if name not in wrong)
        made = f"{wrong[0]} alone is" if len(wrong) == 1 else are(wrong)
        help = f"{are(right)} right: look at what {made} made of" if right else None
        return f"{are(wrong)} wrong", help

    # -- refusals ---------------------------------------------------------------------------------

    def overwritten(self, what: str) -> Finding:
        """Return the finding of a call that wrote to a tensor of the caller's."""
        headline = f"{what} was overwritten: it is the caller's"
        help = "put the result into a tensor of your own: q * 2, not q *= 2 or q.mul_(2)"
        return self.of(Verdict.FAIL, headline, help=help)

    def refusal(self, evidence: CallEvidence, raised: set[tuple[str, int]]) -> Finding:
        """Return the finding of an unsupported argument, which a ValueError must name first.

        `raised` are errors, with their lines, that calls with supported arguments raised too.
        """
        case, reply = self.at.case, evidence.result
        options = ", ".join(f"{name}={value}" for name, value in case.options)
        what = case.mutate or options or str(case)
        wanted = f"expected ValueError naming {case.invalid!r} for {what}"
        failure = outcome.of_call(evidence, self.at.problem.signature)
        if failure is None or (isinstance(reply, Reply) and reply.status == Status.BAD_RETURN):
            return self.of(Verdict.FAIL, f"no error was raised: {wanted}")
        errors = (Status.EXCEPTION, Status.COMPILE_FAILED)
        if not isinstance(reply, Reply) or reply.status not in errors:
            return self.failed(failure, evidence)
        if reply.error_type != "ValueError":
            if (reply.error_type, reply.line) in raised:
                return self.failed(failure, evidence)
            headline = f"got {reply.error_type or reply.status.name}: {reply.text}; {wanted}"
            return self.of(Verdict.FAIL, headline, line=reply.line)
        named = first_named(reply.text, self.at.problem)
        if named not in (case.invalid, *_ALSO_NAMES.get(case.invalid or "", ())):
            begins = "does not begin with the argument" if named else "names no argument"
            headline = f"the ValueError {begins}: got {reply.text!r}; {wanted}"
            return self.of(Verdict.FAIL, headline, line=reply.line)
        return Finding(verdict=Verdict.PASS)


def unusable(source: Source, *, again: bool) -> Finding:
    """Return the finding of a file that cannot run."""
    assert source.verdict is not None and source.message is not None
    if not again:
        return Finding(verdict=source.verdict, message=source.message)
    headline = f"not run: {source.message.headline}"
    return Finding(verdict=Verdict.SKIPPED, message=Message(headline=headline))


def first_named(text: str, problem: Problem) -> str | None:
    """Return the argument that a message names first; a list of all arguments names the first."""
    known = set(re.findall(r"\w+", problem.signature.partition("(")[2].partition(")")[0]))
    known -= {"None", "True", "False"}
    known |= {case.invalid for check in problem.checks for case in check.cases if case.invalid}
    known |= {name for names in _ALSO_NAMES.values() for name in names}
    return next((word for word in re.findall(r"\w+", text) if word in known), None)


def _places(where: torch.Tensor) -> str:
    """Count and name the rows, and their heads, in which `where` is true anywhere."""
    if where.dim() == 4:
        where = where.any(3)
    text = f"{int(where.sum())} of {where.numel()} rows"
    if where.dim() == 3:
        rows, heads = where.flatten(0, 1).any(0), where.any(2).flatten()
        text += f", {named_ranges('row', rows)}" if not rows.all() else ""
        if heads.numel() > 1 and not heads.all():
            text += f" of {named_ranges('head', heads)}"
    elif where.dim() == 1 and not where.all():
        text += f", {named_ranges('row', where)}"
    return text
