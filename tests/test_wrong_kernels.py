"""Every wrong kernel of tests/mutants.py is rejected by a wide margin, and named where possible.

On the CPU, Triton's interpreter runs the mutants; on a machine with a GPU, only those that show
there alone are compiled.
"""

from __future__ import annotations

import functools

import pytest
import torch

import reference
from grader.manifest import ROOT, Check, load_problem, problem_ids
from grader.model import CheckResult, Verdict
from grader.policy import Source
from grader.scoring import score_correctness
from grader.session import CaseFailed, Finding, Session
from grader.testrun import check_result, likely_causes
from tests.mutants import MUTANTS, Mutant

SEED = "5eed"
NO_WORK = {mutant.problem: mutant for mutant in MUTANTS if mutant.name == "zeros"}
WRONG = [mutant for mutant in MUTANTS if mutant.name != "zeros"]
WIDE = 3.0  # error / allowed below which a wrong kernel might pass with other inputs


@functools.cache
def model_answer(problem_id: str) -> str:
    """Source of the model answer."""
    return (ROOT / "solutions" / problem_id / load_problem(problem_id).file).read_text("utf-8")


def session_of(problem_id: str, source: str, *, device: str = "cpu") -> Session:
    """A worker that runs `source`, in Triton's interpreter on the CPU."""
    torch.set_num_threads(1)
    problem = load_problem(problem_id)
    data = Source(problem_id, ROOT / problem_id / problem.file, source.encode())
    interpret = problem.uses_triton and device == "cpu"
    return Session(problem, data, device=device, interpret=interpret, seed=SEED)


def run_case(session: Session, check: Check, index: int) -> Finding:
    """Run one case of a check as problems/pNN/test_pNN.py does."""
    problem = session.problem
    case = check.cases_on(session.device, triton=problem.uses_triton)[index]
    try:
        if case.invalid:
            session.expect_value_error(check, case, index)
        else:
            oracle = getattr(reference, reference.BASELINE[problem.id])
            session.compare(check, case, index, oracle)
    except CaseFailed as failed:
        return failed.finding
    return Finding(Verdict.PASS)


def run_check(session: Session, check: Check, *, failures: int) -> dict[int, Finding]:
    """Run the cases of a check in order until enough have failed; by index what came of each."""
    findings = {}
    cases = check.cases_on(session.device, triton=session.problem.uses_triton)
    for index in range(len(cases)):
        findings[index] = run_case(session, check, index)
        wrong = [f for f in findings.values() if f.verdict != Verdict.PASS]
        enough = len(wrong) >= failures
        if enough and (failures == 1 or result_of(session, check, findings).diagnosis):
            break
    return findings


def result_of(session: Session, check: Check, findings: dict[int, Finding]) -> CheckResult:
    """What the grader makes of a check's findings: verdict and the cause it names."""
    found = {index: finding.to_json() | {"duration_s": 0.0} for index, finding in findings.items()}
    causes = likely_causes(found.values())
    return check_result(session.problem, check, session.device, found, "not run", causes)


@pytest.mark.parametrize("mutant", WRONG, ids=lambda mutant: mutant.id)
def test_wrong_kernel_is_rejected(mutant: Mutant, record_property) -> None:
    source = mutant.applied_to(model_answer(mutant.problem))
    if mutant.needs_cuda and not torch.cuda.is_available():
        pytest.skip(f"needs a CUDA GPU: {mutant.needs_cuda}")
    session = session_of(mutant.problem, source, device="cuda" if mutant.needs_cuda else "cpu")
    checks = [session.problem.check(id) for id in mutant.checks]
    wrong = None
    try:
        for check in checks:
            findings = run_check(session, check, failures=3 if mutant.expected_id else 1)
            wrong = [f for f in findings.values() if f.verdict != Verdict.PASS]
            if wrong:
                break
    finally:
        session.close()
    assert wrong, f"{mutant.id} passes {', '.join(mutant.checks)}"
    if mutant.caught_as:
        assert mutant.caught_as in wrong[0].message.headline
        return
    assert {finding.verdict for finding in wrong} == {Verdict.FAIL}, wrong[0].message
    margin = max(finding.margin for finding in wrong if finding.margin is not None)
    record_property("margin", margin)
    assert margin > WIDE
    if mutant.expected_id:
        diagnosis = result_of(session, check, findings).diagnosis
        named = diagnosis.id if diagnosis else [[c.id for c in f.candidates] for f in wrong]
        assert named == f"{mutant.problem.upper()}-{mutant.expected_id}"


@pytest.mark.parametrize("problem_id", problem_ids())
def test_no_work_earns_nothing(problem_id: str) -> None:
    """Zeros fail every check but that of the arguments, and come to no point."""
    mutant = NO_WORK[problem_id]
    session = session_of(problem_id, mutant.applied_to(model_answer(problem_id)))
    try:
        results = [
            result_of(session, check, run_check(session, check, failures=1))
            for check in session.problem.checks
        ]
    finally:
        session.close()
    assert [r.id for r in results if r.verdict == Verdict.PASS] == ["arguments"]
    component, _ = score_correctness(results, session.problem.points["correctness"])
    assert component.points.earned == 0
    first = next(r for r in results if r.id == mutant.checks[0])
    assert first.diagnosis.id == f"{problem_id.upper()}-{mutant.expected_id}"


def test_every_problem_has_mutants() -> None:
    assert {mutant.problem for mutant in MUTANTS} == set(problem_ids())
    assert len({mutant.id for mutant in MUTANTS}) == len(MUTANTS)
