"""Scoring: points by weight, gates, totals and exit codes, for every verdict there is.

The points for what was measured: tests/test_scoring_figures.py.
"""

import math
import random

import pytest

from grader.judge import scoring
from grader.spec.grade_record import (
    CheckResult,
    ComponentResult,
    Environment,
    GradeRecord,
    Points,
    ProblemResult,
    SpeedFigures,
    Verdict,
)

NOT_JUDGED = (Verdict.INTERNAL, Verdict.NOT_MEASURED)


def pts(earned, available, possible):
    return Points(earned=earned, available=available, possible=possible)


def make_check(name, verdict, weight=1, share=None):
    if share is None:
        share = 1.0 if verdict is Verdict.PASS else 0.0
    title = f"{name} holds"
    return CheckResult(id=name, title=title, verdict=verdict, weight=weight, share=share)


def make_checks(*verdicts):
    return [make_check(f"check_{i}", verdict) for i, verdict in enumerate(verdicts)]


def component(verdict, *points):
    return ComponentResult(verdict=verdict, points=pts(*points))


def make_problem(verdict=Verdict.PASS, points=(10, 10, 10), *, bonus=False, checks=()):
    return ProblemResult(
        id="p04",
        title="Causal",
        bonus=bonus,
        verdict=verdict,
        points=pts(*points),
        components={"correctness": component(verdict, *points)},
        checks=checks,
    )


def make_record(*problems, interrupted=False):
    totals, bonus = scoring.total(problems)
    return GradeRecord(
        mode="local",
        environment=Environment(device="cpu", device_name="cpu"),
        seed="1f0c",
        submission="problems",
        problems=problems,
        totals=totals,
        bonus=bonus,
        interrupted=interrupted,
    )


def assert_ordered(points):
    assert 0 <= points.earned <= points.available <= points.possible


def is_tenths(value):
    return value == round(value, 1)


def test_all_checks_pass_is_full():
    correctness, checks = scoring.score_correctness(make_checks(*[Verdict.PASS] * 7), 6)
    assert correctness.verdict is Verdict.PASS and correctness.reason is None
    assert correctness.points == pts(6, 6, 6)
    assert checks[0].points == pts(0.86, 0.86, 0.86)
    assert (correctness.figures.checks_passed, correctness.figures.checks_total) == (7, 7)


@pytest.mark.parametrize(
    ("weights", "failed", "earned"),
    [
        ((5, 1), 1, 5.0),
        ((1, 1, 1), 0, 4.0),
        ((1, 6), 0, 5.2),
        ((26, 12, 12, 50), 2, 5.3),
        ((999, 1), 1, 5.9),
    ],
)
def test_a_failed_check_costs_its_share_with_one_decimal_rounded_up(weights, failed, earned):
    verdicts = [Verdict.FAIL if i == failed else Verdict.PASS for i in range(len(weights))]
    checks = [make_check(str(i), v, weights[i]) for i, v in enumerate(verdicts)]
    correctness, scored = scoring.score_correctness(checks, 6)
    assert correctness.points == pts(earned, 6, 6)
    assert correctness.verdict is Verdict.FAIL
    assert correctness.reason == f"{len(weights) - 1} of {len(weights)} checks pass"
    worth = round(6 * weights[failed] / sum(weights), 2)
    assert scored[failed].points == pts(0, worth, worth)


@pytest.mark.parametrize(("share", "earned"), [(2 / 3, 8.0), (1 / 3, 4.0), (0.0, 0.0), (1.0, 12)])
def test_a_check_of_several_outputs_earns_the_part_that_holds(share, earned):
    verdict = Verdict.PASS if share == 1.0 else Verdict.FAIL
    correctness, (check,) = scoring.score_correctness([make_check("dq", verdict, 3, share)], 12)
    assert correctness.points == pts(earned, 12, 12)
    assert check.points == pts(earned, 12, 12)
    assert correctness.figures.checks_passed == (share == 1.0)


def test_a_part_of_a_failed_check_never_makes_it_whole():
    checks = [make_check("a", Verdict.PASS, 9), make_check("b", Verdict.FAIL, 1, 0.999)]
    assert scoring.score_correctness(checks, 12)[0].points == pts(11.9, 12, 12)


def test_internal_check_costs_no_points():
    verdicts = [Verdict.PASS] * 5 + [Verdict.INTERNAL]
    correctness, checks = scoring.score_correctness(make_checks(*verdicts), 6)
    assert correctness.verdict is Verdict.INTERNAL
    assert correctness.points == pts(5, 5, 6)
    assert checks[5].points == pts(0, 0, 1)
    assert correctness.reason == "fault of the judge, costs no points: check_5"


def test_skipped_check_is_available_and_not_measured_is_not():
    verdicts = (Verdict.PASS, Verdict.SKIPPED, Verdict.NOT_MEASURED)
    correctness, checks = scoring.score_correctness(make_checks(*verdicts), 6)
    assert correctness.points == pts(2, 4, 6)
    assert checks[1].points == pts(0, 2, 2)
    assert checks[2].points == pts(0, 0, 2)
    assert correctness.reason == "1 of 2 checks pass; not measured: check_2"


def test_correctness_passes_beside_a_check_that_cannot_run_here():
    correctness, _ = scoring.score_correctness(make_checks(Verdict.PASS, Verdict.NOT_MEASURED), 6)
    assert correctness.verdict is Verdict.PASS
    assert correctness.points == pts(3, 3, 6)
    assert scoring.is_complete(correctness)


def random_checks(generator):
    verdicts = generator.choices(list(Verdict), k=generator.randint(1, 10))
    parts = [generator.choice([0.0, 0.0, 1 / 3, 0.5, 2 / 3]) for _ in verdicts]
    shares = [1.0 if v is Verdict.PASS else p for v, p in zip(verdicts, parts, strict=True)]
    weights = [generator.choice([1, 2, 2.5, 12, 26]) for _ in verdicts]
    rows = zip(verdicts, weights, shares, strict=True)
    return [make_check(str(i), *row) for i, row in enumerate(rows)]


def test_random_checks_keep_the_order_of_points_and_the_promise_of_shares():
    generator = random.Random(7)
    for _ in range(3000):
        checks, possible = random_checks(generator), generator.randint(0, 18)
        correctness, scored = scoring.score_correctness(checks, possible)
        points = correctness.points
        assert_ordered(points)
        assert points.possible == possible
        assert is_tenths(points.earned) and is_tenths(points.available)
        total = sum(check.weight for check in checks)
        judged = [c for c in checks if c.verdict not in NOT_JUDGED]
        if not possible or not judged:
            continue
        lost = sum(possible * c.weight / total * (1 - c.share) for c in judged)
        rounding = 0.1 if len(judged) < len(checks) else 0.0  # of what is available
        assert points.available - points.earned <= max(lost, 0.1) + rounding + 1e-9
        assert (points.earned == points.available) == all(c.share == 1.0 for c in judged)
        for check in scored:
            assert_ordered(check.points)


def test_one_more_check_that_passes_never_costs_points():
    generator = random.Random(8)
    for _ in range(2000):
        checks, possible = random_checks(generator), generator.randint(1, 18)
        place = generator.randrange(len(checks))
        if checks[place].verdict in NOT_JUDGED:
            continue
        better = list(checks)
        better[place] = make_check(str(place), Verdict.PASS, checks[place].weight)
        before, after = (scoring.score_correctness(c, possible)[0] for c in (checks, better))
        assert after.points.earned >= before.points.earned


SPEED = component(Verdict.PASS, 2, 2, 2)


def figures_of(speedup, floor=1.0, full=20.0):
    return SpeedFigures(speedup=speedup, floor=floor, full=full)


@pytest.mark.parametrize(
    ("checks", "verdict", "points"),
    [
        ("pass pass", "pass", (2, 2, 2)),
        ("pass not-measured", "pass", (2, 2, 2)),
        ("pass fail", "skipped", (0, 2, 2)),
        ("pass skipped", "skipped", (0, 2, 2)),
        ("rejected", "skipped", (0, 2, 2)),
        ("timeout not-measured", "skipped", (0, 2, 2)),
        ("pass internal", "skipped", (0, 0, 2)),
        ("fail internal", "skipped", (0, 2, 2)),
        ("not-measured", "skipped", (0, 0, 2)),
        ("", "internal", (0, 0, 2)),
    ],
)
def test_gate_opens_only_where_all_checks_pass_that_a_component_rests_on(checks, verdict, points):
    checks = make_checks(*map(Verdict, checks.split()))
    gated = scoring.gate(SPEED, checks)
    assert gated.verdict == verdict
    assert gated.points == pts(*points)
    assert (gated.reason is None) == (verdict == "pass") == scoring.hold(checks)


def test_a_gated_component_names_the_checks_that_do_not_pass():
    def reason(*verdicts):
        return scoring.gate(SPEED, make_checks(*map(Verdict, verdicts))).reason

    assert reason("pass", "fail") == "not awarded: it rests on check_1, which does not pass"
    assert reason(*["timeout"] * 2).endswith("check_0, check_1, which do not pass")
    assert reason(*["fail"] * 9).endswith("check_3 and 5 more checks, which do not pass")


def test_gate_passes_on_what_was_not_measured_and_keeps_figures_as_evidence():
    for verdict in NOT_JUDGED:
        lost = scoring.withheld(verdict, 2, "timer broke")
        assert scoring.gate(lost, make_checks(Verdict.FAIL)) == lost
    speed = scoring.score_speed(figures_of(5.0), 2)
    assert scoring.gate(speed, make_checks(Verdict.FAIL)).figures == figures_of(5.0)


def test_totals_keep_bonus_apart_and_are_rounded_nowhere():
    required = make_problem(points=(4.1, 6.1, 10))
    bonus = make_problem(points=(1.3, 2, 20), bonus=True)
    totals = scoring.total([required, bonus, required, required])
    assert totals == (pts(12.3, 18.3, 30), pts(1.3, 2, 20))


LOST = make_problem(Verdict.FAIL, (4, 10, 10))
SLOW = make_problem(Verdict.PASS, (9.5, 10, 10))
INTERNAL_CHECK = make_problem(checks=tuple(make_checks(Verdict.INTERNAL)))


@pytest.mark.parametrize(
    ("record", "options", "expected"),
    [
        (make_record(make_problem()), {}, 0),
        (make_record(make_problem(points=(6, 6, 10))), {}, 0),
        (make_record(make_problem(), LOST), {}, 1),
        (make_record(SLOW), {}, 1),
        (make_record(SLOW), {"fail_under": 9.5}, 0),
        (make_record(make_problem(), LOST), {"exit_zero": True}, 0),
        (make_record(LOST), {"fail_under": 4}, 0),
        (make_record(LOST), {"fail_under": 4.1}, 1),
        (make_record(LOST), {"fail_under": 5, "exit_zero": True}, 0),
        (make_record(LOST), {"fail_under": math.nan}, 1),
        (make_record(make_problem(Verdict.FAIL)), {}, 1),
        (make_record(make_problem(), make_problem(points=(0, 9, 9), bonus=True)), {}, 1),
        (make_record(make_problem(Verdict.INTERNAL)), {"exit_zero": True, "fail_under": 1}, 3),
        (make_record(INTERNAL_CHECK), {}, 3),
        (make_record(), {}, 3),
        (make_record(make_problem(Verdict.NOT_MEASURED, (0, 0, 10))), {}, 4),
        (make_record(make_problem(), interrupted=True), {"exit_zero": True}, 130),
    ],
)
def test_exit_code(record, options, expected):
    assert scoring.exit_code(record, **options) == expected
