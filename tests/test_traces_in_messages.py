"""The trace in the judge's messages; tests/test_shown_trace.py has it in terminal and page."""

import dataclasses
import re
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest

from grader.causes.rules.look import look
from grader.causes.rules.sighting import Result
from grader.causes.state.program import MOST_SHOWN, Called, trimmed
from grader.checks.correctness import expect, find_differences
from grader.checks.counted_pairs import counted_pairs, tile_map
from grader.isolate.evidence import CallEvidence
from grader.isolate.session import Budget, Session
from grader.judge import problem_run
from grader.judge.case import CheckCase
from grader.kernel.observers.rounds import Rounds, RoundsShape
from grader.report.message import causes, message_lines
from grader.report.state import state
from grader.source.submission import Source
from grader.spec.grade_record import Message
from grader.spec.inputs import case_seed, make_inputs
from grader.spec.problem import load_problem
from grader.spec.protocol import Reply, Status
from tests import forked
from tests.harness import SEED, edited, judge, model_answer, whole_answer
from tests.mutants import MUTANTS
from tests.mutants.forward import SUM
from tests.records import count_work
from tests.shares import drawn
from tests.test_shown_trace import CONTROL, page_of, problem_with
from tests.test_trace_kernels import with_other_names
from tests.tracing import trace
from tests.trials import NoNames, right_answers

UNSCALED_SUM = model_answer("p03").replace(SUM, "running_sum = running_sum + tl.sum(p, 1)")
STORE = "    out = acc / running_sum[:, None]  # (BLOCK_M, HEAD_DIM)\n"


_quick = forked.quick


def messages(problem_id, source, *checks, policy=True):
    """The messages of the wrong cases, by check and number."""
    with mock.patch.object(problem_run, "Casebook", NoNames):
        judged = judge(source, load_problem(problem_id), checks=checks, policy=policy)
    return {place: finding.message for place, finding in judged.wrong.items()}


class Call(NamedTuple):
    """A call of a session: of which dtype, and how much of it is looked at."""

    dtype: str
    traced: bool
    followed: bool


@pytest.fixture
def calls(monkeypatch):
    """The calls that sessions make meanwhile."""
    made, call = [], Session.call

    def noted(self, case, *args, traced=False, follow=None, **kwargs):
        made.append(Call(case.dtype, traced, follow is not None))
        return call(self, case, *args, traced=traced, follow=follow, **kwargs)

    monkeypatch.setattr(Session, "call", noted)
    return made


def traces(found):
    return {place: m.trace for place, m in found.items() if m.trace is not None}


def test_the_first_wrong_case_tells_where_the_state_parts_and_no_other_does():
    found = messages("p03", UNSCALED_SUM, "plain", "unequal")
    assert set(found) >= {("plain", 0), ("unequal", 0)}
    record = traces(found)
    assert list(record) == [("plain", 0)]
    record = record["plain", 0]
    assert record == trace("p03", UNSCALED_SUM, "plain:1", seed=SEED)  # two tiles: nothing is cut
    assert record.parting.number == 2 and record.parting.names == ("running_sum",)
    assert "tl.sum(p, 1)" in record.parting.lines[0].text
    message = found["plain", 0]
    assert Message.model_validate_json(message.model_dump_json()) == message


def test_what_is_behind_the_loop_is_told_too():
    more = "    out = tl.where(queries[:, None] == 70, 9.0, out)\n"
    wrong = edited(model_answer("p03"), (STORE, STORE + more))
    (record,) = traces(messages("p03", wrong, "plain")).values()
    assert record.parting is None and "look at what comes behind the loop" in record.conclusion
    assert record.program.queries == "64-127"


def test_a_later_check_tells_where_the_first_had_no_program():
    # In the plain case nothing visits a key, so there is no program; with more keys there is one.
    loop = "for key_start in range(0, seqlen_k, BLOCK_N):"
    wrong = edited(model_answer("p03"), (loop, loop.replace("seqlen_k", "seqlen_k - 128")))
    record = traces(messages("p03", wrong, "plain", "unequal"))
    assert ("plain", 0) not in record
    assert [check for check, _ in record] == ["unequal"]


UNTOLD = {
    "the kernel has several loops over keys": (
        lambda: right_answers("unusual")["p03-three_passes"][1],
        [("total += tl.sum(tl.exp(", "total += 1.5 * tl.sum(tl.exp(")],
    ),
    "the judge does not know which variable is the running": (
        lambda: with_other_names(model_answer("p03")),
        [  # either of two may be the sum
            ("    cc = tl.zeros(", "    dd = bb\n    cc = tl.zeros("),
            (
                "bb = bb * rescale + tl.sum(p, 1)",
                "bb, dd = bb * 0.9 + tl.sum(p, 1) * 1.3 + 0.7, dd + rescale",
            ),
            ("tl.log2(bb)", "tl.log2(bb + 0.0 * dd)"),
        ],
    ),
}


@pytest.mark.parametrize("reason", drawn(UNTOLD, 2))
def test_what_cannot_be_told_has_a_reason(reason):
    source, edits = UNTOLD[reason]
    found = messages("p03", edited(source(), *edits), "plain")
    (record,) = traces(found).values()
    assert record.parting is None and record.program is not None
    begins = f"queries {record.program.queries} of head 0: where it goes wrong is not known, for "
    assert state(record).startswith(begins + reason)


@pytest.mark.parametrize("problem_id", drawn(["p03", "p06"], 2))
def test_right_answers_have_none(problem_id):
    assert messages(problem_id, model_answer(problem_id), "plain") == {}


@pytest.mark.parametrize(
    "name",
    drawn(["p02-weights_forgotten", "p08-dk_not_scaled", "p09-own_key_hidden_for_dk_and_dv"], 3),
)
def test_problems_without_such_a_loop_have_none(name, calls):
    (wrong,) = (mutant for mutant in MUTANTS if mutant.id == name)
    source = wrong.applied_to(whole_answer(wrong.problem))
    found = messages(wrong.problem, source, wrong.checks[0])
    assert found and traces(found) == {}
    assert calls and not any(call.followed for call in calls)


def test_calls_that_are_to_be_refused_have_none():
    source = re.sub(r"raise ValueError", "print", model_answer("p03"))
    found = messages("p03", source, "plain", "arguments")
    assert traces(found) == {}


def test_a_call_that_is_followed_shows_the_same_as_one_that_is_not():
    problem = load_problem("p06")
    source = Source("p06", model_answer("p06").encode())
    session = Session(problem, source, device="cpu", machine=True, budget=Budget(problem.limits))
    check = problem.check("window")
    index, case = next(iter(problem.cases(check, SEED).items()))
    inputs = CheckCase(problem, check, index, case).inputs(SEED)
    try:
        shape = RoundsShape.of(case, source.num_lines, row=5)
        plain, followed = (
            session.call(case, inputs, ("out", "lse"), traced=True, follow=follow)
            for follow in (None, shape)
        )
    finally:
        session.close()
    assert plain.rounds is None and followed.rounds is not None
    assert plain.trace.arrays.keys() == followed.trace.arrays.keys()
    for name, values in plain.trace.arrays.items():
        assert np.array_equal(values, followed.trace.arrays[name]), name
    result = Result(("out",), False, False)
    assert look("p06", case, plain.trace, result) == look("p06", case, followed.trace, result)
    maps = [tile_map(counted_pairs("p06", case, e.trace, "out")) for e in (plain, followed)]
    assert maps[0] == maps[1] and maps[0] is not None


def test_it_is_the_call_that_was_made_anyway(calls):
    messages("p03", UNSCALED_SUM, "plain", "unequal")
    assert [call.followed for call in calls if call.traced] == [True, False]


def test_what_one_known_mistake_explains_is_not_looked_at_again(calls):
    (wrong,) = (m for m in MUTANTS if (m.problem, m.name) == ("p04", "no scale"))
    checks = ("plain", "lse", "half")
    judged = judge(wrong.applied_to(whole_answer("p04")), load_problem("p04"), checks=checks)
    assert judged.named == {"SCALE-MISSING"} and {c for c, _ in judged.wrong} == set(checks)
    assert [call.dtype for call in calls if call.traced] == ["fp32"]  # in plain, of three cases
    assert judged.findings.cases["plain", 0].message.tiles is not None


def test_where_following_fails_the_kernels_are_watched_all_the_same(monkeypatch):
    call = Session.call

    def broken(self, *args, follow=None, **kwargs):
        evidence = call(self, *args, **kwargs)
        if follow is None:
            return evidence
        failed = Reply("", Status.TRACE_FAILED, text="a round ended badly")
        return dataclasses.replace(evidence, result=failed, trace=None)

    monkeypatch.setattr(Session, "call", broken)
    found = messages("p03", UNSCALED_SUM, "plain", "unequal")
    assert traces(found) == {} and found["plain", 0].tiles is not None


def test_v_of_another_head_is_told_apart_from_other_rows_of_v():
    mutants = {mutant.id: mutant for mutant in MUTANTS}
    for name, case, fact in (
        ("p05-groups_for_k_alone", "groups:1", "of another kv head, not V of its own keys"),
        ("p05-v_not_advanced", "plain:1", "from row 0 on, not V of its own keys"),
    ):
        record = trace("p05", mutants[name].applied_to(whole_answer("p05")), case)
        parting = record.rounds[record.parting.number - 1]
        assert parting.facts == (f"its weights met V {fact}",)


def test_one_name_parts_and_two_part():
    mutant = next(m for m in MUTANTS if m.id == "p06-safe_maximum_kept_as_the_running_one")
    record = trace("p06", mutant.applied_to(whole_answer("p06")), "unaligned_window:8")
    assert record.parting.text.endswith("; running_sum diverges with it")


@pytest.mark.parametrize("problem_id", ["p04", *drawn(["p02", "p08"], 2)])
def test_the_call_that_counts_work_is_followed_and_no_other_is_made(problem_id, calls):
    figures = count_work(whole_answer(problem_id), load_problem(problem_id)).figures
    assert [call.followed for call in calls] == [problem_id == "p04"]
    assert (figures.trace is not None) == (problem_id == "p04")
    if figures.trace is not None:
        record = figures.trace
        assert record.result == "right" and len(record.rounds) == min(record.tiles, MOST_SHOWN)
        assert record == trimmed(trace("p04", whole_answer("p04"), "work:1", seed=SEED))


def test_work_is_counted_where_following_fails(monkeypatch):
    monkeypatch.setattr(Called, "report", lambda *_: 1 / 0)
    figures = count_work(whole_answer("p04"), load_problem("p04")).figures
    assert figures is not None and figures.trace is None


def test_long_and_odd_names_are_cut_and_the_state_is_told():
    name = "ſumme_" + "長" * 90
    source = re.sub(r"\brunning_sum\b", name, UNSCALED_SUM)
    (record,) = traces(messages("p03", source, "plain")).values()
    assert record.parting.number == 2 and len(record.parting.names[0].encode()) <= 64 + 2
    assert len(record.model_dump_json()) < 32_000
    lines = message_lines("p03", causes(problem_with(record))[0], 80)
    assert "wrong in tile 2" in " ".join(" ".join(lines).split())


def test_a_line_without_an_end_is_cut():
    long = "running_sum = running_sum + tl.sum(p, 1)" + "  # " + "x" * 200_000
    source = model_answer("p03").replace(SUM, long)
    (record,) = traces(messages("p03", source, "plain")).values()
    assert record.parting.number == 2 and len(record.model_dump_json()) < 32_000


def test_nan_in_the_state_is_no_number_and_parts():
    wrong = "running_sum = (running_sum * rescale + tl.sum(p, 1)) * float('nan')"
    (record,) = traces(messages("p03", model_answer("p03").replace(SUM, wrong), "plain")).values()
    assert record.parting.number == 1 and record.parting.names[0] == "running_sum"
    assert "nan" in {value for shown in record.rounds[0].shown for value in shown.yours}


def forged(shape, generator):
    """A block whose numbers are in range for the most part, and mean nothing."""
    memory = np.zeros(shape.total_bytes, np.uint8)
    arrays = shape.arrays(memory)
    head = arrays["head"]
    head.view(np.int64)[:] = generator.integers(0, 5, len(head.dtype))
    head["rounds"] = generator.integers(1, 9)
    head["tile_q"] = tile_q = generator.choice([1, 16, 40])
    for name, end in (("queries", shape.rows), ("keys", shape.keys)):
        spread = generator.random(arrays[name].shape) < 0.1
        run = np.arange(arrays[name].shape[-1]) + generator.integers(0, 16)
        run = np.broadcast_to(np.where(run < min(end, 40), run, -1), spread.shape)
        arrays[name][:] = np.where(spread, generator.integers(-1, end + 3, spread.shape), run)
    arrays["kernel"][:] = generator.bytes(64)
    variables = arrays["variables"]
    variables["name"] = [generator.bytes(64) for _ in variables]
    variables["name"][0] = b"running_max"
    for name in ("carried", "of_products"):
        variables[name] = generator.integers(0, 2, variables.shape)
    numbers = arrays["rounds"].view(np.int64)
    numbers[:] = generator.integers(0, 3, numbers.shape)
    arrays["present"][:] = generator.integers(0, 2, arrays["present"].shape)
    taken = arrays["taken"][:9, :tile_q]
    taken[:] = generator.integers(0, 2, taken.shape)
    bad = [0.0, np.nan, np.inf, -np.inf, 3e38]
    for name in ("vectors", "matrices"):
        values = arrays[name][:9, :, :tile_q]
        any_ = generator.normal(size=values.shape)
        values[:] = np.where(generator.random(any_.shape) < 0.3, generator.choice(bad), any_)
    return Rounds.of(shape, memory)


@pytest.fixture(scope="module")
def called():
    """A case of p06 that is wrong in some rows."""
    problem = load_problem("p06")
    source = Source("p06", model_answer("p06").encode())
    check = problem.check("window")
    case = next(iter(problem.cases(check, SEED).values()))
    inputs = make_inputs(problem, case, case_seed(SEED, "p06", "window", 0))
    expected = expect(problem, case, inputs, ("out", "lse"))
    outputs = {name: truth.float().clone() for name, truth in expected.truth.items()}
    outputs["out"][..., 3:, 2] = 9.0
    evidence = CallEvidence(result=Reply("", Status.OK), outputs=outputs)
    differences = find_differences(outputs, expected)
    assert differences
    place = (problem, source, check, 1, case, SEED)
    return Called(*place, inputs, expected, evidence, differences)


def test_of_queries_whose_results_are_right_nothing_is_known(called):
    rounds = forged(called.to_follow(), np.random.default_rng(1))
    right = np.where(np.arange(len(rounds.queries)) < 3, np.arange(len(rounds.queries)), -1)
    rounds = dataclasses.replace(rounds, queries=right)
    assert not called.report(dataclasses.replace(called.evidence, rounds=rounds)).is_known


@pytest.mark.parametrize("seed", range(20))
def test_a_forged_block_stops_neither_the_judge_nor_its_messages(called, seed):
    rounds = forged(called.to_follow(), np.random.default_rng(seed))
    assert rounds is not None
    record = called.report(dataclasses.replace(called.evidence, rounds=rounds)).record
    few = trimmed(record)
    assert len(few.rounds) <= MOST_SHOWN and len(few.model_dump_json()) < 100_000
    (cause,) = causes(problem_with(few))
    assert not any(CONTROL.search(line) for line in message_lines("p06", cause, 80))
    page_of(problem_with(few))


def test_one_message_speaks_of_one_query():
    mask = "keys[None, :] <= queries[:, None]"
    source = edited(model_answer("p04"), (mask, f"{mask} + 3"))
    judged = judge(source, load_problem("p04"), checks=("plain",))
    (cause,) = judged.findings.causes
    assert cause.diagnosis.id == "P04-KEYS-AFTER-THE-QUERY"
    message = judged.wrong["plain", 0].message
    query = re.match(r"out\[0, 0, (\d+), ", message.worst)[1]
    assert f"query {query} of head 0 counted " in cause.diagnosis.note
    assert f"such as query {query} and key " in state(message.trace)


def test_a_state_in_bf16_is_compared():
    scale = "q, default_scale(softmax_scale, head_dim)"
    wrong = edited(whole_answer("p04"), (scale, f"{scale} * (1 + (q.dtype == torch.bfloat16))"))
    message = next(iter(messages("p04", wrong, "half").values()))
    assert "bf16" in message.input and message.help is None and message.trace.rounds
