"""Scoring: points by weight, gates, totals and exit codes, for every verdict there is."""

import math
import random

import pytest

from grader import scoring
from grader.model import (
    COMPONENTS,
    CheckResult,
    ComponentResult,
    GradeRecord,
    Message,
    Points,
    ProblemResult,
    Verdict,
)

NOT_A_MEASUREMENT = [float("nan"), float("inf"), -float("inf"), 0.0, -3.0, None, "9", True, 10**400]


def make_check(name, verdict, weight=1):
    return CheckResult(id=name, title=f"{name} holds", step=1, verdict=verdict, weight=weight)


def make_checks(*verdicts):
    return [make_check(f"check_{i}", verdict) for i, verdict in enumerate(verdicts)]


def make_problem(verdict=Verdict.PASS, points=Points(10, 10, 10), *, bonus=False, checks=()):
    component = ComponentResult(verdict, points)
    components = {"correctness": component}
    return ProblemResult("p04", "Causal", bonus, verdict, points, components, checks)


def make_record(*problems, interrupted=False):
    totals, bonus = scoring.total(problems)
    return GradeRecord(
        "local", {}, "1f0c", "problems", problems, totals, bonus, interrupted=interrupted
    )


def assert_ordered(points):
    assert 0 <= points.earned <= points.available <= points.possible


def test_all_checks_pass_is_full():
    component, checks = scoring.score_correctness(make_checks(*[Verdict.PASS] * 7), 6)
    assert component.verdict is Verdict.PASS
    assert component.points == Points(6, 6, 6)
    assert checks[0].points == Points(0.86, 0.86, 0.86)


def test_weights_and_rounding_down():
    checks = [make_check("a", Verdict.PASS, 5), make_check("b", Verdict.FAIL, 1)]
    component, scored = scoring.score_correctness(checks, 6)
    assert component.points == Points(5, 6, 6)
    assert component.verdict is Verdict.FAIL
    assert component.reason == "1 of 2 checks pass"
    assert scored[1].points == Points(0, 1.0, 1.0)


def test_internal_check_costs_no_points():
    verdicts = [Verdict.PASS] * 5 + [Verdict.INTERNAL]
    component, checks = scoring.score_correctness(make_checks(*verdicts), 6)
    assert component.verdict is Verdict.INTERNAL
    assert component.points == Points(5, 5, 6)
    assert checks[5].points == Points(0, 0, 1)
    assert "fault of the judge" in component.reason and "check_5" in component.reason


def test_skipped_check_is_available_and_not_measured_is_not():
    verdicts = (Verdict.PASS, Verdict.SKIPPED, Verdict.NOT_MEASURED)
    component, checks = scoring.score_correctness(make_checks(*verdicts), 6)
    assert component.points == Points(2, 4, 6)
    assert checks[1].points == Points(0, 2, 2)
    assert checks[2].points == Points(0, 0, 2)


def test_correctness_passes_beside_a_check_that_cannot_run_here():
    component, _ = scoring.score_correctness(make_checks(Verdict.PASS, Verdict.NOT_MEASURED), 6)
    assert component.verdict is Verdict.PASS
    assert component.points == Points(3, 3, 6)


@pytest.mark.parametrize("checks", [[], [make_check("a", Verdict.PASS, 0)]])
def test_no_weight_is_a_fault_of_the_judge(checks):
    component, _ = scoring.score_correctness(checks, 6)
    assert component.verdict is Verdict.INTERNAL
    assert component.points == Points(0, 0, 6)


def test_random_checks_keep_the_order_of_points():
    generator = random.Random(7)
    for _ in range(2000):
        verdicts = generator.choices(list(Verdict), k=generator.randint(1, 10))
        checks = [
            make_check(str(i), verdict, generator.randint(0, 4))
            for i, verdict in enumerate(verdicts)
        ]
        possible = generator.randint(0, 18)
        component, scored = scoring.score_correctness(checks, possible)
        assert_ordered(component.points)
        assert component.points.possible == possible
        assert all(isinstance(v, int) for v in vars(component.points).values())
        for check in scored:
            assert_ordered(check.points)
        weighty = [c for c in checks if c.weight and scoring._is_measured(c.verdict)]
        if possible and weighty:
            all_pass = all(c.verdict is Verdict.PASS for c in weighty)
            assert (component.points.earned == component.points.available) == all_pass


@pytest.mark.parametrize(
    ("speedup", "expected"),
    [(0.5, 0), (1, 0), (math.sqrt(20), 0.5), (20, 1), (20.0001, 1), (1e300, 1), (5e-324, 0)],
)
def test_speed_fraction_is_linear_in_the_logarithm(speedup, expected):
    assert scoring.speed_fraction(speedup, 1.0, 20.0) == pytest.approx(expected)


@pytest.mark.parametrize("speedup", NOT_A_MEASUREMENT)
def test_no_measurement_earns_no_speed(speedup):
    assert scoring.speed_fraction(speedup, 1.0, 20.0) == 0
    component = scoring.score_speed({"speedup": speedup}, 2, floor=1.0, full=20.0)
    assert component.verdict is Verdict.FAIL
    assert component.points == Points(0, 2, 2)


def test_speed_fraction_is_monotone():
    ratios = [1.02**i for i in range(-50, 250)]
    fractions = [scoring.speed_fraction(ratio, 1.0, 20.0) for ratio in ratios]
    assert fractions == sorted(fractions)
    assert all(0 <= fraction <= 1 for fraction in fractions)


@pytest.mark.parametrize(
    ("speedup", "earned", "verdict"),
    [(1, 0, "fail"), (4.4, 0, "fail"), (4.5, 1, "fail"), (19.9, 1, "fail"), (20, 2, "pass")],
)
def test_whole_speed_points_round_down(speedup, earned, verdict):
    component = scoring.score_speed({"speedup": speedup}, 2, floor=1.0, full=20.0)
    assert component.points == Points(earned, 2, 2)
    assert component.verdict == verdict
    assert (component.reason is None) == (verdict == "pass")


def test_full_fraction_earns_all_points():
    for possible in range(0, 31):
        assert scoring.whole_points(possible, 1.0) == possible
        assert scoring.whole_points(possible, 1 - 1e-12) == possible
        assert scoring.whole_points(possible, float("nan")) == 0


@pytest.mark.parametrize(("floor", "full"), [(1, 1), (0, 2), (3, 2), (float("nan"), 2), (1, None)])
def test_bad_speed_targets_are_a_fault_of_the_judge(floor, full):
    assert scoring.speed_fraction(5.0, floor, full) == 0
    component = scoring.score_speed({"speedup": 5.0}, 2, floor=floor, full=full)
    assert component.verdict is Verdict.INTERNAL
    assert component.points == Points(0, 0, 2)


def test_speed_targets_may_come_with_the_figures():
    component = scoring.score_speed({"speedup": 5.0, "floor": 1.0, "full": 5.0}, 2)
    assert component.points == Points(2, 2, 2)
    assert scoring.score_speed({"speedup": 5.0}, 2).verdict is Verdict.INTERNAL


def test_missing_speedup_is_a_fault_of_the_judge():
    assert scoring.score_speed({}, 2, floor=1, full=2).verdict is Verdict.INTERNAL


@pytest.mark.parametrize(
    ("extra", "allowed", "verdict"),
    [
        ([10, 20], [10, 20], "pass"),
        ([10, 20], 20, "pass"),
        ([10, 21], [10, 20], "fail"),
        ([10, float("nan")], [10, 20], "fail"),
        ([10, None], [10, 20], "fail"),
        ([10], [10, 20], "internal"),
        ([], [], "internal"),
        (None, [10, 20], "internal"),
        ([10, 20], [10, float("nan")], "internal"),
    ],
)
def test_memory_is_all_or_nothing(extra, allowed, verdict):
    figures = {"extra_bytes": extra, "allowed_bytes": allowed, "lengths": [2048, 4096]}
    component = scoring.score_memory(figures, 2)
    assert component.verdict == verdict
    assert component.points.earned == (2 if verdict == "pass" else 0)
    assert_ordered(component.points)


def test_memory_failure_names_the_length():
    figures = {"extra_bytes": [1, 9], "allowed_bytes": [2, 4], "lengths": [2048, 4096]}
    assert "seqlen 4096" in scoring.score_memory(figures, 2).reason


SPEED = ComponentResult(Verdict.PASS, Points(2, 2, 2))


@pytest.mark.parametrize(
    ("correctness", "verdict", "points"),
    [
        (ComponentResult(Verdict.PASS, Points(6, 6, 6)), "pass", Points(2, 2, 2)),
        (ComponentResult(Verdict.PASS, Points(3, 3, 6)), "pass", Points(2, 2, 2)),
        (ComponentResult(Verdict.FAIL, Points(5, 6, 6)), "skipped", Points(0, 2, 2)),
        (ComponentResult(Verdict.REJECTED, Points(0, 6, 6)), "skipped", Points(0, 2, 2)),
        (ComponentResult(Verdict.INTERNAL, Points(5, 5, 6)), "skipped", Points(0, 0, 2)),
        (ComponentResult(Verdict.INTERNAL, Points(3, 5, 6)), "skipped", Points(0, 2, 2)),
        (ComponentResult(Verdict.NOT_MEASURED, Points(0, 0, 6)), "skipped", Points(0, 0, 2)),
        (None, "internal", Points(0, 0, 2)),
    ],
)
def test_gate_opens_only_for_complete_correctness(correctness, verdict, points):
    gated = scoring.gate(SPEED, correctness)
    assert gated.verdict == verdict
    assert gated.points == points
    assert (gated.reason is None) == (verdict == "pass")


@pytest.mark.parametrize(
    "component", [scoring.not_measured(2, "needs a CUDA GPU"), scoring.internal(2, "timer broke")]
)
def test_gate_passes_on_what_was_not_measured(component):
    assert scoring.gate(component, ComponentResult(Verdict.FAIL, Points(0, 6, 6))) == component


def test_missing_component_is_internal_and_worthless_one_is_not_due():
    possible = {"correctness": 6, "work": 1, "speed": 3, "memory": 0}
    given = {"speed": SPEED, "correctness": SPEED}
    whole = scoring.complete_components(given, possible)
    assert tuple(whole) == COMPONENTS
    assert whole["work"].verdict is Verdict.INTERNAL
    assert whole["work"].points == Points(0, 0, 1)
    assert whole["memory"].verdict is Verdict.NOT_MEASURED
    assert whole["memory"].points == Points(0, 0, 0)
    assert scoring.problem_points(whole) == Points(4, 4, 5)


def test_problem_verdict_is_the_worst():
    absent = scoring.not_measured(2, "needs a CUDA GPU")
    components = dict.fromkeys(COMPONENTS, absent) | {"correctness": SPEED}
    passing = make_checks(Verdict.PASS)
    assert scoring.problem_verdict(components, passing) is Verdict.PASS
    failing = make_checks(Verdict.PASS, Verdict.TIMEOUT, Verdict.FAIL)
    assert scoring.problem_verdict(components, failing) is Verdict.TIMEOUT
    assert scoring.problem_verdict(components, passing, Message("no file")) is Verdict.ERROR
    assert scoring.problem_verdict({"correctness": SPEED}, passing) is Verdict.INTERNAL


def test_totals_keep_bonus_apart():
    required = make_problem(points=Points(4, 6, 10))
    bonus = make_problem(points=Points(1, 2, 20), bonus=True)
    assert scoring.total([required, bonus, required]) == (Points(8, 12, 20), Points(1, 2, 20))


LOST = make_problem(Verdict.FAIL, Points(4, 10, 10))


@pytest.mark.parametrize(
    ("record", "options", "expected"),
    [
        (make_record(make_problem()), {}, 0),
        (make_record(make_problem(points=Points(6, 6, 10))), {}, 0),
        (make_record(make_problem(), LOST), {}, 1),
        (make_record(make_problem(), LOST), {"exit_zero": True}, 0),
        (make_record(LOST), {"fail_under": 4}, 0),
        (make_record(LOST), {"fail_under": 5}, 1),
        (make_record(LOST), {"fail_under": 5, "exit_zero": True}, 0),
        (make_record(LOST), {"fail_under": float("nan")}, 1),
        (make_record(make_problem(Verdict.FAIL, Points(10, 10, 10))), {}, 1),
        (make_record(make_problem(), make_problem(points=Points(0, 9, 9), bonus=True)), {}, 1),
        (make_record(make_problem(Verdict.INTERNAL)), {"exit_zero": True, "fail_under": 1}, 3),
        (make_record(make_problem(checks=tuple(make_checks(Verdict.INTERNAL)))), {}, 3),
        (make_record(), {}, 3),
        (make_record(make_problem(Verdict.NOT_MEASURED, Points(0, 0, 10))), {}, 4),
        (make_record(make_problem(), interrupted=True), {"exit_zero": True}, 130),
    ],
)
def test_exit_code(record, options, expected):
    assert scoring.exit_code(record, **options) == expected
