"""What is said where the judge fails to look for a cause, and of results that were kept."""

import types

from grader.judge import looks, pytest_run
from grader.spec.grade_record import Verdict
from grader.spec.problem import load_problem
from tests import forked
from tests.harness import judge, model_answer, whole_answer
from tests.mutants import MUTANTS
from tests.mutants.common import SECOND_CALL

_quick = forked.quick


def failing(*args, **kwargs):
    raise IndexError("a rule of the judge's is wrong")


def test_a_wrong_result_stays_wrong_where_the_judge_cannot_say_why(monkeypatch):
    monkeypatch.setattr(looks, "look", failing)
    source = model_answer("p04").replace("out = acc /", "out = 2.0 * acc /")
    judged = judge(source, load_problem("p04"), checks=("plain",))
    finding = judged.findings.cases[("plain", 0)]
    assert finding.verdict is Verdict.FAIL and finding.message is not None
    assert finding.message.help is not None
    assert "please report this error: IndexError" in finding.message.help


def test_a_result_that_was_kept_is_told_in_whichever_case_it_comes():
    (kept,) = (m for m in MUTANTS if (m.problem, m.name) == ("p08", "dq kept by shape"))
    judged = judge(
        kept.applied_to(whole_answer("p08")), load_problem("p08"), checks=("dq", "plain")
    )
    said = {place: finding.message.headline for place, finding in judged.wrong.items()}
    assert {check for check, _ in said} == {"dq", "plain"}
    assert set(said.values()) == {f"dq {SECOND_CALL}"}


def test_what_hangs_on_no_values_was_not_kept():
    source = model_answer("p04").replace("out = acc /", "out = 1.0 + 0.0 * acc /")
    judged = judge(source, load_problem("p04"), checks=("plain", "half"))
    assert judged.wrong
    assert all(f.message.headline[-8:] == "is wrong" for f in judged.wrong.values())


def test_verdicts_stand_where_the_judge_cannot_settle_on_causes():
    run = types.SimpleNamespace(problem=types.SimpleNamespace(id="p04"), causes=failing)
    said: list[str] = []
    assert pytest_run._causes(run, said.append) == []
    (text,) = said
    assert text.startswith("p04: the judge failed to find causes: IndexError")
