"""`python -m tests.seeds`: a share of what it judges, and that it finds what it looks for."""

import dataclasses
import functools
import secrets
from unittest import mock

import pytest

from grader.judge.testrun import Findings
from grader.spec.grade_record import Points
from grader.spec.problem import load_problem, problem_ids
from tests import forked, seeds, trials
from tests.harness import SEED
from tests.mutants import MUTANTS, Mutant
from tests.shares import drawn, of_all
from tests.unusual import ANSWERS, Unusual
from tests.wrong import WRONG as WRONG_ANSWERS

_quick = forked.quick


WRONG = drawn(trials.wrong_kernels(problem_ids()).values(), 1000)  # one of each problem
RIGHT = [answer for answer in ANSWERS if answer.problem < "p08" and answer.lacks() is None]


@pytest.mark.parametrize("wrong", drawn(WRONG, 9, of_all), ids=lambda wrong: wrong.id)
def test_a_wrong_kernel_is_rejected_whatever_the_seed(wrong: Mutant) -> None:
    assert trials.rejection(wrong, secrets.token_hex(4)) == []


@pytest.mark.parametrize("right", drawn(RIGHT, 1000, of_all), ids=lambda a: a.id)
def test_a_right_answer_passes_whatever_the_seed(right: Unusual) -> None:
    assert trials.acceptance("unusual", right.id, secrets.token_hex(4)) == []


def mutant(**changes):
    first = next(m for m in MUTANTS if m.id == "p01-no_scale")
    return dataclasses.replace(first, **changes)


def judging(monkeypatch, *checks):
    """Have these checks alone judged: the others count as not passed."""
    monkeypatch.setattr(trials, "judge", functools.partial(trials.judge, checks=checks))


def test_a_wrong_kernel_that_passes_is_a_complaint():
    line = "def flash_attention("
    assert trials.rejection(mutant(edits=((line, line),)), SEED) == ["plain accepts it"]


def test_a_wrong_kernel_that_is_rejected_for_something_else_is_a_complaint():
    (complaint,) = trials.rejection(mutant(caught_as="no such headline"), SEED)
    assert complaint == "plain says 'out is wrong', expected 'no such headline'"


def test_a_wrong_name_a_wrong_step_and_lost_points_are_complaints(monkeypatch):
    judging(monkeypatch, "one_key", "plain")
    wrong = mutant(expected_id=None, step=6, earns_nothing=True, keeps=0.5)
    found = trials.named(wrong, SEED)
    assert found[:2] == ["named SCALE-MISSING, expected nothing", "step 1, expected 6"]
    assert len(found) == 3
    assert found[2].startswith("keeps 0.00, expected 0.5 or more: lost one_key,")


def test_points_that_a_wrong_kernel_keeps_are_a_complaint():
    right = trials.Judged(load_problem("p01"), Findings(), [mock.Mock(id="plain", share=1.0)])
    full = Points(earned=12.0, available=12.0, possible=12.0)
    with mock.patch.object(trials.Judged, "correctness", mock.Mock(points=full)):
        found = trials.overcharged(mutant(earns_nothing=True), right)
    assert [text.split(":")[0] for text in found] == [
        "earns 12.0 points",
        "keeps 1.00, expected 0.0 or more",
    ]


def test_a_name_that_is_not_true_of_a_mistake_is_a_complaint():
    wrong = next(wrong for wrong in WRONG_ANSWERS if len(wrong.causes) == 1)
    right = trials.Judged(load_problem(wrong.problem), Findings(), [])
    assert trials.untrue(wrong, right) == ["every check accepts it"]
    for said, complaints in ((wrong.causes, 0), ((), 1), (("OTHER",), 1)):
        with (
            mock.patch.object(trials.Judged, "wrong", {("plain", 0): None}),
            mock.patch.object(trials.Judged, "named", set(said)),
        ):
            assert len(trials.untrue(wrong, right)) == complaints


def test_a_right_answer_that_is_rejected_is_a_complaint(monkeypatch):
    judging(monkeypatch, "one_key", "plain")
    wrong = {"p01-x": ("p01", mutant().applied_to(trials.model_answer("p01")))}
    monkeypatch.setattr(trials, "right_answers", lambda kind: wrong)
    complaints = trials.acceptance("unusual", "p01-x", SEED)
    assert complaints[0].startswith("one_key rejects it: lse is wrong (batch=1 ")
    assert complaints[-1] == "earns 0.0 of 12.0 points"


def test_every_source_is_judged_under_every_seed():
    todo = seeds.tasks(seeds.KINDS[:3], problem_ids(), ["a", "b"])
    right = len(problem_ids()) + len(trials.right_answers("unusual"))
    assert len(todo) == len(set(todo)) == 2 * (len(MUTANTS) + right)
    assert {id[:3] for _, id, _ in seeds.tasks(seeds.KINDS, ["p03"], ["a"])} == {"p03"}


@pytest.mark.parametrize("found", [[], ["plain accepts it"], ValueError("gone")])
def test_the_command_says_what_is_not_as_expected(found, monkeypatch, capsys):
    monkeypatch.setattr(seeds, "in_pool", lambda work, todo, jobs: ((task, found) for task in todo))
    code = seeds.main(["--seeds", "2", "--seed", "a", "--problems", "p01", "--kind", "answers"])
    out = capsys.readouterr().out
    assert code == bool(found) and f"{2 if found else 0} of 2 are not as expected" in out
    told = "ValueError: gone" if isinstance(found, Exception) else "plain accepts it"
    assert (f"p01 b: {told}" in out) == bool(found)


@pytest.mark.parametrize("wrong", ["--kind=mutant", "--problems=p10", "--seeds=many"])
def test_unknown_words_are_refused(wrong, capsys):
    with pytest.raises(SystemExit) as stopped:
        seeds.main([wrong])
    assert stopped.value.code == 2
    assert wrong.split("=")[1] in capsys.readouterr().err
