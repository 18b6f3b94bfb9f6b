"""Points for speed, work and memory, for every figure there can be."""

import itertools
import math

import pytest

from grader.judge import scoring
from grader.spec.grade_record import Amount, MemoryFigures, Verdict, WorkFigures
from tests.test_scoring import assert_ordered, figures_of, is_tenths, pts

NOT_A_MEASUREMENT = [math.nan, math.inf, -math.inf, 0.0, -3.0, None]


def speed_points(speedup, possible=1000):
    return scoring.score_speed(figures_of(speedup), possible).points.earned


@pytest.mark.parametrize("speedup", NOT_A_MEASUREMENT)
def test_what_is_no_measurement_is_a_fault_of_the_judge_and_earns_nothing(speedup):
    speed = scoring.score_speed(figures_of(speedup), 2)
    assert speed.verdict is Verdict.INTERNAL
    assert speed.points == pts(0, 0, 2)


def test_points_for_speed_are_linear_in_the_logarithm_and_never_fall():
    assert speed_points(math.sqrt(20)) == 500
    assert speed_points(5e-324) == 0 and speed_points(1e300) == 1000
    earned = [speed_points(1.02**i) for i in range(-50, 250)]
    assert earned == sorted(earned)


@pytest.mark.parametrize(
    ("speedup", "earned"),
    [(0.3, 0), (1, 0), (1.1, 0), (1.2, 0.1), (4.4, 0.9), (4.5, 1), (19.9, 1.9), (20, 2), (99, 2)],
)
def test_a_right_kernel_that_is_slow_passes_with_part_of_the_points(speedup, earned):
    speed = scoring.score_speed(figures_of(speedup), 2)
    assert speed.points == pts(earned, 2, 2)
    assert speed.verdict is Verdict.PASS
    told = f"{speedup:.3g}x naive; no points at 1x, full points at 20x"
    assert speed.reason == (None if earned == 2 else told)
    assert speed.figures.speedup == speedup


def test_points_are_rounded_down_to_a_tenth_and_full_only_for_all():
    for possible in range(0, 31):
        assert scoring.tenths(possible, 1.0) == possible
        assert scoring.tenths(possible, 1 - 1e-12) == possible
        assert scoring.tenths(possible, 0.0) == 0
        assert scoring.tenths(possible, 0.999) < possible or not possible
        assert is_tenths(scoring.tenths(possible, 0.377))


@pytest.mark.parametrize(("floor", "full"), [(1, 1), (0, 2), (3, 2), (math.nan, 2), (1, None)])
def test_bad_speed_targets_are_a_fault_of_the_judge(floor, full):
    speed = scoring.score_speed(figures_of(5.0, floor, full), 2)
    assert speed.verdict is Verdict.INTERNAL
    assert speed.points == pts(0, 0, 2)


def amount(ratio, naive=4.0):
    """An amount of 1,000 that are needed."""
    return Amount(done=round(1000 * ratio), needed=1000, naive=round(1000 * naive))


def work_of(full=1.1, **amounts):
    return WorkFigures(full=full, **amounts)


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        *((0.0, 1), (0.5, 1), (1.0, 1), (1.1, 1)),
        *((math.sqrt(1.1 * 4.0), 0.5), (1.111, 0.992), (3.999, 0.0002)),
        *((4.0, 0), (4.001, 0), (1e6, 0)),
    ],
)
def test_work_is_full_up_to_full_and_nothing_from_naive_on(ratio, expected):
    figures = work_of(multiply_adds=amount(ratio))
    assert scoring.work_fraction(figures) == pytest.approx(expected, abs=1e-3)
    assert (scoring.work_fraction(figures) == 1.0) == (ratio <= 1.1)


def test_work_fraction_is_monotone():
    parts = [scoring.work_fraction(work_of(elements_read=amount(1 + i / 100))) for i in range(400)]
    assert parts == sorted(parts, reverse=True)
    assert all(0 <= part <= 1 for part in parts)


def test_the_kind_of_work_with_the_least_part_decides():
    kinds = ("multiply_adds", "elements_read", "distinct_read")
    for worst in kinds:
        figures = work_of(**{k: amount(2.0 if k == worst else 1.2) for k in kinds})
        assert scoring.work_fraction(figures) == scoring.work_fraction(
            work_of(elements_read=amount(2.0))
        )
    # What counts is how near naive's it is.
    figures = work_of(multiply_adds=amount(1.5, naive=9), elements_read=amount(1.4, naive=1.4))
    assert scoring.work_fraction(figures) == 0
    work = scoring.score_work(figures, 2)
    told = "1.40x the elements read that are needed; full points up to 1.1x, none from 1.40x on"
    assert work.reason == told


def test_work_that_was_not_counted_is_a_fault_of_the_judge_and_earns_nothing():
    assert scoring.work_fraction(work_of()) == 0
    work = scoring.score_work(work_of(), 2)
    assert work.verdict is Verdict.INTERNAL and work.points == pts(0, 0, 2)


def test_less_work_than_any_right_answer_does_earns_nothing():
    dots = Amount(done=1999, needed=2500, naive=5000, least=2000)
    figures = work_of(multiply_adds=dots, elements_read=amount(3.0))
    work = scoring.score_work(figures, 2)
    assert work.verdict is Verdict.PASS and work.points == pts(0, 2, 2)
    told = "the judge saw 1,999 multiply-adds, and the output needs at least 2,000"
    assert work.reason == f"{told}: it sees tl.dot, and sums and outer products of tiles"
    assert not scoring.is_wasteful(work)
    enough = work_of(multiply_adds=dots.model_copy(update={"done": 2000}))
    assert scoring.score_work(enough, 2).points == pts(2, 2, 2)
    assert scoring.is_wasteful(scoring.score_work(work_of(multiply_adds=amount(3.0)), 2))


def test_naive_work_that_is_hardly_more_than_needed_earns_nothing():
    assert scoring.work_fraction(work_of(elements_read=amount(1.2, naive=1.05))) == 0


@pytest.mark.parametrize(
    ("ratio", "earned"), [(0.9, 2), (1.0, 2), (1.1, 2), (1.11, 1.9), (2.0, 1.0), (3.9, 0), (4, 0)]
)
def test_a_right_kernel_that_does_too_much_passes_with_part_of_the_points(ratio, earned):
    figures = work_of(multiply_adds=amount(ratio), elements_read=amount(1.0))
    work = scoring.score_work(figures, 2)
    assert work.points == pts(earned, 2, 2)
    assert work.verdict is Verdict.PASS and work.figures is figures
    told = (
        f"{ratio:.2f}x the multiply-adds that are needed; full points up to 1.1x,"
        " none from 4.00x on"
    )
    assert work.reason == (None if earned == 2 else told)


@pytest.mark.parametrize(
    ("extra", "allowed", "verdict"),
    [
        ((10, 20), (10, 20), "pass"),
        ((0, 0), (10, 20), "pass"),
        ((10, 21), (10, 20), "fail"),
        ((11, 20), (10, 20), "fail"),
        ((10,), (10, 20), "internal"),
        ((), (), "internal"),
    ],
)
def test_memory_is_all_or_nothing(extra, allowed, verdict):
    figures = MemoryFigures(extra_bytes=extra, allowed_bytes=allowed, lengths=(2048, 4096))
    memory = scoring.score_memory(figures, 2)
    assert memory.verdict == verdict
    assert memory.points.earned == (2 if verdict == "pass" else 0)
    assert memory.points.available == (0 if verdict == "internal" else 2)
    assert memory.figures is figures


def test_memory_failure_names_the_first_length_that_is_too_much():
    def reason(*extra):
        figures = MemoryFigures(extra_bytes=extra, allowed_bytes=(2, 4), lengths=(2048, 4096))
        return scoring.score_memory(figures, 2).reason

    assert "seqlen 4096" in reason(1, 9) and "seqlen 2048" in reason(3, 9)
    assert "tile" not in reason(1, 9)


def test_memory_failure_tells_of_the_tile_where_the_call_names_one():
    figures = MemoryFigures(extra_bytes=(9,), allowed_bytes=(2,), lengths=(64,), tile=(64, 16))
    reason = scoring.score_memory(figures, 2).reason
    assert reason.endswith(" with tile_q=64, tile_k=16: hold the scores of one tile at a time")


def test_garbage_in_the_figures_of_work_stays_a_fraction():
    counts = (-(2**63), -1, 0, 1, 1000, 2**63 - 1)
    for full in (1.1, 5.0):
        for done, needed, naive in itertools.product(counts, repeat=3):
            read = Amount(done=done, needed=needed, naive=naive)
            figures = work_of(full=full, elements_read=read)
            assert 0 <= scoring.work_fraction(figures) <= 1
            work = scoring.score_work(figures, 2)
            assert_ordered(work.points)
            assert (work.reason is None) == (work.points.earned == 2)
