"""`python -m tests.slips`: the slips that it draws, and how it counts what is said of them."""

from __future__ import annotations

import ast

import pytest

from grader.source.steps import step_regions
from grader.spec.problem import problem_ids
from tests import slips
from tests.harness import model_answer


@pytest.mark.parametrize("problem", problem_ids())
def test_a_slip_changes_one_line_of_a_step_and_stays_python(problem):
    answer = model_answer(problem).split("\n")
    regions = step_regions(model_answer(problem))
    drawn = slips.drawn(problem, "a", 30)
    assert len(drawn) == 30 and drawn == slips.drawn(problem, "a", 30)
    for slip in drawn:
        ast.parse(slip.text)
        changed = [n for n, line in enumerate(slip.text.split("\n"), 1) if line != answer[n - 1]]
        first, last = regions[slip.step]
        assert changed == [slip.line] and first < slip.line < last
        assert (slip.old, slip.new) == (
            answer[slip.line - 1].strip(), slip.text.split("\n")[slip.line - 1].strip()
        )  # fmt: skip


LEFT_OUT = "statement dropped"


def said(step, lines, cause="P03-NO-SCALE", verdict="fail"):
    found = {"id": "plain", "step": step, "lines": lines, "cause": cause, "title": "t"}
    return found | {"verdict": verdict}


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [
        ([], ("passes",) * 3),
        ([said(2, [7])], ("right step", "its line", "named")),
        ([said(3, [9], None)], ("wrong step", "another line", "no name")),
        ([said(2, [7], None, "error")] * 2, ("right step", "its line", "said")),
        ([said(2, [], None, "error")], ("right step", "no line", "no name")),
        ([said(None, [], None), said(None, []), said(2, [7])], ("no step", "no line", "named")),
    ],
)
def test_what_most_checks_say_counts(checks, verdict):
    record = {"problem": "p03", "step": 2, "line": 7, "kind": "operator", "checks": checks}
    assert slips.verdict_on(record) == verdict
    assert slips.table([record]).row_count == 2


def test_the_line_of_what_is_left_out_is_one_beside_it():
    record = {"step": 2, "line": 7, "checks": [said(2, [3, 8])]}
    seen = {kind: slips.verdict_on(record | {"kind": kind})[1] for kind in ("name", LEFT_OUT)}
    assert seen == {"name": "another line", LEFT_OUT: "its line"}
