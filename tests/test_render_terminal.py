"""The report on a terminal: goldens of what the judge says, width, totals, hostile text.

The records of the goldens come out of the judge's own rooms (tests/exports.py). After a change of
the report: pytest tests/test_render_terminal.py --snapshot-update, and read the difference.
"""

import json
import re
import unicodedata

import pytest
from rich.cells import cell_len

from grader.judge import scoring
from grader.judge.results import next_step
from grader.report import gradescope, markdown
from grader.report.html import page
from grader.report.message import causes
from grader.report.terminal import render
from grader.source.submission import read_source
from grader.spec.grade_record import (
    CheckResult,
    ComponentResult,
    Message,
    Points,
    SpeedFigures,
    Verdict,
)
from grader.spec.kernel_report import Compilation, KernelReport
from grader.spec.problem import ROOT, load_problem, problem_ids
from tests.exports import ANSWERS, HOSTILE, SPEED, VAST, hostile, with_problems
from tests.exports import record as graded
from tests.records import small

RIGHT = ("full marks on the CPU", "tiles in vain")
GOLDEN = [*ANSWERS, "measured on a GPU"]


def settled(report):
    """The report without what the clock, or the version of Python, says."""
    report = re.sub(r"took \d+ s of", "took N s of", report)
    return re.sub(r"Current thread .* \(most recent", "Stack (most recent", report)


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", GOLDEN)
def test_the_report_is_as_it_was_read_and_approved(snapshot, name, width):
    assert settled(render(graded(name), width=width)) == snapshot


@pytest.mark.parametrize("name", ["full marks on the CPU", "tiles in vain", "tiles visited twice"])
def test_the_map_is_as_it_was_read_and_approved(snapshot, name):
    plain, report = render(graded(name)), render(graded(name), maps=True)
    more = [line for line in report.splitlines() if line not in plain.splitlines()]
    assert "\n".join(more) == snapshot
    assert set(plain.splitlines()) <= set(report.splitlines())


@pytest.fixture
def hostile_record():
    record = graded("measured on a GPU")
    texts = dict.fromkeys(("device_name", "torch", "python"), HOSTILE) | {"notes": (HOSTILE,)}
    environment = record.environment.model_copy(update=texts)
    problem = hostile(record.problems[1])
    return with_problems(record, problem, environment=environment, submission=HOSTILE)


@pytest.mark.parametrize("name", [*GOLDEN, "hostile", "empty", "bonus only", "interrupted"])
@pytest.mark.parametrize("width", [40, 72, 80, 120])
def test_lines_fit_and_are_plain_and_colour_repeats_the_words(hostile_record, name, width):
    whole = graded("measured on a GPU")
    record = {
        "hostile": lambda: hostile_record,
        "empty": lambda: with_problems(whole),
        "bonus only": lambda: with_problems(whole, whole.problems[3]),
        "interrupted": lambda: whole.model_copy(update={"interrupted": True}),
    }.get(name, lambda: graded(name))()
    report = render(record, width=width, maps=True)
    assert report.endswith("\n") and not report.endswith("\n\n")
    for line in report[:-1].split("\n"):
        assert cell_len(line) <= max(width, 72)
        assert line == line.rstrip()
        assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs") for char in line)
    coloured = render(record, width=width, color=True, maps=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == report


def test_colour_does_not_depend_on_the_environment(monkeypatch):
    record = graded("a known mistake")
    expected = render(record, color=True)
    assert "\x1b[" in expected
    for variable in ("NO_COLOR", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("TERM", "dumb")
    assert render(record, color=True) == expected


NUMBER = r"\d+(?:\.\d)?"


@pytest.mark.parametrize("name", GOLDEN)
def test_totals_agree_with_the_json_record_and_with_their_parts(name):
    data = json.loads(graded(name).to_json())
    report = render(graded(name))
    for key, label in (("totals", "required"), ("bonus", "bonus")):
        part = data[key]
        bonus = [problem for problem in data["problems"] if problem["bonus"] is (key == "bonus")]
        for kind in ("earned", "available", "possible"):
            assert part[kind] == pytest.approx(sum(p["points"][kind] for p in bonus))
        if not part["possible"]:
            assert f"{label} " not in report
            continue
        pattern = (
            rf"{label} ({NUMBER}) of ({NUMBER}) points(?: measured here \(({NUMBER}) in all\))?\n"
        )
        earned, available, possible = re.search(pattern, report).groups()
        assert (float(earned), float(available)) == (part["earned"], part["available"])
        assert float(possible or available) == part["possible"]
    for problem in data["problems"]:
        row = next(line for line in report.splitlines() if line.startswith(problem["id"]))
        points = problem["points"]
        total = sum(component["points"]["earned"] for component in problem["components"].values())
        assert points["earned"] == pytest.approx(total)
        shown = "-" if not points["available"] else f"{points['earned']:g}/{points['available']:g}"
        assert row.split()[-1] == shown


def test_the_step_is_that_of_the_line_where_there_is_one():
    (problem,) = graded("an exception in a kernel").problems
    assert {c.step for c in problem.checks if c.verdict is Verdict.ERROR} == {5}
    assert "p02 step 5, test_plain, weighted_row_sum.py line " in render(
        graded("an exception in a kernel")
    )
    assert problem.next_step.startswith("p02 step 5 (addresses from strides)")


def test_the_next_step_is_not_the_command_that_was_just_run():
    for name in set(ANSWERS) - {"a fault of the judge"}:
        lines = render(graded(name)).splitlines()
        start = next(n for n, line in enumerate(lines) if line.startswith("next: "))
        following = " ".join(lines[start:-1])
        assert "make grade" not in following or following.endswith("make grade P=p04 MAP=1"), name


def test_after_the_last_problem_that_is_done_comes_the_next_one():
    done = graded("full marks on the CPU")
    assert "\nnext: p04, Causal attention: problems/p04/README.md\n" in render(done)
    (first, second) = done.problems
    last = second.model_copy(update={"id": "p09"})
    assert "next: " not in render(with_problems(done, first, last))
    strange = second.model_copy(update={"id": HOSTILE})
    assert "next: " not in render(with_problems(done, first, strange))
    assert "next: p03, " in render(with_problems(done, first))


def test_the_command_of_the_next_step_stays_whole():
    for width in (72, 80, 90):
        report = render(graded("a known mistake"), width=width)
        assert "\n      make explain ID=P02-WEIGHTS-IGNORED\n" in report


def test_a_case_that_was_followed_is_followed_again():
    record = graded("a walk as it is due")
    (problem,) = record.problems
    checks = [c.model_copy(update={"diagnosis": None}) for c in problem.checks]
    source = read_source(load_problem("p04"), ROOT / "solutions")
    parts = problem.components
    given = (load_problem("p04"), source, checks, parts["correctness"], parts["work"])
    assert next_step(*given).endswith("make trace P=p04 CASE=plain:1 SEED=5eed PROGRAM=0,0,0")


def test_errors_come_before_figures():
    fault = render(graded("a fault of the judge"))
    assert fault.index("internal[P03") < fault.index("\nmeasured ")
    kernel = KernelReport(kernel="_attention_kernel", line=3, registers=40)
    (problem,) = graded("tiles visited twice").problems
    check = problem.checks[-1].model_copy(
        update={"kernels": (Compilation(kernel=kernel, capability=80),)}
    )
    problem = problem.model_copy(update={"checks": (*problem.checks[:-1], check)})
    report = render(with_problems(graded("tiles visited twice"), problem))
    assert report.index("error[P04") < report.index("\ncompiled ") < report.index("\nnext: ")


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.NOT_IMPLEMENTED])
def test_titles_are_whole(verdict):
    record = graded("full marks on the CPU")
    real = [load_problem(id) for id in problem_ids()]
    shown = [
        record.problems[1].model_copy(
            update={"id": p.id, "title": p.title, "bonus": p.bonus, "verdict": verdict}
        )
        for p in real
    ]
    report = render(with_problems(record, *shown))
    table = report[report.index("problem ") : report.index("\n-  ")].splitlines()
    column = [line[: table[0].index("verdict")] for line in table]
    told = " ".join(" ".join(column).split())
    for problem in real:
        assert f"{problem.id} {problem.title} " in f"{told} "


def test_bonus_problems_alone_have_no_required_points():
    record = graded("full marks on the CPU")
    bonus = record.problems[1].model_copy(update={"id": "p08", "bonus": True})
    alone = with_problems(record, bonus)
    for text in (
        render(alone),
        markdown.render(alone),
        gradescope.render(alone),
        page.render(alone),
    ):
        assert "required 0" not in text and "bonus 14 of 14 points" in text
    assert "required 0 of 0 points" in markdown.render(with_problems(record))  # nothing was graded


def test_one_mistake_is_one_report():
    for name in ANSWERS:
        found = [cause for problem in graded(name).problems for cause in causes(problem)]
        at_most = 0 if name in (*RIGHT, "not implemented") else 1
        assert len(found) == at_most, name
        assert len(render(graded(name)).splitlines()) < 45


def test_different_mistakes_stay_apart_and_are_capped():
    record = graded("full marks on the CPU")
    problem = record.problems[1]
    checks = [
        check.model_copy(
            update={
                "verdict": Verdict.FAIL,
                "message": Message(headline="out is wrong", first=f"out[{i}]", test=f"test_{i}"),
            }
        )
        for i, check in enumerate(problem.checks)
        if check.id != "plain"
    ]
    problem = problem.model_copy(update={"checks": tuple(checks), "verdict": Verdict.FAIL})
    assert len(causes(problem)) == len(checks) > 4
    report = render(with_problems(record, problem))
    assert report.count("error[P03-") == 3
    rest = ", ".join(check.id for check in checks[3:])
    told = f"p03: and {len(checks) - 3} more checks: {rest}; see pytest problems/p03"
    assert told in re.sub(r"\n +", " ", report)


def test_last_line_counts_every_problem_in_one_line():
    record = graded("measured on a GPU")
    problems = [record.problems[1].model_copy(update={"verdict": verdict}) for verdict in Verdict]
    for width in (80, 200):
        last = render(with_problems(record, *problems), width=width).splitlines()[-1]
        assert last.startswith("11 problems: 1 passed, ")
        assert sum(map(int, re.findall(r"\d+", last.split(":")[1]))) == 11


def test_a_component_that_is_missing_shows_as_a_fault_of_the_judge():
    record = graded("measured on a GPU")
    problem = record.problems[1]
    parts = {name: part for name, part in problem.components.items() if name != "speed"}
    report = render(with_problems(record, problem.model_copy(update={"components": parts})))
    assert "!  fault of the judge: costs no points" in report


def test_a_wrong_kernel_has_no_speed_to_show():
    record = graded("measured on a GPU")
    problem = record.problems[1]
    wrong = [CheckResult(id="half", title="", verdict=Verdict.FAIL, weight=1)]
    parts = {
        name: scoring.gate(part, wrong) if name != "correctness" else part
        for name, part in problem.components.items()
    }
    assert "41.2x" in render(with_problems(record, problem))
    report = render(with_problems(record, problem.model_copy(update={"components": parts})))
    assert "41.2x" not in report and "measured" not in report.replace("not measured", "")


def test_absurd_figures_stay_short():
    record = graded("measured on a GPU")
    absurd = {"speedup": 1e300, "median_ms": 1e300, "naive_ms": 1e-300, "spread_percent": 1e9}
    for figures in (SPEED.model_copy(update=absurd), SpeedFigures(), None):
        speed = ComponentResult(
            verdict=Verdict.PASS, points=Points(earned=4, available=4, possible=4), figures=figures
        )
        problem = record.problems[1]
        work = speed.model_copy(update={"figures": VAST})
        parts = problem.components | {"work": work, "speed": speed, "memory": speed}
        report = render(with_problems(record, problem.model_copy(update={"components": parts})))
        assert all(len(line) <= 80 for line in report.splitlines())


def test_hostile_text_cannot_speak_for_the_report(hostile_record):
    report = render(hostile_record)
    assert report.splitlines()[-1] == "1 problem: 0 passed, 1 crashed"
    assert "\n9 problems: 9 passed" not in report
    assert "owned" not in report and "[2J" not in report
    assert "[bold red]x[/]" in report
    assert len(report) < 25_000


def test_the_small_problems_are_those_of_the_students():
    for problem_id in ("p02", "p03"):
        assert small(problem_id).title == load_problem(problem_id).title
        assert len(small(problem_id).checks) >= 4
