"""`python -m tests.seeds`: a share of what it judges, and that it finds what it looks for."""

from __future__ import annotations

import dataclasses
import datetime
import json
import secrets

import pytest

from grader.spec.problem import problem_ids
from tests import seeds, trials
from tests.forked import forked_workers
from tests.harness import SEED
from tests.mutants import MUTANTS
from tests.trials import Trial


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with forked_workers():
        yield


@pytest.mark.parametrize("seed", [secrets.token_hex(4) for _ in range(2)], ids=["one", "other"])
@pytest.mark.parametrize("problem_id", problem_ids())
def test_todays_share_does_not_depend_on_the_seed(problem_id: str, seed: str) -> None:
    today = datetime.date.today().toordinal()
    wrong = list(trials.wrong_kernels([problem_id]).values())
    assert trials.rejection(wrong[today % len(wrong)], seed).complaints == ()
    if problem_id == sorted(problem_ids())[today % 7]:  # p08 and p09 take long
        right = [id for id in trials.right_answers("unusual") if id.startswith(problem_id)]
        assert trials.acceptance("unusual", right[today % len(right)], seed).complaints == ()


def mutant(**changes):
    first = next(m for m in MUTANTS if m.id == "p01-no_scale")
    return dataclasses.replace(first, **changes)


def test_a_wrong_kernel_that_passes_is_a_complaint():
    line = "def flash_attention("
    assert trials.rejection(mutant(edits=((line, line),)), SEED).complaints == ("plain accepts it",)


def test_a_wrong_kernel_that_is_rejected_for_something_else_is_a_complaint():
    (complaint,) = trials.rejection(mutant(caught_as="no such headline"), SEED).complaints
    assert complaint == "plain says 'out is wrong', expected 'no such headline'"


def test_a_wrong_name_and_a_wrong_step_are_complaints():
    found = trials.naming(mutant(expected_id=None, step=6), SEED).complaints
    assert found == ("named SCALE-MISSING, expected nothing", "step 1, expected 6")


def test_points_are_complaints_both_ways():
    found = trials.points_left(mutant(earns_nothing=True, keeps=0.5), SEED).complaints
    assert len(found) == 1 and found[0].startswith(
        "keeps 0.00, expected 0.5 or more: lost one_key,"
    )
    line = "def flash_attention("
    found = trials.points_left(mutant(edits=((line, line),), earns_nothing=True), SEED).complaints
    assert [text.split(":")[0] for text in found] == [
        "earns 12.0 points",
        "keeps 1.00, expected 0.0 or more",
    ]


def test_a_right_answer_that_is_rejected_is_a_complaint(monkeypatch):
    wrong = {"p01-x": ("p01", mutant().applied_to(trials.model_answer("p01")))}
    monkeypatch.setattr(trials, "right_answers", lambda kind: wrong)
    complaints = trials.acceptance("unusual", "p01-x", SEED).complaints
    assert complaints[0].startswith("one_key rejects it: lse is wrong (batch=1 ")
    assert complaints[-1] == "earns 0.0 of 12.0 points"


def test_every_source_is_judged_under_every_seed():
    todo = seeds.tasks(seeds.KINDS, problem_ids(), ["a", "b"])
    wrong = [m for m in MUTANTS if m.needs_cuda is None]
    right = len(problem_ids()) + len(trials.right_answers("unusual"))
    assert len(todo) == len(set(todo)) == 2 * (len(wrong) + right)
    assert {id[:3] for _, id, _ in seeds.tasks(seeds.KINDS, ["p03"], ["a"])} == {"p03"}


FOUND = [
    Trial("mutants", "p01-a", "1", margin=40.0),
    Trial("mutants", "p01-a", "2", margin=30.0),
    Trial("mutants", "p01-b", "1", margin=float("inf")),
    Trial("answers", "p01", "1"),
]


@pytest.mark.parametrize("complaints", [(), ("plain accepts it",)])
def test_the_command_shows_what_came_out(complaints, monkeypatch, tmp_path, capsys):
    found = [*FOUND, Trial("mutants", "p02-c", "2", complaints, 8.5)]
    monkeypatch.setattr(seeds, "_judged", lambda todo, jobs: iter(found))
    path = tmp_path / "seeds.json"
    code = seeds.main(["--seeds", "2", "--problems", "p01,p02", "--json", str(path)])
    out = capsys.readouterr().out
    assert code == (1 if complaints else 0)
    assert ("plain accepts it" in out) == bool(complaints)
    record = json.loads(path.read_text("utf-8"))
    assert list(record["smallest_margins"].items()) == [
        ("p02-c", 8.5),
        ("p01-a", 30.0),
        ("p01-b", "inf"),
    ]
    assert len(record["seeds"]) == 2 and len(record["trials"]) == 5


@pytest.mark.parametrize("wrong", ["--kind=mutant", "--problems=p10", "--seeds=many"])
def test_unknown_words_are_refused(wrong, capsys):
    with pytest.raises(SystemExit) as stopped:
        seeds.main([wrong])
    assert stopped.value.code == 2
    assert wrong.split("=")[1] in capsys.readouterr().err
