"""One program of a case that was called: which one to follow, and the record of what it did."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from grader.causes.outputs import Outputs
from grader.causes.rules.sighting import Sighting
from grader.causes.state import program_record
from grader.causes.state.comparing import Part, compare
from grader.causes.state.conclusion import conclusion_of
from grader.causes.state.wrong_pairs import of_heads, of_pairs
from grader.checks import outcome
from grader.checks.correctness import Difference, Expected
from grader.isolate.evidence import CallEvidence
from grader.kernel.observers.rounds import RoundsShape
from grader.source.submission import Source
from grader.spec.cases import Case
from grader.spec.inputs import Inputs
from grader.spec.problem import Problem
from grader.spec.problem_tables import Check
from grader.spec.trace_record import TileRound, TraceRecord

MOST_SHOWN = 12  # rounds in a message: a record holds a message for each check

Ids = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Called:
    """A case and its call: inputs, reference, evidence, and where the results are wrong.

    `number` is that of the case in its check, from 1; `failure` is how a call ended that returned
    no results.
    """

    problem: Problem
    source: Source
    check: Check
    number: int
    case: Case
    seed: str
    inputs: Inputs
    expected: Expected
    evidence: CallEvidence
    differences: list[Difference]
    failure: outcome.CaseOutcome | None = None

    @property
    def place(self) -> str:
        """The name of the case, such as "window:2"."""
        return f"{self.check.id}:{self.number}"

    @property
    def outputs(self) -> Outputs:
        """What came back, and what should have."""
        got = self.evidence.outputs
        return Outputs(self.problem.id, self.case, self.inputs, got, self.expected)

    def to_follow(self, program: Ids | None = None) -> RoundsShape:
        """Return what another call has to follow: `program`, or that of the worst element."""
        lines = self.source.num_lines
        return RoundsShape.of(self.case, lines, row=self._worst()[0], program=program)

    def report(
        self, followed: CallEvidence, program: Ids | None = None, rounded: str = ""
    ) -> ProgramReport:
        """Compare the evidence of the call that followed a program with the oracle.

        `rounded` is the dtype that operands of dots are known to be rounded to.
        """
        problem, case, rounds = self.problem, self.case, followed.rounds
        failure, worst = self.failure or outcome.of_call(followed, problem.signature), self._worst()
        record = functools.partial(
            TraceRecord,
            problem=problem.id,
            file=problem.file,
            check=self.check.id,
            number=self.number,
            case=str(case),
            seed=self.seed,
            result="failed" if failure else "wrong" if self.differences else "right",
            failure=" ".join(failure.headline.split())[:600] if failure else None,
        )
        if rounds is None or not (rounds.queries >= 0).any():
            return ProgramReport(record(conclusion=_nothing_seen(problem, case, worst[0], program)))
        wrong = self._are_wrong(rounds.queries)
        compared = compare(
            problem.id,
            case,
            self.inputs,
            rounds,
            followed.trace,
            wrong=wrong,
            dtype=rounded or case.dtype,
        )
        corner = program_record.Corner.of(case, rounds, compared, worst)
        tiles = program_record.rounds_of(case, self.source, rounds, compared, corner, wrong=wrong)
        failed, trace, pairs = failure is not None, followed.trace, None
        end = conclusion_of(rounds, compared, trace, failed=failed, wrong=wrong)
        judged = wrong and not failed
        if judged and not rounds.kernel:
            pairs = of_heads(case, rounds, compared)
            pairs = pairs or of_pairs(problem.id, case, rounds, compared)
            astray = next((tile for tile in tiles if tile.facts), None)
            if pairs is not None and astray is not None and not end.is_known:
                text = f"wrong in tile {astray.number}: {astray.facts[0]}"
                end = dataclasses.replace(end, is_known=True, text=text)
        whole = record(
            program=program_record.program_of(case, rounds, corner),
            tiles=len(rounds) + rounds.more,
            rounds=tiles,
            parting=program_record.parting_of(rounds, compared, self.source),
            conclusion=end.text,
            notes=end.notes,
        )
        if not judged:
            return ProgramReport(whole)
        return ProgramReport(whole, end.is_known, end.why_not, compared.part, end.never, pairs)

    def _worst(self) -> tuple[int, int]:
        """Return the row of q, over batch and heads, of the worst element, and its column.

        The last query where all is right; -1 where nothing came back, as the row of the program
        that ran last is not known.
        """
        if self.failure is not None:
            return -1, 0
        if not self.differences:
            return self.case.seqlen_q - 1, 0
        batch, head, row, *column = self.differences[0].place
        plane = batch * self.case.num_q_heads + head
        return plane * self.case.seqlen_q + row, column[0] if column else 0

    def _are_wrong(self, queries: np.ndarray) -> bool:
        """Whether some result of these rows of q is wrong."""
        for difference in self.differences:
            wrong = difference.wrong.flatten(0, 2)  # out has elements in a row, lse has one
            rows = wrong.any(1) if wrong.dim() > 1 else wrong
            if rows.numpy()[queries[queries >= 0]].any():
                return True
        return False


@dataclasses.dataclass(frozen=True)
class ProgramReport:
    """The record of a program. `is_known`: why its results are wrong, or where they go wrong.

    `why_not` says why neither is known of wrong results. `part` is where they go wrong, `never`
    names the missing keys if nothing else is wrong, and `pairs` the wrong pairs of that tile if a
    function of PyTorch computes it: a trace shows those of kernels.
    """

    record: TraceRecord
    is_known: bool = False
    why_not: str = ""
    part: Part | None = None
    never: str = ""
    pairs: Sighting | None = None


def of_unknown(report: ProgramReport) -> TraceRecord:
    """Return the record of a program with the reason why nothing is known as its conclusion."""
    return _with(
        report.record, conclusion=f"where it goes wrong is not known, for {report.why_not}"
    )


def trimmed(record: TraceRecord) -> TraceRecord:
    """Return a record with few rounds: the first, the last, and those nearest to the parting.

    Without a parting, those nearest to the first round with a fact.
    """
    rounds = record.rounds
    with_facts = next((r.number for r in rounds if r.facts), 1)
    center = record.parting.number if record.parting is not None else with_facts

    def distance(tile: TileRound) -> tuple[bool, int]:
        at_an_end = tile in (rounds[0], rounds[-1])
        return not at_an_end, abs(tile.number - center)

    kept = sorted(rounds, key=distance)[:MOST_SHOWN]
    return _with(record, rounds=tuple(sorted(kept, key=lambda tile: tile.number)))


def _with(record: TraceRecord, **fields: object) -> TraceRecord:
    """Return a record with other fields, which are checked again."""
    return TraceRecord(**{**dict(record), **fields})


def _nothing_seen(problem: Problem, case: Case, row: int, program: Ids | None) -> str:
    """Say that no program was followed, and what that may mean."""
    if not problem.uses_triton:
        return (
            "no product of a tile of queries and a tile of keys was seen: it is looked for where"
            " rows of q, or multiples of them, are multiplied with rows of k by @, torch.bmm or"
            " the like"
        )
    if program is not None:
        ids = ",".join(map(str, program))
        return (
            f"program {ids} multiplied no tile of queries with a tile of keys: is it in the grid,"
            " and do your kernels multiply tiles of q and k with tl.dot?"
        )
    if row < 0:
        return "the call ended before any program had multiplied queries with a tile of keys"
    plane, query = divmod(row, case.seqlen_q)
    batch, head = divmod(plane, case.num_q_heads)
    where = f"query {query} of head {head}, batch entry {batch},"
    return (
        f"no program multiplied {where} with a tile of keys: either its loop over keys has no"
        " round, or no program loads this row of q, or what tl.dot multiplies are not rows of q and"
        " of k"
    )
