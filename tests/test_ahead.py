"""Cases that are called ahead of their turn are judged as those that are not."""

from __future__ import annotations

import os
import threading
import time

import pytest

from grader.api import Grader
from grader.causes.diagnose import Casebook
from grader.checks.correctness import expect
from grader.isolate import capacity, usage
from grader.isolate.session import Budget, Session
from grader.judge import answers
from grader.judge.ahead import Ahead, calls_of, last_half
from grader.judge.request import Request
from grader.judge.trial import Trial
from grader.source.submission import Source
from grader.spec.environment import probe
from grader.spec.grade_record import Verdict
from grader.spec.problem import ROOT, load_problem, problem_ids
from tests import forked
from tests.harness import PROMPT_S, SEED, cases_of, judge, model_answer

P02, P04 = load_problem("p02"), load_problem("p04")
CHECKS = ("plain", "half", "products", "ragged_rows", "ragged_cols")
BEHIND = "ragged_cols"  # the last half of those
CALL = "    check_matrix_and_vector(x, w)\n"

_quick = forked.quick


class Calls:
    """Counts the calls of each session, and how long those had that did not come back."""

    def __init__(self, monkeypatch):
        self.made: list[tuple[int, str, bool]] = []
        call = Session.call

        def counted(this, case, inputs, outputs, **how):
            self.made.append((id(this), str(case), how.get("idle", False)))
            return call(this, case, inputs, outputs, **how)

        monkeypatch.setattr(Session, "call", counted)

    @property
    def sessions(self) -> int:
        return len({session for session, _, _ in self.made})


def all_checks(problem):
    return [check.id for check in problem.checks if not check.compiles]


def told(judged):
    """What is said of each case, without times."""
    return {
        place: (f.verdict, f.message.headline if f.message else "", f.margin, f.wrong_outputs)
        for place, f in judged.findings.cases.items()
    }


def test_each_call_is_made_once_in_one_of_two_workers(monkeypatch):
    calls = Calls(monkeypatch)
    alone = judge(model_answer("p02"), P02, checks=all_checks(P02))
    made, calls.made = sorted(call[1:] for call in calls.made), []
    both = judge(model_answer("p02"), P02, checks=all_checks(P02), ahead=True)
    assert sorted(call[1:] for call in calls.made) == made and calls.sessions == 2
    assert told(alone) == told(both) and not both.wrong


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mask=tile_mask, ", "mask=col_mask[None, :], "),  # out of bounds
        ("col_ids < cols", "col_ids < cols - 1"),
        ("        acc += products", "        acc = products"),
    ],
)
def test_what_is_said_of_a_wrong_answer_is_the_same(old, new):
    source = model_answer("p02")
    assert old in source
    source = source.replace(old, new)
    alone, both = (judge(source, P02, checks=CHECKS, ahead=ahead) for ahead in (False, True))
    assert told(alone) == told(both) and alone.wrong
    assert alone.named == both.named


def test_a_case_that_is_wrong_is_not_called_a_second_time(monkeypatch):
    calls = Calls(monkeypatch)
    wrong = model_answer("p02").replace("        acc += products", "        acc += 2.0 * products")
    both = judge(wrong, P02, checks=CHECKS, ahead=True)
    assert both.wrong.keys() == both.findings.cases.keys() and calls.sessions == 2
    assert not any(is_idle for _, _, is_idle in calls.made)  # as before a second call


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("if x.shape[-1] == 65: time.sleep(60)", Verdict.TIMEOUT),
        ("if x.shape[-1] == 65: os._exit(3)", Verdict.CRASH),
        ("if x.shape[-1] == 65: sys.exit(0)", Verdict.ERROR),
        ("if x.shape[-1] == 65: bytes(2**40)", Verdict.OUT_OF_MEMORY),
    ],
)
def test_what_ends_the_second_worker_costs_its_case_and_not_the_rest(line, verdict):
    limits = P02.limits.model_copy(update={"call_s": 2.0})
    problem = P02.model_copy(update={"limits": limits})
    source = "import os, sys, time\n" + model_answer("p02").replace(CALL, f"    {line}\n{CALL}")
    place = next((c.id, i) for c, i, case in cases_of(P02, CHECKS) if case.cols == 65)
    behind = last_half(trial_of(P02), cases_of(P02, CHECKS))
    assert place[0] == BEHIND and {check.id for check, _, _ in behind} == {BEHIND}
    found = judge(source, problem, checks=CHECKS, ahead=True)
    assert {p: f.verdict for p, f in found.wrong.items()} == {place: verdict}
    if verdict is Verdict.TIMEOUT:  # of the time that a call has in its turn
        headline = found.findings.cases[place].message.headline
        assert headline.startswith("no result after 2 s"), headline


def test_what_an_earlier_call_left_behind_is_seen_in_the_second_worker_too():
    head = "LEFT = {}\n"
    line = "x = LEFT.setdefault(x.shape, x.clone())"
    source = head + model_answer("p02").replace(CALL, f"    {line}\n{CALL}")
    found = judge(source, P02, checks=CHECKS, ahead=True)
    for check in ("plain", "ragged_cols"):
        assert "second call" in found.of(check).message.headline


def trial_of(problem):
    return Trial(problem, SEED, Casebook(problem))


def ahead_of(problem, source=None, wants_work=lambda: True):
    data = Source(problem.id, (source or model_answer(problem.id)).encode(), policy=True)

    def open_session(check, budget):
        view = problem.of(check) if check else problem
        return Session(view, data, device="cpu", machine=view.uses_triton, budget=budget)

    trial = trial_of(problem)
    places = cases_of(problem, all_checks(problem))
    return Ahead(trial, places, open_session, wants_work), places, data


def main_session(data, budget=None):
    budget = budget or Budget(P02.limits)
    return Session(P02, data, device="cpu", machine=True, budget=budget)


def test_work_is_counted_behind_right_cases_and_its_time_is_the_sessions():
    ahead, places, data = ahead_of(P02)
    session = main_session(data)
    ahead.start()
    evidence = ahead.take_work(session)
    assert evidence.figures.multiply_adds is None and evidence.figures.elements_read is not None
    spent = session.budget.spent_s
    assert spent > 0 and session.budget.lost_s == 0
    check, index, _ = last_half(trial_of(P02), places)[-1]
    answer = ahead.take(check, index, 0, session)
    assert answer.failure is None and not answer.differences and session.budget.spent_s > spent
    assert not usage.descendants(os.getpid()) or all_ended()
    ahead.close()


def all_ended():
    """Whether no worker is left: the fork server may be."""
    names = []
    for pid in usage.descendants(os.getpid()):
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            names.append(file.read())
    return not any(b"worker.py" in name for name in names)


def test_no_work_is_counted_where_none_is_wanted_or_a_case_is_wrong():
    wrong = model_answer("p02").replace("col_ids < cols", "col_ids < cols - 1")
    for source, wants in ((wrong, True), (None, False)):
        ahead, _, data = ahead_of(P02, source, lambda wants=wants: wants)
        ahead.start()
        assert ahead.take_work(main_session(data)) is None


def test_a_session_takes_no_call_that_it_would_not_have_made():
    ahead, places, data = ahead_of(P02)
    ahead.start()
    check, index, _ = last_half(trial_of(P02), places)[0]
    used_up = main_session(data, Budget(P02.limits, lost_s=1000.0))
    assert ahead.take(check, index, 0, used_up) is None
    ahead.close()


def test_nothing_is_made_ahead_before_the_start_or_of_what_has_begun():
    ahead, places, data = ahead_of(P02)
    chosen = last_half(trial_of(P02), places)
    check, index, _ = chosen[-1]
    session = main_session(data)
    assert ahead.take(check, index, 0, session) is None  # before the start
    ahead.start()
    assert ahead.take(check, index, 0, session) is None
    ahead.close()


def test_closing_ends_a_call_under_way_and_its_worker():
    source = "import time\n" + model_answer("p02").replace(CALL, f"    time.sleep(60)\n{CALL}")
    ahead, places, data = ahead_of(P02, source)
    ahead.start()
    time.sleep(0.5)
    start = time.monotonic()
    ahead.close()
    check, index, _ = last_half(trial_of(P02), places)[0]
    assert ahead.take(check, index, 0, main_session(data)) is None
    assert time.monotonic() - start < PROMPT_S and all_ended()
    ahead.start()  # too late
    assert all_ended()


@pytest.mark.parametrize("problem_id", problem_ids())
def test_the_last_half_is_whole_checks_and_always_the_same(problem_id):
    problem = load_problem(problem_id)
    trial = trial_of(problem)
    places = cases_of(problem, [check.id for check in problem.checks])
    half = last_half(trial, places)
    assert half == last_half(trial, places) and half
    ids = {check.id for check, _, _ in half}
    called = [placed for placed in places if calls_of(*placed)]
    assert half == [placed for placed in called if placed[0].id in ids] == called[-len(half) :]
    assert len(half) < len(called)
    assert not any(check.compiles or case.invalid for check, _, case in half)
    assert last_half(trial, []) == [] and last_half(trial, places[-1:]) == []


@pytest.mark.parametrize(
    ("cores", "free", "device", "jailed", "expected"),
    [
        (2, 2**32, "cpu", False, True),
        (1, 2**32, "cpu", False, False),
        (2, 2**29, "cpu", False, False),
        (2, 2**32, "cuda", False, False),
        (2, 2**32, "cpu", True, False),  # for credit all cases run in one worker
    ],
)
def test_a_problem_has_a_second_worker_where_there_is_room(
    monkeypatch, cores, free, device, jailed, expected
):
    monkeypatch.setattr(capacity, "free_bytes", lambda: free)
    environment = probe("cpu").model_copy(update={"device": device})
    request = Request(
        submission=ROOT / "solutions",
        shown_as="solutions",
        problems=("p02",),
        environment=environment,
        seed=SEED,
        jailed=jailed,
    )
    grader = Grader(request, progress=None)
    assert grader._calls_ahead(cores) is expected


def test_what_is_expected_is_computed_for_calls_that_are_made(monkeypatch):
    computed = []

    def expected(problem, case, inputs, names):
        computed.append((str(case), threading.current_thread().name))
        return expect(problem, case, inputs, names)

    monkeypatch.setattr(answers, "expect", expected)
    judged = judge(model_answer("p02"), P02, checks={"plain"})
    assert not judged.wrong and len(computed) == 1 + len(judged.findings.cases)
    assert all(thread.startswith("expected") for _, thread in computed)  # beside the worker
    computed.clear()
    judge((ROOT / "problems/p02" / P02.file).read_text("utf-8"), P02, checks={"plain", "half"})
    assert len(computed) <= 1  # nothing of the stub is implemented: no other call is made
