"""Right answers that do not look like the model answer pass.

Here a few cases each, and all of them on a GPU; `python -m tests.seeds --kind unusual` judges them
in every case under many seeds.
"""

from __future__ import annotations

import pytest
import torch

from grader.manifest import load_problem, problem_ids
from tests.forked import forked_workers
from tests.harness import SEED, judge, whole_answer
from tests.unusual import ANSWERS, Unusual

# Small cases on which one way of writing differs from another; without a GPU the first of each.
FEW = ("plain", "half", "ragged", "cols", "causal_tiles", "unaligned_window", "overlap")
FEW = (*FEW, "ragged_cols", "odd_scales", "groups", "sinks", "arguments")


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with forked_workers():
        yield


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.id)
def test_right_answer_passes(answer: Unusual, device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    if answer.lacks():
        pytest.skip(answer.lacks())
    problem = load_problem(answer.problem)
    source = answer.applied_to(whole_answer(answer.problem))
    if device == "cuda":
        judged = judge(source, problem, device=device, seed=SEED)
    else:
        judged = judge(source, problem, checks=FEW, enough=lambda found: True)
    assert {place: finding.message for place, finding in judged.wrong.items()} == {}


def test_every_problem_has_unusual_answers() -> None:
    counted = {id: sum(a.problem == id for a in ANSWERS) for id in problem_ids()}
    assert len({answer.id for answer in ANSWERS}) == len(ANSWERS)
    assert all(counted[id] >= (4 if "p03" <= id <= "p07" else 2) for id in counted), counted


def test_errors_are_said_in_other_words() -> None:
    source = ANSWERS[0].applied_to(whole_answer(ANSWERS[0].problem))
    assert ": got " not in source and 'f"{name} cannot be used: ' in source
