"""Right answers that do not look like the model answer pass.

Here a few cases of a share of them, and on a GPU all; `python -m tests.golden diff unusual` judges
them in every case, `python -m tests.seeds` under many seeds. Nor is anything seen in them that
would be a mistake.
"""

import pytest
import torch

from grader.isolate.session import Session
from grader.spec.problem import load_problem, problem_ids
from tests import forked, needs
from tests.harness import SEED, judge, whole_answer
from tests.shares import drawn, of_all
from tests.test_sightings import nothing_is_seen
from tests.unusual import ANSWERS, Unusual

# Small cases on which one way of writing differs from another; without a GPU the first of each,
# and of all but the plain one every other: the next answer to the problem has those between.
FEW = ("plain", "half", "ragged", "cols", "causal_tiles", "unaligned_window", "overlap")
FEW = (*FEW, "ragged_cols", "odd_scales", "groups", "sinks", "arguments")

POSSIBLE = [answer for answer in ANSWERS if answer.lacks() is None]


def few_checks(answer: Unusual) -> set[str]:
    """The checks in which an answer is judged here."""
    of_problem = [other for other in ANSWERS if other.problem == answer.problem]
    known = [check.id for check in load_problem(answer.problem).checks if check.id in FEW]
    known.remove("plain")
    return {"plain", *known[of_problem.index(answer) % 2 :: 2]}


_quick = forked.quick


@pytest.mark.parametrize(
    "answer", POSSIBLE if torch.cuda.is_available() else POSSIBLE[:1], ids=lambda answer: answer.id
)
def test_right_answer_passes_on_a_gpu(answer: Unusual) -> None:
    if not torch.cuda.is_available():
        needs.skip(needs.GPU)
    source = answer.applied_to(whole_answer(answer.problem))
    judged = judge(source, load_problem(answer.problem), device="cuda", seed=SEED)
    assert {place: finding.message for place, finding in judged.wrong.items()} == {}


@pytest.mark.parametrize("answer", drawn(POSSIBLE, 24, of_all), ids=lambda answer: answer.id)
def test_right_answer_passes(answer: Unusual) -> None:
    judged = judge(
        answer.applied_to(whole_answer(answer.problem)),
        load_problem(answer.problem),
        checks=few_checks(answer),
        enough=lambda found: True,
        last=lambda session: watched(answer, session),
    )
    assert {place: finding.message for place, finding in judged.wrong.items()} == {}


def watched(answer: Unusual, session: Session) -> None:
    if session.machine:
        nothing_is_seen(answer.id, answer.problem, session)


@pytest.mark.parametrize("problem_id", problem_ids())
def test_each_check_is_made_with_a_few_unusual_answers(problem_id: str) -> None:
    made = [few_checks(a) for a in ANSWERS if a.problem == problem_id and not a.lacks()]
    checks = {check.id for check in load_problem(problem_id).checks} & set(FEW)
    assert all("plain" in few for few in made) and set().union(*made) == checks


def test_every_problem_has_unusual_answers() -> None:
    counted = {id: sum(a.problem == id for a in ANSWERS) for id in problem_ids()}
    assert len({answer.id for answer in ANSWERS}) == len(ANSWERS)
    assert all(counted[id] >= (4 if "p03" <= id <= "p07" else 2) for id in counted), counted


def test_errors_are_said_in_other_words() -> None:
    source = ANSWERS[0].applied_to(whole_answer(ANSWERS[0].problem))
    assert ": got " not in source and 'f"{name} cannot be used: ' in source
