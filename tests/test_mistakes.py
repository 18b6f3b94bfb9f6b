"""grader/spec/causes/measured.toml: what each known mistake costs, and pictures of some.

`python -m tests.test_mistakes` writes the tables anew after cases, weights or mistakes have
changed, `python -m tests.test_mistakes p04 p05` those of these problems alone, and docs/causes.md,
which shows them; with `--check` (`make check`) it compares every line. The tests here compare one
line in `EVERY` of one problem.
"""

import argparse
import functools
import sys
from collections.abc import Collection, Iterator
from functools import partial

import pytest
import torch

import reference
from grader.checks.correctness import Expected, expect, find_differences
from grader.commands.explain import page as causes_page
from grader.judge.scoring import score_correctness
from grader.spec import causes
from grader.spec.cases import Case
from grader.spec.grade_record import CheckResult, Verdict
from grader.spec.inputs import Inputs, case_seed, make_inputs
from grader.spec.problem import Problem, load_problem, problem_ids
from grader.spec.problem_tables import Check
from tests import mistake_pictures
from tests.shares import drawn

FILE = causes.FOLDER / f"{causes.MEASURED}.toml"
SEED = "7ab1e"
EVERY = 4
TILE = 32  # of the mistakes that depend on a tile size
MOST_SCORES = 2**23  # cases with more (whole batches of heads, for a GPU) are left out

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
HEAD = """\
# What each known mistake costs: the percentage of the correctness points that an answer with it
# keeps, and the checks that fail. Where a backward check judges several gradients, the part that
# stays right is in brackets. `python -m tests.test_mistakes` writes this file.
"""
_SEED = "e1"  # of the cases whose sizes are compared


def variants(problem: Problem) -> dict[str, reference.Mistake]:
    """The known mistakes of a problem by id, those of tile size TILE where there are several."""
    found: dict[str, reference.Mistake] = {}
    for mistake in reference.mistakes_for(problem.id):
        if mistake.id not in found or mistake.tile == TILE:
            found[mistake.id] = mistake
    return found


def predicted(check: Check) -> bool:
    """Whether mistakes, in numbers of the problem's own entry point, say what a check comes to."""
    return not (check.compiles or check.bridge or check.judges != "numbers")


def cases(problem: Problem, check: Check) -> Iterator[tuple[Case, Inputs]]:
    if not predicted(check):
        return
    for index, case in problem.cases(check, SEED).items():
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
    """Return a line of the file for each mistake in one problem."""
    lines = []
    for id, held in shares(problem, every).items():
        failed = [
            check if part == 0.0 else f"{check} ({part:.2f})"
            for check, part in held.items()
            if part < 1.0
        ]
        others = {check.id for check in problem.checks if not predicted(check)}
        unmoved = {"arguments", *others}
        everything = all(part == 0.0 for id, part in held.items() if id not in unmoved)
        shown = f"all but {' and '.join(sorted(unmoved))}" if everything else ", ".join(failed)
        core = ", core = true" if id in CORE and held.get("plain", 1.0) < 1.0 else ""
        kept = f"{100 * points_kept(problem, held):.0f}"
        smallest = min((c for c in problem.checks if held[c.id] < 1.0), key=partial(size, problem))
        lines.append(
            f'{id} = {{ keeps = {kept}, fails = "{shown}", smallest = "{smallest.id}"{core} }}'
        )
    return lines


def size(problem: Problem, check: Check) -> int:
    """Return the number of scores in the smallest case of a check, or of elements of x."""
    cases = [case for case in problem.cases(check, _SEED).values() if case.invalid is None]
    sizes = (
        case.rows * case.cols
        if case.rows is not None
        else case.batch * case.num_q_heads * case.seqlen_q * case.seqlen_k
        for case in cases
    )
    return min(sizes, default=2**60)


def pictures() -> Iterator[str]:
    """Return a table for each mistake of which there is a picture."""
    for id, entry in causes.entries().items():
        drawn = mistake_pictures.of(id) if entry.file == "masks" else None
        if drawn is not None:
            legend, lines = drawn
            drawing = "\n".join(lines)
            yield f'\n[pictures.{id}]\nlegend = "{legend}"\nrows = """\n{drawing}"""\n'


def page(anew: Collection[str] = problem_ids()) -> str:
    """The file, with the tables of the problems `anew` made, and the others as they stand there."""
    tables = (
        f"\n[{p.id}]\n" + ("\n".join(rows(p)) if p.id in anew else "\n".join(table(p.id))) + "\n"
        for p in map(load_problem, problem_ids())
    )
    return HEAD + "".join(tables) + "".join(pictures())


@functools.cache
def table(problem_id: str) -> tuple[str, ...]:
    """The rows of a problem as the file has them."""
    text = FILE.read_text(encoding="utf-8")
    _, found, after = text.partition(f"\n[{problem_id}]\n")
    assert found
    return tuple(after.partition("\n\n")[0].rstrip("\n").splitlines())


def costs(problem_id: str) -> dict[str, causes.Cost]:
    found = causes.entries().values()
    return {entry.id: entry.costs[problem_id] for entry in found if problem_id in entry.costs}


@pytest.mark.parametrize("problem_id", drawn(problem_ids(), 9))
def test_the_file_is_up_to_date(problem_id: str) -> None:
    found, wanted = table(problem_id), rows(load_problem(problem_id), EVERY)
    assert [line for line in found if line in wanted] == wanted, anew(problem_id)


@pytest.mark.parametrize("problem_id", problem_ids())
def test_the_file_has_each_known_mistake(problem_id: str) -> None:
    found = [row.partition(" = ")[0] for row in table(problem_id)]
    assert found == list(variants(load_problem(problem_id))), anew(problem_id)


def test_the_pictures_are_up_to_date() -> None:
    assert FILE.read_text("utf-8").endswith("".join(pictures())), anew()


@pytest.mark.parametrize("problem_id", problem_ids())
def test_a_mistake_costs_its_subject_and_not_the_problem(problem_id: str) -> None:
    for id, cost in costs(problem_id).items():
        assert not cost.core or id in CORE
        least = 60 if id.startswith(KEEPS_MORE) else 50
        assert cost.core or least <= cost.keeps < 100, f"{id} keeps {cost.keeps}"


@pytest.mark.parametrize("problem_id", problem_ids())
def test_no_share_is_too_small_to_be_seen(problem_id: str) -> None:
    problem = load_problem(problem_id)
    weights = [check.weight for check in problem.checks]
    assert problem.points.correctness * min(weights) / sum(weights) >= 0.1


def anew(*ids: str) -> str:
    """What to do where the file is not what the known mistakes cost."""
    command = " ".join(("python -m tests.test_mistakes", *ids))
    return f"{FILE.name} is not what the known mistakes cost; write it anew: {command}"


def main() -> str | None:
    """Write the file and the page that shows it, or compare the file; return what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.test_mistakes")
    parser.add_argument("problems", nargs="*", metavar="pNN", help="by default all of them")
    parser.add_argument("--check", action="store_true", help="write nothing, and compare")
    options = parser.parse_args()
    if unknown := set(options.problems) - set(problem_ids()):
        parser.error(f"pNN: got {', '.join(sorted(unknown))}, expected {', '.join(problem_ids())}")
    torch.set_num_threads(1)
    if options.check:
        return None if page() == FILE.read_text(encoding="utf-8") else anew()
    FILE.write_text(page(options.problems or problem_ids()), encoding="utf-8")
    causes.entries.cache_clear()
    causes_page.PAGE.write_text(causes_page.text(problem_ids()), encoding="utf-8")
    return None


if __name__ == "__main__":
    sys.exit(main())
