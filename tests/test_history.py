"""The points of earlier runs: order, bounds, damage, and a clock that jumps."""

import datetime

import pytest

from grader.report import history
from grader.report.history import MOST_RUNS, PastRun, append, read, run_of
from tests.exports import NAMES, record

NOON = datetime.datetime(2026, 11, 23, 12, 0, tzinfo=datetime.UTC)


def run(time="2026-11-23 12:00", submission="problems", **points):
    return PastRun(time=time, submission=submission, points=points or {"p02": (1.5, 7.0)})


@pytest.mark.parametrize("name", NAMES)
def test_a_run_has_the_points_of_its_record(name):
    made = run_of(record(name), NOON)
    assert made.time == "2026-11-23 12:00" and made.submission == record(name).submission
    assert sum(earned for earned, _ in made.points.values()) == pytest.approx(
        record(name).totals.earned + record(name).bonus.earned
    )


def test_a_run_has_the_causes_of_what_failed():
    assert run_of(record("a known mistake"), NOON).causes == {"p02": ("WEIGHTS-IGNORED",)}
    assert run_of(record("full marks on the CPU"), NOON).causes == {}
    assert run_of(record("an exception with output"), NOON).causes == {"p02": ("ERROR",)}


def test_times_are_those_of_greenwich():
    zone = datetime.timezone(datetime.timedelta(hours=2))
    assert run_of(record("nothing"), NOON.astimezone(zone)).time == "2026-11-23 12:00"


def test_runs_come_back_in_the_order_in_which_they_were_made_whatever_the_clock_said(tmp_path):
    path = tmp_path / "new" / "history.jsonl"
    assert read(path, "problems") == ()
    times = ["2026-11-23 12:00", "1970-01-01 00:00", "2099-01-01 00:00", "2026-11-23 12:01"]
    for time in times:
        append(path, run(time))
    assert [r.time for r in read(path, "problems")] == times


def test_another_submission_has_a_history_of_its_own(tmp_path):
    path = tmp_path / "history.jsonl"
    append(path, run())
    append(path, run(submission="solutions"))
    assert [r.submission for r in read(path, "solutions")] == ["solutions"]
    assert read(path, "elsewhere") == ()


DAMAGED = [
    b'{"schema_version": 1, "time": "2026',  # cut off
    b"\x00\xff\xfe not text",
    b"[" * 100_000,
    b"null",
    b'{"schema_version": 2, "time": "t", "submission": "problems", "points": {}}',  # of the future
    b'{"schema_version": 1, "time": "t", "submission": "problems", "points": {}, "more": 1}',
    b'{"schema_version": 1, "time": "t", "submission": "problems", "points": {"p02": [1e999, 2]}}',
    b'{"schema_version": 1, "time": "t", "submission": "problems", "points": {"p02": [-1, 2]}}',
    b'{"schema_version": 1, "time": "t", "submission": "problems", "points": {"p02": [NaN, 2]}}',
]


@pytest.mark.parametrize("line", DAMAGED)
def test_a_line_that_is_damaged_or_of_a_newer_release_is_skipped_and_kept(tmp_path, line):
    path = tmp_path / "history.jsonl"
    append(path, run("first"))
    path.write_bytes(path.read_bytes() + line + b"\n\n")
    append(path, run("last"))
    assert [r.time for r in read(path, "problems")] == ["first", "last"]
    assert len(path.read_bytes().splitlines()) == 3


def test_a_file_without_a_last_newline_loses_nothing(tmp_path):
    path = tmp_path / "history.jsonl"
    append(path, run("first"))
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    append(path, run("last"))
    assert [r.time for r in read(path, "problems")] == ["first", "last"]


def test_the_file_stays_small(tmp_path, monkeypatch):
    path = tmp_path / "history.jsonl"
    for number in range(MOST_RUNS + 3):
        append(path, run(str(number)))
    times = [r.time for r in read(path, "problems")]
    assert len(times) == MOST_RUNS and (times[0], times[-1]) == ("3", str(MOST_RUNS + 2))
    monkeypatch.setattr(history, "_MOST_BYTES", 300)
    append(path, run("last"))
    assert path.stat().st_size < 500 and read(path, "problems")[-1].time == "last"


def test_a_history_that_cannot_be_read_or_written_is_an_os_error(tmp_path):
    (tmp_path / "history.jsonl").mkdir()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "history.jsonl", tmp_path / "file" / "history.jsonl"):
        with pytest.raises(OSError):
            append(path, run())
