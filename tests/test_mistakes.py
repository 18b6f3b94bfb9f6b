"""docs/mistakes.md: which checks each known mistake loses, and the correctness points it keeps.

`python -m tests.test_mistakes` writes the tables anew after cases, weights or mistakes have
changed, `python -m tests.test_mistakes p04 p05` those of these problems alone; with `--check`
(`make check`) it compares every line. The tests here compare one line in `EVERY`.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Collection, Iterator

import pytest
import torch

import reference
from grader.checks.correctness import Expected, expect, find_differences
from grader.judge.scoring import score_correctness
from grader.spec.cases import Case
from grader.spec.grade_record import CheckResult, Verdict
from grader.spec.inputs import Inputs, case_seed, make_inputs
from grader.spec.problem import ROOT, Problem, load_problem, problem_ids
from grader.spec.problem_tables import Check

PAGE = ROOT / "docs" / "mistakes.md"
SEED = "7ab1e"
EVERY = 4
TILE = 32  # of the mistakes that depend on a tile size
MOST_SCORES = 2**23  # cases with more (whole batches of heads, for a GPU) are left out

_ROW = re.compile(r"^\| \[([A-Z0-9-]+)\]\(.*?\)(, \*core\*)? \| (\d+) % \| ", re.MULTILINE)
# Mistakes in what every case rests on: products, sum, scale, division, and what a query may see in
# a causal problem. They may cost everything.
CORE = {
    *("ZEROS", "MEAN-VALUE", "SCALE-MISSING", "SCALE-SQUARED", "SCALE-TWICE-IN-LOG2"),
    *("SCALE-INVERTED", "EXP2-WITHOUT-LOG2E", "EXP-WITH-LOG2E", "RESCALE-MISSING"),
    *("RESCALE-ACC-MISSING", "RESCALE-SUM-MISSING", "ACC-OVERWRITTEN", "NOT-NORMALISED"),
    *(
        "RESCALE-ACC-LATE",
        "RESCALE-SUM-LATE",
        "BACKWARD-EXP-WITH-LOG2E",
        "DQ-EXP-WITH-LOG2E",
        "DK-DV-EXP-WITH-LOG2E",
        "BACKWARD-EXP2-WITHOUT-LOG2E",
        "DQ-EXP2-WITHOUT-LOG2E",
        "DK-DV-EXP2-WITHOUT-LOG2E",
        "SKIPPED-WITHOUT-CAUSAL",
    ),
    *("SOFTMAX-OVER-QUERIES", "FIRST-KEY-ONLY", "LAST-KEY-ONLY", "FIRST-KEY-TILE-ONLY"),
    *("K-V-SWAPPED", "CAUSAL-NOT-ASKED", "DIAGONAL-EXCLUDED", "DIAGONAL-SHIFTED"),
    *("CAUSAL-IGNORED", "CAUSAL-TRANSPOSED", "WINDOW-SHIFTED", "WINDOW-CENTRED"),
    *("SINK-LOGIT-ZERO-WHEN-ABSENT", "ROW-SUM-ZEROS", "WEIGHTS-IGNORED", "WEIGHTS-BY-ROW"),
    *("MEAN-NOT-SUM", "ROW-SUM-OVERWRITTEN", "DELTA-MISSING", "P-MISSING-IN-DS"),
    *("DQ-DK-UNSCALED", "DQ-DK-LOG2E", "BACKWARD-LSE-UNITS", "DOUT-IGNORED"),
    *("DK-DV-SWAPPED", "DQ-DK-SWAPPED", "DQ-DV-SWAPPED"),
    *("SCALE-AGAIN-IN-WEIGHTS", "WEIGHTS-OF-RAW-SCORES", "RUNNING-MAX-FORGOTTEN"),
    *("SUM-AND-MAX-SWAPPED", "DELTA-WITHOUT-DOUT", "DELTA-OVER-QUERIES", "DELTA-ADDED"),
    *("BACKWARD-LSE-BASE-2", "DK-DV-LSE-UNITS", "BACKWARD-SCORES-UNSCALED"),
    *("DK-DV-SCORES-UNSCALED", "SUM-OVERWRITTEN", "K-RESHAPED"),
    *("BACKWARD-CAUSAL-IGNORED", "BACKWARD-DIAGONAL-EXCLUDED", "DK-DV-DIAGONAL-EXCLUDED"),
}
# All others keep at least half of the points, and these 0.6.
KEEPS_MORE = (
    *("LSE-", "PADDED-", "LAST-", "DQ-LAST-", "WINDOW-EDGE-", "SCALE-OPTION-", "WINDOW-IGNORED"),
    *("SINKS-IGNORED", "SINK-LOGIT-IGNORED", "BACKWARD-WINDOW-", "BACKWARD-SINKS-"),
)
INTRODUCTION = """\
# Known mistakes, and what they cost

Each line is about an answer with one mistake: the checks that it fails, and the share of the
correctness points that it keeps. A check differs from one plain case only in its own subject, so a
mistake costs only the checks of its subject. Mistakes marked *core* change the plain case itself.
Where a backward check judges several gradients, the part that stays right is in brackets. The judge
names these mistakes; it finds others too.<!-- course -->
`python -m tests.test_mistakes` makes this page.<!-- end of course -->
"""


def variants(problem: Problem) -> dict[str, reference.Mistake]:
    """The known mistakes of a problem by id, those of tile size TILE where there are several."""
    found: dict[str, reference.Mistake] = {}
    for mistake in reference.mistakes_for(problem.id):
        if mistake.id not in found or mistake.tile == TILE:
            found[mistake.id] = mistake
    return found


def cases(problem: Problem, check: Check) -> Iterator[tuple[Case, Inputs]]:
    if check.compiles or check.bridge:  # the mistakes are about the problem's own entry point
        return
    for index, case in problem.cases(check, SEED, "cuda").items():
        scores = case.batch * case.num_q_heads * case.seqlen_q * case.seqlen_k
        if case.invalid is None and scores <= MOST_SCORES:
            yield case, make_inputs(problem, case, case_seed(SEED, problem.id, check.id, index))


def wrong_outputs(
    mistake: reference.Mistake, case: Case, inputs: Inputs, expected: Expected
) -> set[str]:
    """The outputs that come out wrong with a mistake; those it leaves open count as right."""
    try:
        predicted = mistake.fn(dict(inputs.all), case.kwargs)
    except (ValueError, RuntimeError, IndexError):
        return set()
    got = {}
    for name, truth in expected.truth.items():
        wrong = predicted.get(name, truth).double()
        got[name] = torch.where(wrong.isnan(), truth, wrong)
    wrong_names = {difference.name for difference in find_differences(got, expected)}
    if wrong_names == {"out"}:  # no gradient of a wrong forward pass is right
        return set(expected.truth)
    return wrong_names


def shares(problem: Problem, every: int) -> dict[str, dict[str, float]]:
    """By mistake, one in `every`, and by check: the part of the check that holds."""
    mistakes = variants(problem)
    found: dict[str, dict[str, float]] = {id: {} for id in list(mistakes)[::every]}
    for check in problem.checks:
        judged = set(problem.judged(check))
        seen = tuple(dict.fromkeys((*problem.returns[:1], *problem.judged(check))))
        names = seen if problem.gradients else problem.judged(check)
        wrong: dict[str, set[str]] = {id: set() for id in found}
        for case, inputs in cases(problem, check):
            expected = expect(problem, case, inputs, names)
            for id in found:
                if not judged <= wrong[id]:
                    wrong[id] |= wrong_outputs(mistakes[id], case, inputs, expected)
        for id in found:
            found[id][check.id] = 1.0 - len(wrong[id] & judged) / len(judged)
    return found


def points_kept(problem: Problem, held: dict[str, float]) -> float:
    """The correctness points left, as a share, when `held` of each check holds."""
    results = []
    for check in problem.checks:
        share = held[check.id]
        if check.needs is not None and held[check.needs] < 1.0:
            share = 0.0
        verdict = Verdict.PASS if share == 1.0 else Verdict.FAIL
        fields = {"id": check.id, "title": check.id, "weight": check.weight}
        results.append(CheckResult(**fields, verdict=verdict, share=share))
    component, _ = score_correctness(results, problem.points.correctness)
    return component.points.earned / component.points.possible


def rows(problem: Problem, every: int = 1) -> list[str]:
    lines = []
    for id, held in shares(problem, every).items():
        failed = [
            check if part == 0.0 else f"{check} ({part:.2f})"
            for check, part in held.items()
            if part < 1.0
        ]
        others = {check.id for check in problem.checks if check.bridge or check.compiles}
        unmoved = {"arguments", *others}
        everything = all(part == 0.0 for id, part in held.items() if id not in unmoved)
        shown = f"all but {' and '.join(sorted(unmoved))}" if everything else ", ".join(failed)
        core = ", *core*" if id in CORE and held.get("plain", 1.0) < 1.0 else ""
        kept = f"{100 * points_kept(problem, held):.0f} %"
        link = f"[{id}](errors/{id}.md)"
        lines.append(f"| {link}{core} | {kept} | {shown or 'nothing on these sizes'} |")
    return lines


def _head(problem: Problem) -> str:
    return f"\n## {problem.id}, {problem.title}\n\n| mistake | keeps | fails |\n|---|---|---|\n"


def page(anew: Collection[str] = problem_ids()) -> str:
    """The page, with the tables of the problems `anew` made, and the others as they stand there."""
    tables = (
        _head(p) + ("\n".join(rows(p)) if p.id in anew else table(p.id)) + "\n"
        for p in map(load_problem, problem_ids())
    )
    return INTRODUCTION + "".join(tables)


@functools.cache
def table(problem_id: str) -> str:
    """The rows of a problem as the page has them."""
    text = PAGE.read_text(encoding="utf-8")
    _, found, after = text.partition(_head(load_problem(problem_id)))
    assert found
    return after.partition("\n\n")[0].rstrip("\n")


@pytest.mark.parametrize("problem_id", problem_ids())
def test_the_page_is_up_to_date(problem_id: str) -> None:
    problem, found = load_problem(problem_id), table(problem_id)
    assert [row[0] for row in _ROW.findall(found)] == list(variants(problem))
    wanted = rows(problem, EVERY)
    assert [line for line in found.splitlines() if line in wanted] == wanted


def test_each_mistake_leads_to_its_page() -> None:
    links = re.findall(r"^\| \[(.+?)\]\((.+?)\)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(links) == sum(len(variants(problem)) for problem in map(load_problem, problem_ids()))
    for id, target in links:
        page = (PAGE.parent / target).read_text(encoding="utf-8")
        assert f"# {id}: " in page


@pytest.mark.parametrize("problem_id", problem_ids())
def test_a_mistake_costs_its_subject_and_not_the_problem(problem_id: str) -> None:
    for id, core, kept in _ROW.findall(table(problem_id)):
        assert not core or id in CORE
        assert core or int(kept) >= (60 if id.startswith(KEEPS_MORE) else 50), f"{id} keeps {kept}"
        assert core or int(kept) < 100, f"{id} loses nothing"


@pytest.mark.parametrize("problem_id", problem_ids())
def test_no_share_is_too_small_to_be_seen(problem_id: str) -> None:
    problem = load_problem(problem_id)
    weights = [check.weight for check in problem.checks]
    assert problem.points.correctness * min(weights) / sum(weights) >= 0.1


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "--check" in sys.argv[1:]:
        if page() != PAGE.read_text(encoding="utf-8"):
            sys.exit("docs/mistakes.md is not what the known mistakes cost; write it anew")
    else:
        PAGE.write_text(page(sys.argv[1:] or problem_ids()), encoding="utf-8")
