"""The machine in a worker, behind its switch, beside the interpreter: outputs, refusals, lines."""

from __future__ import annotations

import pytest
import torch
from tests.machine_compare import ALIKE, EQUAL, Side, compare

from grader.source.submission import Source
from grader.spec.problem import load_problem
from tests.forked import forked_workers
from tests.harness import cases_of, model_answer


@pytest.fixture(autouse=True, scope="module")
def _quick():
    torch.set_num_threads(1)
    with forked_workers():
        yield


def both(problem_id: str, source: str, checks: tuple[str, ...]) -> list[tuple]:
    """What came of the first case of each check in the interpreter, and on the machine."""
    problem = load_problem(problem_id)
    places = [place for place in cases_of(problem, checks) if place[1] == 0]
    made = []
    for machine in (False, True):
        side = Side(problem, Source(problem_id, source.encode(), policy=True), machine=machine)
        made.append(side.answers(places))
        side.close()
    return list(zip(*made, strict=True))


@pytest.mark.parametrize("problem_id", ["p02", "p04"])
def test_right_answers_compute_the_same(problem_id: str) -> None:
    for old, new in both(problem_id, model_answer(problem_id), ("plain", "ragged_rows", "ragged")):
        assert compare(old, new).kind in (EQUAL, ALIKE)
        assert not new.differences
        assert old.evidence.result.kernels == new.evidence.result.kernels


def test_an_access_outside_is_refused_with_the_same_words() -> None:
    source = model_answer("p02")
    lines = source.split("\n")
    at = next(n for n, line in enumerate(lines) if "tl.store(" in line)
    lines[at] = lines[at].split(", mask=")[0] + ")"
    ((old, new),) = both("p02", "\n".join(lines), ("ragged_rows",))
    was, now = old.evidence.result, new.evidence.result
    assert (now.status, now.line, now.text) == (was.status, was.line, was.text)
    assert now.line == at + 1
