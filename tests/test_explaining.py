"""An error of the judge's own while it looks for a cause changes no verdict, and is told."""

from __future__ import annotations

import types

from grader import looking, pytest_plugin
from grader.manifest import load_problem
from grader.model import Verdict
from tests.harness import judge, model_answer


def failing(*args, **kwargs):
    raise IndexError("a rule of the judge's is wrong")


def test_a_wrong_result_stays_wrong_where_the_judge_cannot_say_why(monkeypatch):
    monkeypatch.setattr(looking, "look", failing)
    source = model_answer("p04").replace("out = acc /", "out = 2.0 * acc /")
    judged = judge(source, load_problem("p04"), checks=("plain",))
    finding = judged.findings.cases[("plain", 0)]
    assert finding.verdict is Verdict.FAIL and finding.message is not None
    assert finding.message.help is not None
    assert "please report this error: IndexError" in finding.message.help


def test_verdicts_stand_where_the_judge_cannot_settle_on_causes():
    trial = types.SimpleNamespace(
        problem=types.SimpleNamespace(id="p04"),
        judged=types.SimpleNamespace(causes=failing),
        source=types.SimpleNamespace(step_at=None),
    )
    said: list[str] = []
    assert pytest_plugin._causes(trial, said.append) == []
    (text,) = said
    assert text.startswith("p04: the judge failed to find causes: IndexError")
