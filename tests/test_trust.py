"""docs/trust.md says what holds: its counts, its limits, and tests that there are."""

import json
import re

import pytest

from grader.isolate import inspection, jail, warden
from grader.spec.problem import ROOT
from tests.evasions import EVASIONS
from tests.hostile import gpu, timing
from tests.hostile.catalogue import CATALOGUE

TEXT = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
WORDS = " ".join(TEXT.split())
MIB, GIB = 2**20, 2**30


def test_the_corpus_has_as_many_as_the_page_says():
    files = [entry for entry in CATALOGUE if not entry.tricks]
    tricks = [trick for entry in CATALOGUE for trick in entry.tricks]
    walls = [trick for entry in CATALOGUE if entry.jailed for trick in entry.tricks]
    told = f"{len(files)} hostile submissions, and {len(tricks)} tricks in otherwise right answers"
    assert f"{told}, {len(walls)} of which reach for what is outside" in WORDS
    assert f"all but the {sum(entry.gpu for entry in CATALOGUE)} that need a GPU" in WORDS
    assert len(EVASIONS) >= 120 and "120 and more ways around the policy" in WORDS


@pytest.mark.parametrize(
    "told",
    [
        f"its own folder ({jail.FOLDER_BYTES // MIB} MiB)",
        f"`/tmp` and `/dev/shm` ({jail.TMP_BYTES // MIB} MiB each)",
        f"on disk ({warden.MOST_KERNEL_BYTES // GIB} GiB, {warden.MOST_KERNEL_FILES:,} files)",
        f"{warden.MOST_MEMORY_BYTES // GIB} GiB beyond PyTorch, {warden.MOST_PROCESSES} processes",
        f"{warden.MOST_FILES:,} files in memory",
        f"the judge looks every {1000 * warden._LOOK_S:.0f} ms",
        "bubblewrap](https://github.com/containers/bubblewrap) 0.8",
    ],
)
def test_its_limits_are_those_of_the_jail(told):
    assert told in WORDS


def test_a_probe_tries_to_write_to_so_many_places(monkeypatch):
    asked = []

    def jailed(command, folder, **options):
        asked.append(inspection.json.loads(command[-1]))
        raise inspection.JailFault("seen enough")

    monkeypatch.setattr(inspection, "_jailed", jailed)
    monkeypatch.setattr(jail, "bubblewrap", lambda: "bwrap")
    with pytest.raises(inspection.JailFault, match="seen enough"):
        inspection.inspect(gpu=None)
    assert len(asked[0]["read_only"]) == 8 and "write to eight places" in WORDS


def test_every_file_that_it_names_is_there():
    named = set(re.findall(r"`((?:tests|grader)/[\w/]+\.py)`", TEXT))
    assert len(named) > 15
    assert not [name for name in named if not (ROOT / name).is_file()]


def beside_itself(date):
    path = ROOT / "docs" / "records" / f"naive-against-naive-h200-{date}.json"
    return json.loads(path.read_text())["measurements"]


def test_figures_of_naive_beside_itself_are_those_of_the_records():
    today, older = beside_itself("2026-11-25"), beside_itself("2026-11-23")
    with_empty_call = [m for m in today if m["empty_call"]]
    ways = {
        "after the block": "measurements of p02 to p06, all within 1 %",
        "after each go": "{close} of them within 1 %",
    }
    for verified, told in ways.items():
        found = [m["speedup"] for m in with_empty_call if m["verified"] == verified]
        close = sum(abs(speedup - 1) <= 0.01 for speedup in found)
        assert close == len(found) or "{close}" in told
        text = f"{min(found):.3f} to {max(found):.3f} in {len(found)}"
        assert re.search(rf"{text},? {told.format(close=close)}", WORDS)
    before = [m["speedup"] for m in older if m["empty_call"]]
    assert f"{min(before):.3f} to {max(before):.3f} in {len(before)} older ones" in WORDS
    overheads = [m["overhead_us"]["1"] for m in older] + [m["overhead_us"]["1"][0] for m in today]
    assert f"{min(overheads) / 1000:.2f} to {max(overheads) / 1000:.2f} ms" in WORDS


def gradings():
    path = ROOT / "docs" / "records" / "official-gradings-h200-2026-11-24.json"
    return json.loads(path.read_text())["gradings"]


def test_official_gradings_gave_the_points_that_the_page_says():
    told = [grading["problems"] for grading in gradings()][4]
    assert "Seven official gradings" in WORDS
    assert len(gradings()) == 7 and len(told) == 9
    assert sum(grading["side_by_side"] == 3 for grading in gradings()) == 3
    lost = [
        (number, id)
        for number, grading in enumerate(gradings())
        for id, problem in grading["problems"].items()
        if problem["points"] != problem["possible"]
    ]
    assert len(lost) == 1 and lost[0][1] == "p09"
    assert "stopped one of these in p09" in WORDS
    spreads = {}
    for id in told:
        found = [grading["problems"][id]["speedup"] for grading in gradings()]
        found = [speedup for speedup in found if speedup is not None]
        spreads[id] = 100 * (max(found) / min(found) - 1)
    low, high = min(spreads, key=spreads.get), max(spreads, key=spreads.get)
    assert f"by {spreads[low]:.1f} % ({low}) to {spreads[high]:.0f} % ({high}," in WORDS
    lowest = min(grading["problems"]["p01"]["speedup"] for grading in gradings())
    assert lowest == told["p01"]["speedup"] and f"the lowest, {lowest:.2f}x" in WORDS


def test_an_official_grading_took_as_long_as_the_pages_say():
    alone = [round(g["duration_s"]) for g in gradings() if g["side_by_side"] == 1]
    each_at_its_turn, ahead, _, seconds = alone
    assert f"| 96 s | {seconds} s | 100 and 50 |" in TEXT
    assert f"made it {each_at_its_turn} s; two" in WORDS and f"made it {ahead} s." in WORDS
    page = (ROOT / "docs" / "instructors.md").read_text(encoding="utf-8")
    assert f"official {seconds} s |" in page and f"the {seconds} s with version" in page
    hours = 10_000 * seconds / 3600
    text = " ".join(page.split())
    assert f"are {hours:.0f} hours of a GPU, {hours / 100:.1f} hours on a hundred" in text
    ends = sorted(g["duration_s"] for g in gradings() if g["side_by_side"] == 3)
    assert round(ends[1] - ends[0], -1) == 160 and "about 160 s longer" in text


def test_figures_of_calibrate_are_those_of_the_record():
    path = ROOT / "docs" / "records" / "calibration-h200-2026-11-23.json"
    problems = json.loads(path.read_text())["problems"]
    spreads = {id: problem["spread_percent"] for id, problem in problems.items()}
    low, high = min(spreads, key=spreads.get), max(spreads, key=spreads.get)
    assert f"{spreads[low]:.1f} % ({low}) to {spreads[high]:.0f} % ({high})" in WORDS
    naive = [problem["naive_spread_percent"] for problem in problems.values()]
    assert f"naive's own times by {min(naive):.1f} to {max(naive):.1f} %" in WORDS


def on_h100():
    path = ROOT / "docs" / "records" / "official-gradings-h100-2026-11-25.json"
    return json.loads(path.read_text())["runs"]


def test_gradings_on_an_h100_had_all_points_with_implied_and_with_calibrated_targets():
    shared, apart = on_h100()
    found = [
        problem for run in on_h100() for g in run["gradings"] for problem in g["problems"].items()
    ]
    assert len(shared["gradings"]) == len(apart["gradings"]) == 2
    assert "four official gradings of two to four problems had all points" in WORDS
    path = ROOT / "docs" / "records" / "calibration-h100-2026-11-25.json"
    calibrated = json.loads(path.read_text())["problems"]
    for id, problem in found:
        assert problem["points"] == problem["possible"]
        assert problem["speedup"] > calibrated[id]["full"]
    spreads = {id: problem["spread_percent"] for id, problem in calibrated.items()}
    low, high = min(spreads, key=spreads.get), max(spreads, key=spreads.get)
    assert f"{spreads[low]:.1f} % ({low}) to {spreads[high]:.0f} % ({high})" in WORDS


def test_a_class_on_two_gpus_took_as_long_as_the_page_says():
    shared, apart = on_h100()
    page = " ".join((ROOT / "docs" / "instructors.md").read_text(encoding="utf-8").split())
    ends = [round(grading["done_after_s"]) for grading in apart["gradings"]]
    assert set(ends) == {98} and "per GPU, were done after 98 s" in page
    had = apart["had_for_measuring_percent"] + shared["had_for_measuring_percent"]
    assert f"in {int(min(had[:2]))} % of that run" in page and max(had[:2]) - min(had[:2]) < 1
    assert f"in {had[2]:.0f} % of the time" in page
    first, second = (grading["done_after_s"] for grading in shared["gradings"])
    assert f"done after {first:.0f} s and the second {second - first:.0f} s later" in page


def test_classes_on_gpus_were_as_fast_as_the_page_says():
    path = ROOT / "docs" / "records" / "class-on-gpus-2026-11-25.json"
    runs = json.loads(path.read_text())["runs"]
    page = (ROOT / "docs" / "instructors.md").read_text(encoding="utf-8")
    per_hour = []
    names = ("one H200", "one H200, again", "one H100", "two H100s, 32 cores")
    for run, name in zip(runs[:4], names, strict=True):
        done = ", ".join(f"{grading['done_after_s']:.0f} s" for grading in run["gradings"])
        had, busy = (
            " and ".join(f"{percent:.0f} %" for percent in run[key])
            for key in ("had_for_measuring_percent", "busy_percent")
        )
        told = f"| {name} | {done} | {had} | {busy} |"
        if "measuring_s" in run:
            reserved = sum(run["had_for_measuring_percent"]) / 100
            per_hour.append(3600 * reserved / sum(run["measuring_s"].values()))
            told += f" {per_hour[-1]:.1f} |"
        assert told in page
    assert f"two H100s grade {per_hour[1] / per_hour[0]:.2f} times as many as one" in page
    three_at_once = [[grading["done_after_s"] for grading in run["gradings"]] for run in runs[4:]]
    ends = three_at_once[0]
    counted = 3600 * (len(ends) - 1) / (ends[-1] - ends[0])
    done = ", ".join(f"{end:.0f} s" for end in ends)
    assert f"| one H200, three side by side | {done} | | | {counted:.1f} |" in page
    again = "; ".join(", ".join(f"{end:.0f} s" for end in ends) for ends in three_at_once[1:])
    assert f"| the same, twice more | {again} | | | |" in page
    needed = [int(sum(run["measuring_s"].values())) for run in runs if "measuring_s" in run]
    assert f"the {needed[0]} to {needed[1]} s for which" in " ".join(page.split())


def test_gradings_in_classes_on_gpus_had_all_points_however_many_ran_side_by_side():
    path = ROOT / "docs" / "records" / "class-on-gpus-2026-11-25.json"
    runs = json.loads(path.read_text())["runs"]
    assert [len(run["gradings"]) for run in runs] == [2, 1, 1, 3, 6, 2, 2]
    for grading in (grading for run in runs for grading in run["gradings"]):
        assert len(grading["problems"]) == 9
        assert all(p["points"] == p["possible"] for p in grading["problems"].values())
    assert "Four gradings of all nine on H100s and thirteen on an H200" in WORDS
    on_h200 = [g for run in runs if "H200" in run["hardware"] for g in run["gradings"]]
    assert len(on_h200) + len(gradings()) == 20
    assert "makes twenty on H200s (nineteen of p09)" in WORDS


def test_nine_measurements_took_a_gpu_as_long_as_the_page_says():
    record = json.loads((ROOT / "docs" / "records" / "rate-h100-2026-11-28.json").read_text())
    alone, (before, after) = record["alone"], record["classes"]
    problems = alone["problems"].values()
    assert len(problems) == 9 and all(p["points"] == p["possible"] for p in problems)
    took = sum(p["measuring_s"] for p in problems)
    assert f"in {alone['duration_s']:.0f} s, {took:.0f} s of which the measurements had" in WORDS
    drift = [p["naive_drift_percent"] for p in problems]
    assert f"were {min(drift):.1f} to {max(drift):.1f} % apart" in WORDS
    done = [[f"{s:.0f}" for s in run["graded_at_s"].values()] for run in (before, after)]
    assert "done after {}, {} and {} s. Since then".format(*done[0]) in WORDS
    assert "done after {}, {}, {} and {} s, all with all points".format(*done[1]) in WORDS
    first, *_, last = after["graded_at_s"].values()
    each_s = (last - first) / (len(done[1]) - 1)
    assert f"one every {each_s:.0f} s from the first one on" in WORDS
    assert f"which makes {3600 / each_s:.0f} an hour" in WORDS
    row = "| {} s, {} s, {} s, {} s |".format(*done[1])
    row += f" {after['had_for_measuring_percent']:.0f} % | {after['busy_percent']:.0f} % |"
    assert f"{row} {3600 / each_s:.0f} |" in (ROOT / "docs" / "instructors.md").read_text()
    assert "took {} and {} s in two fresh".format(*record["first_go_of_p04_s"]["seconds"]) in WORDS
    launch = record["first_launch_of_p04_s"]["seconds"]
    assert f"a first launch takes {min(launch)} to {max(launch)} s since" in WORDS
    for run in (before, after):
        full = {p: row["possible"] for p, row in alone["problems"].items()}
        assert {p: set(points) for p, points in run["points"].items()} == {
            p: {points} for p, points in full.items()
        }


def test_the_entries_of_timed_calls_got_their_verdicts_on_a_gpu():
    path = ROOT / "docs" / "records" / "hostile-timing-h100-2026-11-28.json"
    record = json.loads(path.read_text())
    found = {row["name"]: row for row in record["entries"]}
    honest = [row for name, row in found.items() if name.startswith("honest")]
    assert all(row["points"] > 0 for row in honest) and len(honest) == 3
    assert len(found) == len(timing.ON_GPU) + 3
    for entry in timing.ON_GPU:
        assert found[entry.name]["verdict"] in entry.verdicts
        assert "pass" in entry.verdicts or found[entry.name]["points"] == 0.0
    assert f"the {len(timing.ON_GPU)} entries of `tests/hostile/timing.py` for a GPU" in WORDS
    goes = [
        (places["drawn"][kind]["go_ms"], places["in_order"][kind]["go_ms"])
        for places in record["cost"].values()
        for kind in ("answer", "empty")
    ]
    more = [drawn - in_order for drawn, in_order in goes]
    low, high = min(min(pair) for pair in goes), max(max(pair) for pair in goes)
    assert f"by {min(more):.1f} to {max(more):.1f} ms of {low:.0f} to {high:.0f} ms" in WORDS
    left = [
        [of["answer"]["clock_ms"] - of["empty"]["clock_ms"] for of in places.values()]
        for places in record["cost"].values()
    ]
    longer = [drawn - in_order for drawn, in_order in left]
    assert f"{min(map(min, left)):.1f} to {max(map(max, left)):.1f} ms, becomes longer" in WORDS
    assert f"by {min(longer):.2f} to {max(longer):.2f} ms. On H100s" in WORDS


def test_the_hostile_files_that_need_a_gpu_got_their_verdicts_on_one():
    path = ROOT / "docs" / "records" / "hostile-h200-2026-11-25.json"
    found = {row["name"]: row for row in json.loads(path.read_text())["entries"]}
    assert found.keys() == {entry.name for entry in gpu.ENTRIES}
    for entry in gpu.ENTRIES:
        assert found[entry.name]["verdict"] in entry.verdicts
        assert found[entry.name]["points"] <= entry.points
    assert f"On an H200 the {len(found)} of `tests/hostile/gpu.py` got their verdicts" in WORDS
