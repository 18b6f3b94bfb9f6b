"""Time that calls may take, and that a call which ends the worker costs its own case alone."""

import itertools
import sys

import pytest

from grader.checks import outcome
from grader.isolate import sandbox
from grader.isolate.session import Budget, Session
from grader.judge.case import CheckCase
from grader.kernel.observers.trace import Counter
from grader.source.submission import Source
from grader.spec.findings import CaseBegins
from grader.spec.grade_record import Verdict
from grader.spec.inputs import make_inputs
from grader.spec.problem import load_problem
from grader.spec.problem_tables import Limits
from grader.spec.protocol import Status
from tests import forked
from tests.harness import edited, judge, model_answer, run_of
from tests.shares import drawn

LIMITS = Limits(call_s=20.0, lost_s=25.0, total_s=180.0)
P02 = load_problem("p02").model_copy(update={"limits": Limits(call_s=1, lost_s=2, total_s=60)})
CALL = "    check_matrix_and_vector(x, w)\n"

_quick = forked.quick


def answer(line: str) -> str:
    """The model answer of p02 with a line put before its argument checks."""
    source = edited(model_answer("p02"), (CALL, f"    {line}\n{CALL}"))
    return "import ctypes, os, sys, time\n" + source


@pytest.mark.parametrize(
    ("slowest_s", "call_s", "compiles_s"),
    [(None, 2.5, 2.5), (0.1, 2.5, 2.5), (0.7, 7.0, 7.0), (9.0, 20.0, 60.0)],
)
def test_patience_is_short_after_a_call_that_did_not_come_back(slowest_s, call_s, compiles_s):
    """By then a call has the limit of the problem, and three times as much to compile."""
    budget = Budget(LIMITS)
    if slowest_s:
        budget.count(slowest_s, came_back=True)
    assert (budget.call_s(compiles=False), budget.call_s(compiles=True)) == (20.0, 60.0)
    budget.count(20.0, came_back=False)
    assert budget.call_s(compiles=False) == pytest.approx(call_s)
    assert budget.call_s(compiles=True) == pytest.approx(compiles_s)
    assert budget.used_up() is None


def test_lost_time_and_all_time_run_out_apart():
    budget = Budget(LIMITS)
    budget.count(24.9, came_back=False)
    assert budget.used_up() is None
    budget.count(0.2, came_back=False)
    assert "calls that did not come back took 25 s of 25 s" in budget.used_up()
    budget = Budget(LIMITS)
    budget.count(0.1, came_back=True)
    budget.check = "ragged"
    budget.count(25.0, came_back=False)
    assert "calls that did not come back took 25 s of 25 s" in budget.used_up()
    budget.check = "groups"
    assert budget.used_up() is None
    budget = Budget(LIMITS)
    for _ in range(10):
        budget.count(18.0, came_back=True)
    assert "the calls of this problem took 180 s" in budget.used_up()


def test_time_that_an_earlier_process_spent_counts():
    assert Budget(LIMITS, spent_s=181.0).used_up() is not None
    assert Budget(LIMITS, lost_s=26.0).used_up() is not None


@pytest.mark.parametrize(
    ("line", "verdict"),
    drawn([
        ("if x.shape[0] == 7: time.sleep(600)", Verdict.TIMEOUT),
        ("if x.shape[0] == 7: os._exit(3)", Verdict.CRASH),
        ("if x.shape[0] == 7: ctypes.string_at(0)", Verdict.CRASH),
        ("if x.shape[0] == 7: sys.exit(0)", Verdict.ERROR),
        ("if x.shape[0] == 7: bytes(2**40)", Verdict.OUT_OF_MEMORY),
    ], 2),
)  # fmt: skip
def test_what_ends_a_worker_costs_its_case_and_not_the_rest(line, verdict):
    checks = ("plain", "ragged_rows", "ragged_cols")
    found = judge(answer(line), P02, checks=checks, policy=False)
    assert {place: f.verdict for place, f in found.wrong.items()} == {("ragged_rows", 2): verdict}
    assert found.of("plain").verdict is found.of("ragged_cols").verdict is Verdict.PASS


WAITS = """while x.numel():
        # >>> step 8: what the loop spends its time with
        x.double().sort()
        # <<< step 8
        # >>> step 9: what it waits for
        x = x + 0
        # <<< step 9
"""
WHOLE = """# >>> step 8: a loop
    while x.numel():
        x.double().sort()
    # <<< step 8
"""


@pytest.mark.parametrize(("loop", "step"), [(WAITS, None), (WHOLE, 8)])
def test_a_call_that_was_stopped_has_a_step_where_its_whole_loop_is_one(loop, step):
    """In which line of a loop it is stopped is no evidence of which is wrong."""
    found = judge(answer(loop), P02, checks=("plain",), enough=lambda findings: True)
    message = found.findings.cases["plain", 0].message
    assert message.headline.startswith("no result after") and message.line
    assert message.step == step


def test_memory_that_a_call_keeps_costs_the_next_case_at_most():
    """Until there is no room for the next call's tensors; a new worker has it again."""
    head = "import mmap\nHELD = []\n"
    line = "HELD.append(mmap.mmap(-1, 2**31 + 2**30, mmap.MAP_PRIVATE))"
    source = head + model_answer("p02").replace(CALL, f"    {line}\n{CALL}")
    found = judge(source, P02, checks=("ragged_rows",))
    verdicts = [f.verdict for f in found.findings.cases.values()]
    assert Verdict.OUT_OF_MEMORY in verdicts and set(verdicts) <= {
        Verdict.OUT_OF_MEMORY,
        Verdict.PASS,
    }
    assert all(Verdict.PASS in pair for pair in itertools.pairwise(verdicts))


def test_an_endless_loop_in_every_call_costs_one_timeout_and_little_more():
    found = judge(answer("time.sleep(600)"), P02, checks=("plain", "ragged_rows"))
    verdicts = [finding.verdict for finding in found.findings.cases.values()]
    assert set(verdicts) == {Verdict.TIMEOUT}
    ran = [f for f in found.findings.cases.values() if not f.message.not_run]
    assert len(ran) in (1, 2)  # the first has 1 s, the second what patience is left, if any
    assert found.of("plain").points.earned == 0


def test_a_compile_without_end_costs_its_own_case():
    compiles = (
        "exec(compile('time.sleep(600)', '/somewhere/triton/compiler/compiler.py', 'exec'),"
        " globals()) if x.shape[0] == 32 else None"
    )
    found = judge(answer(compiles), P02, checks=("one_program", "plain"))
    slow = [finding for finding in found.findings.cases.values() if finding.message]
    assert [finding.verdict for finding in slow] == [Verdict.TIMEOUT]
    assert slow[0].message.headline.startswith("Triton was still compiling after 1 s: ")
    assert "static_range" in slow[0].message.help
    assert found.of("plain").points.earned == found.of("plain").points.available


def test_a_check_that_hangs_takes_no_other_along():
    """Nor the one that compiles, which has a time of its own."""
    hangs = "time.sleep(600) if x.shape[0] in (1, 7, 9, 63, 65) else None"
    checks = ("plain", "ragged_rows", "ragged_cols", "compiles")
    found = judge(answer(hangs), P02, checks=checks)
    assert found.of("ragged_rows").verdict is Verdict.TIMEOUT
    late = [f.message for f in found.findings.cases.values() if f.message and f.message.not_run]
    assert "calls that did not come back took" in late[0].headline  # of the same check
    for check in ("plain", "ragged_cols", "compiles"):
        assert found.of(check).verdict is Verdict.PASS, check


def test_calls_just_under_the_limit_end_with_what_was_earned():
    limits = Limits(call_s=1.5, lost_s=3, total_s=3.5)
    problem = P02.model_copy(update={"limits": limits})
    # The first case takes three calls.
    found = judge(answer("time.sleep(0.75)"), problem, checks=("plain", "ragged_rows"))
    assert found.of("plain").cases_passed >= 1
    assert found.of("ragged_rows").verdict is Verdict.TIMEOUT
    assert "all that they may take" in found.of("ragged_rows").message.headline


def test_a_worker_that_never_starts_is_not_started_for_each_case(monkeypatch):
    starts = []

    def start(command, **options):
        starts.append(command)
        return reaper_start([sys.executable, "-c", "raise SystemExit(7)"], **options)

    reaper_start = sandbox.reaper.start
    monkeypatch.setattr(sandbox.reaper, "start", start)
    monkeypatch.setattr(sandbox.forks, "start", lambda *_: None)
    source = Source("p02", answer("pass").encode())
    session = Session(P02, source, device="cpu", machine=True, budget=Budget(LIMITS))
    case = next(iter(P02.cases(P02.check("plain"), "5eed").values()))
    found = [session.call(case, make_inputs(P02, case, 0), ("y",)) for _ in range(9)]
    told = [outcome.of_call(evidence, P02.signature) for evidence in found]
    assert {(one.verdict, one.headline) for one in told} == {
        (
            Verdict.INTERNAL,
            "the judge's worker did not start: the process exited with code 7 during the start",
        )
    }
    assert len(starts) == 6  # a worker that plans and one that carries out, three times


def test_when_the_time_is_used_up_no_worker_imports_the_submission():
    """Its import is what may have taken the time: by stopping the test process, say."""
    plain = P02.check("plain")
    events = []
    run = run_of(answer("os.abort()"), P02, send=events.append)
    run.sessions.budget.lost_s = 99.0
    at = CheckCase(P02, plain, 0, P02.cases(plain, "5eed")[0])
    finding = run.judge(at)
    assert finding.verdict is Verdict.TIMEOUT
    assert finding.message.headline.startswith("not run: calls that did not come back")
    assert events == [CaseBegins(check="plain", index=0)]
    assert run.sessions.of(at)._workers == []


def test_a_worker_that_the_judge_could_not_start_has_run_nothing(monkeypatch):
    """So the fault, if it comes back, is not the submission's doing."""
    run = run_of(answer("pass"), P02)

    def start(self):
        raise OSError("no space left on device")

    monkeypatch.setattr(Session, "start", start)
    with pytest.raises(OSError):
        run.judge(CheckCase(P02, P02.check("plain"), 0, P02.cases(P02.check("plain"), "1")[0]))
    assert run.calls == 0


def test_a_file_that_cannot_be_imported_is_told_once():
    found = judge("import no_such_module\n", P02, checks=("plain",))
    first, *rest = found.findings.cases.values()
    assert first.verdict is Verdict.ERROR and "no_such_module" in first.message.headline
    assert {finding.verdict for finding in rest} == {Verdict.SKIPPED}
    assert all(finding.message.not_run for finding in rest)


def test_a_call_is_traced_where_that_is_asked_for_and_the_machine_runs_it():
    source = Source("p02", model_answer("p02").encode())
    session = Session(P02, source, device="cpu", machine=True, budget=Budget(LIMITS))
    (case, *_) = P02.work_cases("5eed")
    inputs = make_inputs(P02, case, 7)
    try:
        for traced in (True, False, True):
            evidence = session.call(case, inputs, ("y",), traced=traced)
            assert evidence.result.status == Status.OK
            assert (evidence.trace is not None) == traced
            if traced:  # each call has a block of its own
                assert evidence.trace.count(Counter.LAUNCHES) == 1
                read = evidence.trace.count(Counter.DISTINCT_READ)
                assert read == case.rows * case.cols + case.cols
    finally:
        session.close()
