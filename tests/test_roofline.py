"""The roofline on the page: the answers with dots, none above the roof, and when it is left out."""

import json
from types import SimpleNamespace

import pytest

from grader.judge.results import Assembly
from grader.report.html.charts import roofline
from grader.report.html.page import render
from grader.spec.findings import Evidence
from grader.spec.grade_record import Chip, GradeRecord
from grader.spec.problem import ROOT, load_problem
from grader.spec.roofline import least, roof
from grader.timing import possible
from grader.timing.implied import RECORDED_CHIP
from tests.exports import record
from tests.test_render_html import Page

# The roofline.


def on_an_h200(**update):
    """The recorded grades of the model answers, with the rates of their GPU."""
    path = ROOT / "docs" / "records" / "nvidia-h200-2026-11-22.json"
    graded = GradeRecord.model_validate_json(path.read_text(encoding="utf-8"))
    environment = graded.environment.model_copy(update={"chip": RECORDED_CHIP} | update)
    return graded.model_copy(update={"environment": environment})


def test_the_roofline_has_the_answers_with_dots_and_none_is_above_it():
    made = roofline(on_an_h200())
    assert [row[0] for row in made.rows] == ["p03", "p04", "p05", "p06", "p07", "p08", "p09"]
    shares = [float(row[3].removesuffix(" %")) for row in made.rows]
    assert all(5 < share < 100 for share in shares)
    (p03,) = (row for row in made.rows if row[0] == "p03")
    # 4 * 4096^2 * 64 * 64 operations in 0.657 ms; q, k, v and out of 33.6 MB each are moved.
    assert float(p03[2]) == pytest.approx(4 * 4096**2 * 64 * 64 / 0.657e-3 / 1e12, rel=0.01)
    assert float(p03[1].replace(",", "")) == pytest.approx(
        4 * 4096**2 * 64 * 64 / (4 * 2 * 64 * 4096 * 64), rel=0.01
    )
    assert p03[4] == "dots"
    for one in made.marks:
        others = [m for m in made.marks if m is not one and abs(m.x - one.x) < 42]
        assert all(abs(m.label_y - one.label_y) >= 14 for m in others)
    assert "Roofline of this GPU" in Page(render(on_an_h200())).text


def test_the_roof_is_that_of_a_race():
    t4 = {"capability": (7, 5), "device_name": "Tesla T4"}
    graded = on_an_h200(**t4)
    made = roofline(graded)
    for row in made.rows:
        problem = load_problem(row[0])
        figures = next(p for p in graded.problems if p.id == row[0]).components["speed"].figures
        case = next(c for c in problem.benchmarks_on("cuda") if str(c) == figures.shape)
        share = 100 * roof(problem, case, graded.environment).ms / figures.median_ms
        assert row[3] == f"{share:.2g} %"


@pytest.mark.parametrize("update", [{"chip": None}, {"capability": None}, {"capability": (6, 0)}])
def test_without_the_rates_of_the_gpu_there_is_no_roofline(update):
    assert roofline(on_an_h200(**update)) is None
    assert roofline(record("mixed")) is None


def test_what_was_timed_in_another_shape_or_is_no_problem_is_left_out():
    graded = on_an_h200()
    p03 = next(p for p in graded.problems if p.id == "p03")
    speed = p03.components["speed"]
    for figures in ({"shape": "seqlen=1"}, {"median_ms": None}, {"median_ms": float("nan")}):
        changed = speed.model_copy(update={"figures": speed.figures.model_copy(update=figures)})
        problem = p03.model_copy(update={"components": p03.components | {"speed": changed}})
        assert roofline(graded.model_copy(update={"problems": (problem,)})) is None
    stranger = p03.model_copy(update={"id": "../p03"})
    assert roofline(graded.model_copy(update={"problems": (stranger,)})) is None
    assert roofline(graded.model_copy(update={"problems": (p03,)})) is not None


# Times that are impossible.

# NVIDIA's data sheet: 3.35 TB/s.
H100 = Chip(multiprocessors=132, clock_mhz=1980, memory_clock_mhz=2619, memory_bus_bits=5120)
SHAPED = [("calibration-h100-2026-11-25", H100), ("calibration-h200-2026-11-23", RECORDED_CHIP)]


def shares():
    """Of the least time of a call, what the model answers took in calibrations and gradings."""
    records = ROOT / "docs" / "records"
    for name, chip in SHAPED:
        problems = json.loads((records / f"{name}.json").read_text())["problems"]
        for id, found in problems.items():
            for naive_ms, speedup in zip(found["naive_ms"], found["speedups"], strict=True):
                yield chip, id, found["shape"], naive_ms / speedup
    runs = json.loads((records / "class-on-gpus-2026-11-25.json").read_text())["runs"]
    for grading in (g for run in runs if "H200" in run["hardware"] for g in run["gradings"]):
        for id, found in grading["problems"].items():
            shape = str(load_problem(id).benchmarks_on("cuda")[0])  # all fit an H200
            yield RECORDED_CHIP, id, shape, found["naive_ms"] / found["speedup"]


def test_no_recorded_answer_is_near_what_is_impossible():
    found = []
    for chip, id, shape, ms in shares():
        problem, environment = load_problem(id), on_an_h200(chip=chip).environment
        case = next(c for c in problem.benchmarks_on("cuda") if str(c) == shape)
        found.append((ms / least(problem, case, environment).ms, id))
    assert len(found) > 100
    fastest, id = min(found)
    assert round(fastest, 2) == 0.92 and id == "p02"  # as grader/timing/possible.py says
    assert 0.6 * fastest > possible._ROOM


@pytest.mark.parametrize(("id", "told"), [("p02", "reads the inputs"), ("p08", "multiplies the")])
def test_a_call_that_took_less_than_the_gpu_can_is_impossible(id, told):
    graded, problem = on_an_h200(), load_problem(id)
    (figures,) = (p.components["speed"].figures for p in graded.problems if p.id == id)
    assert possible.impossible(problem, figures, graded.environment) is None
    quick = figures.model_copy(update={"median_ms": 0.02})
    reason = possible.impossible(problem, quick, graded.environment)
    assert reason.startswith("impossible: a call took 0.02 ms, and this GPU") and told in reason
    request = SimpleNamespace(environment=graded.environment, calibration=None)
    score = Assembly(request, problem, None)._score("speed", 5.0, Evidence(figures=quick))
    assert (score.verdict, score.points.earned, score.points.available) == ("fail", 0.0, 5.0)
    assert score.reason == reason
    for update in ({"chip": None}, {"capability": (6, 0)}, {"device": "cpu"}):
        environment = graded.environment.model_copy(update=update)
        assert possible.impossible(problem, quick, environment) is None
