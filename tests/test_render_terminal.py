"""The report on a terminal: goldens of what the judge says, width, totals, hostile text.

The records of the goldens come out of the judge's own rooms (tests/records.py). After a change of
the report: pytest tests/test_render_terminal.py --snapshot-update, and read the difference.

Over 400 lines, nearly all of them records.
"""

import json
import re
import unicodedata

import pytest
from rich.cells import cell_len

from grader.judge import scoring
from grader.judge.next_step import next_step
from grader.report import gradescope, markdown
from grader.report.html import page
from grader.report.message import causes
from grader.report.terminal import render
from grader.source.submission import read_source, step_regions
from grader.spec.findings import Evidence
from grader.spec.grade_record import (
    Amount,
    CheckResult,
    ComponentResult,
    Diagnosis,
    MemoryFigures,
    Message,
    Points,
    SpeedFigures,
    TileMap,
    Verdict,
    WorkFigures,
)
from grader.spec.kernel_report import Compilation, KernelReport
from grader.spec.problem import ROOT, load_problem, problem_ids
from tests.harness import model_answer
from tests.records import H200, graded, small
from tests.tracing import evil

ENTRY = "    rows, cols = x.shape\n"
SPEED = SpeedFigures(
    speedup=41.23,
    median_ms=0.357,
    naive_ms=14.72,
    spread_percent=1.04,
    naive_drift_percent=0.3,
    samples=7,
    worst_error_over_allowed=0.4,
    device="NVIDIA H200",
    shape="batch=4 num_q_heads=16 seqlen=4096 head_dim=64 bf16",
)
MEMORY = MemoryFigures(
    lengths=(8192, 16384),
    extra_bytes=(655_360, 1_258_291),
    naive_extra_bytes=(2 * 2**30, 11_059_658_752),
    allowed_bytes=(2**26, 2**27),
)
END_KEY = "tl.minimum(query_start + BLOCK_M, seqlen)"
# Every tile is visited and masked.
IN_VAIN = ((END_KEY, "seqlen"), ("if key_start >= full_end:", "if key_start >= 0:"))
TWICE = (
    ("range(0, end_key, BLOCK_N)", "range(-BLOCK_N, end_key, BLOCK_N)"),
    ("keys = key_start + offs_n  #", "keys = tl.maximum(key_start, 0) + offs_n  #"),
    ("k_ptr += BLOCK_N * stride", "k_ptr += tl.where(key_start < 0, 0, BLOCK_N) * stride"),
    ("v_ptr += BLOCK_N * stride", "v_ptr += tl.where(key_start < 0, 0, BLOCK_N) * stride"),
)
HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07\x9b31mall checks pass [bold red]x[/] \u202egnp.exe\u2066\n"
    "9 problems: 9 passed\r\x00\x7f\u200b" + "\ud800" + "e" + "\u0301" * 40 + "W" * 5000
)

VAST = WorkFigures(
    elements_read=Amount(done=10**30, needed=0, naive=-1),
    shape=HOSTILE,
    tiles=TileMap(
        product="dk", batch=3, head=999, tile_q=2**31, tile_k=2**31, rows=("#/ox!2." * 7,) * 49
    ),
)


def edited(problem_id, *edits):
    """The model answer with pieces of its text replaced."""
    text = model_answer(problem_id)
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def in_entry(lines):
    return {"p02": edited("p02", (ENTRY, ENTRY + lines))}


def unfinished(problem_id, step):
    """The model answer as a stub of which the steps before `step` are filled in."""
    lines = model_answer(problem_id).split("\n")
    regions = step_regions("\n".join(lines))
    for number, (first, last) in regions.items():
        if number >= step:
            stands = "    raise NotImplementedError" if number == 1 else ""
            lines[first : last - 1] = [stands] + [""] * (last - first - 2)
    return "\n".join(lines)


def p02(old, new):
    return {"p02": edited("p02", (old, new))}


ANSWERS = {
    "full marks on the CPU": {"p02": model_answer("p02"), "p03": model_answer("p03")},
    "a known mistake": p02(" * w_tile.to(tl.float32)[None, :]", ""),
    "a mistake in one check": p02("col_ids * stride_wn", "col_ids"),
    "a wrong number": p02("acc += products", "acc += 0.75 * products"),
    "never written": p02("row_mask = row_ids < rows", "row_mask = row_ids < 99"),
    "computed as NaN": p02("tl.sum(acc, axis=1)", "tl.sum(acc, axis=1) * float('inf') * 0.0"),
    "an exception with output": in_entry(
        "    print('rows', rows)\n    raise RuntimeError(f'no room for {cols}')\n"
    ),
    "an exception in a kernel": p02("w_ptr + col_ids *", "w_ptr + columns *"),
    "an endless loop": in_entry("    while rows: pass\n"),
    "no kernel": in_entry("    return x.new_zeros(x.shape[0])\n"),
    "sums by PyTorch": in_entry(
        "    products = (x.float() * w.float()).unbind(1)\n    return sum(products).to(x.dtype)\n"
    ),
    "against the source policy": {
        "p02": "import os; os.getpid()\n"
        + in_entry("    return torch.einsum('mn,n->m', x, w)\n")["p02"],
    },
    "outside a tensor": p02("w_ptr + col_ids *", "w_ptr + (rows + col_ids) *"),
    "not implemented": {"p02": unfinished("p02", 1), "p03": unfinished("p03", 1)},
    "a syntax error": {"p02": "import torch\n\ndef weighted_row_sum(x, w:\n    return x\n"},
    "tiles visited twice": {"p04": edited("p04", *TWICE)},
    "tiles never visited": {"p04": edited("p04", (END_KEY, END_KEY + " - BLOCK_N"))},
    "a walk as it is due": {
        "p04": edited("p04", ("v, running_max, new_max,", "v, new_max, new_max,"))
    },
    "tiles in vain": {"p04": edited("p04", *IN_VAIN)},
    "a fault of the judge": {"p02": model_answer("p02"), "p03": "# fault\n" + model_answer("p03")},
}
MEASURED = {
    "p02": (
        Evidence(figures=SPEED.model_copy(update={"speedup": 1.8, "naive_ms": 0.643})),
        Evidence(verdict=Verdict.NOT_MEASURED, reason="not measured on this device"),
    ),
    "p03": (Evidence(figures=SPEED), Evidence(figures=MEMORY)),
    "p04": (
        Evidence(verdict=Verdict.FAIL, reason="a timed output is wrong (23 x the allowed error)"),
        Evidence(figures=MEMORY.model_copy(update={"extra_bytes": (2**25, 2**31)})),
    ),
    "p08": (
        Evidence(verdict=Verdict.NOT_MEASURED, reason="not measured: the machine is busy (two"
                 " baselines 18 % apart); make grade P=p08 again"),
        Evidence(verdict=Verdict.INTERNAL, reason="the judge failed: OSError: no space left"),
    ),
}  # fmt: skip
COUNTED = {
    "p04": Evidence(
        figures=WorkFigures(
            multiply_adds=Amount(done=1310, needed=1000, naive=1800),
            elements_read=Amount(done=1200, needed=1000, naive=1700),
            full=1.1,
        )
    ),
    "p08": Evidence(
        verdict=Verdict.NOT_MEASURED,
        reason="needs Triton's interpreter, which this Triton has not with this numpy",
    ),
}
RIGHT = ("full marks on the CPU", "tiles in vain")
GOLDEN = [*ANSWERS, "measured on a GPU"]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Every record of the goldens, made when it is first asked for."""
    made = {}

    def record(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("answers")
            if name == "measured on a GPU":
                answers = {problem_id: model_answer(problem_id) for problem_id in MEASURED}
                given = {"measured": MEASURED, "work": COUNTED}
                made[name] = graded(folder, answers, environment=H200, **given)
            else:
                made[name] = graded(folder, ANSWERS[name])
        return made[name]

    return record


def settled(report):
    """The report without what the clock, or the version of Python, says."""
    report = re.sub(r"took \d+ s of", "took N s of", report)
    return re.sub(r"Current thread .* \(most recent", "Stack (most recent", report)


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", GOLDEN)
def test_the_report_is_as_it_was_read_and_approved(records, snapshot, name, width):
    assert settled(render(records(name), width=width)) == snapshot


@pytest.mark.parametrize("name", ["full marks on the CPU", "tiles in vain", "tiles visited twice"])
def test_the_map_is_as_it_was_read_and_approved(records, snapshot, name):
    plain, report = render(records(name)), render(records(name), maps=True)
    more = [line for line in report.splitlines() if line not in plain.splitlines()]
    assert "\n".join(more) == snapshot
    assert set(plain.splitlines()) <= set(report.splitlines())


def hostile(problem):
    """A problem all of whose texts are hostile."""
    message = Message(
        headline=HOSTILE,
        test=HOSTILE,
        file=HOSTILE,
        input=HOSTILE,
        first=HOSTILE,
        worst=HOSTILE,
        extent=HOSTILE,
        output=HOSTILE * 30,
        help=HOSTILE,
        repeat=HOSTILE,
        trace=evil(HOSTILE),
    )
    diagnosis = Diagnosis(id=HOSTILE, title=HOSTILE, note=HOSTILE, help=HOSTILE)
    wide = Message(headline="wide", file="漢字" * 90)
    verdicts = [Verdict.FAIL, Verdict.CRASH, Verdict.FAIL, Verdict.TIMEOUT]
    messages = [message, wide, message, message.model_copy(update={"first": None})]
    check = problem.checks[0]
    checks = [
        check.model_copy(update={"id": f"{i}{HOSTILE}", "verdict": verdict, "message": text})
        for i, (verdict, text) in enumerate(zip(verdicts, messages, strict=True))
    ]
    checks[2] = checks[2].model_copy(update={"diagnosis": diagnosis})
    figures = SPEED.model_copy(update={"device": HOSTILE, "shape": HOSTILE})
    lost = {"verdict": Verdict.FAIL, "points": Points(available=4, possible=4), "reason": HOSTILE}
    components = {
        **problem.components,
        "speed": ComponentResult(**lost, figures=figures),
        "work": ComponentResult(**lost, figures=VAST),
        "memory": scoring.not_measured(1, HOSTILE),
    }
    update = {"id": HOSTILE, "title": HOSTILE, "next_step": HOSTILE, "components": components}
    update |= {"checks": tuple(checks), "verdict": Verdict.CRASH, "unseen": HOSTILE}
    return problem.model_copy(update=update)


def with_problems(record, *problems, **fields):
    totals, bonus = scoring.total(problems)
    update = {"problems": problems, "totals": totals, "bonus": bonus}
    return record.model_copy(update=update | fields)


@pytest.fixture
def hostile_record(records):
    record = records("measured on a GPU")
    texts = dict.fromkeys(("device_name", "torch", "python"), HOSTILE) | {"notes": (HOSTILE,)}
    environment = record.environment.model_copy(update=texts)
    problem = hostile(record.problems[1])
    return with_problems(record, problem, environment=environment, submission=HOSTILE)


@pytest.mark.parametrize("name", [*GOLDEN, "hostile", "empty", "bonus only", "interrupted"])
@pytest.mark.parametrize("width", [40, 72, 80, 120])
def test_lines_fit_and_are_plain_and_colour_repeats_the_words(records, hostile_record, name, width):
    whole = records("measured on a GPU")
    record = {
        "hostile": lambda: hostile_record,
        "empty": lambda: with_problems(whole),
        "bonus only": lambda: with_problems(whole, whole.problems[3]),
        "interrupted": lambda: whole.model_copy(update={"interrupted": True}),
    }.get(name, lambda: records(name))()
    report = render(record, width=width, maps=True)
    assert report.endswith("\n") and not report.endswith("\n\n")
    for line in report[:-1].split("\n"):
        assert cell_len(line) <= max(width, 72)
        assert line == line.rstrip()
        assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs") for char in line)
    coloured = render(record, width=width, color=True, maps=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == report


def test_colour_does_not_depend_on_the_environment(records, monkeypatch):
    record = records("a known mistake")
    expected = render(record, color=True)
    assert "\x1b[" in expected
    for variable in ("NO_COLOR", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("TERM", "dumb")
    assert render(record, color=True) == expected


NUMBER = r"\d+(?:\.\d)?"


@pytest.mark.parametrize("name", GOLDEN)
def test_totals_agree_with_the_json_record_and_with_their_parts(records, name):
    data = json.loads(records(name).to_json())
    report = render(records(name))
    for key, label in (("totals", "required"), ("bonus", "bonus")):
        part = data[key]
        bonus = [problem for problem in data["problems"] if problem["bonus"] is (key == "bonus")]
        for kind in ("earned", "available", "possible"):
            assert part[kind] == pytest.approx(sum(p["points"][kind] for p in bonus))
        if not part["possible"]:
            assert f"{label} " not in report
            continue
        pattern = rf"{label} ({NUMBER}) / ({NUMBER})(?: available here \(({NUMBER}) in all\))?\n"
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


def test_the_step_is_that_of_the_line_where_there_is_one(records):
    (problem,) = records("an exception in a kernel").problems
    assert {c.step for c in problem.checks if c.verdict is Verdict.ERROR} == {5}
    assert "p02 step 5, test_plain, weighted_row_sum.py line " in render(
        records("an exception in a kernel")
    )
    assert problem.next_step.startswith("p02 step 5 (addresses from strides)")


def test_the_next_step_is_not_the_command_that_was_just_run(records):
    for name in set(ANSWERS) - {"a fault of the judge"}:
        lines = render(records(name)).splitlines()
        start = next(n for n, line in enumerate(lines) if line.startswith("next: "))
        following = " ".join(lines[start:-1])
        assert "make grade" not in following or following.endswith("make grade P=p04 MAP=1"), name


def test_after_the_last_problem_that_is_done_comes_the_next_one(records):
    done = records("full marks on the CPU")
    assert "\nnext: p04, Causal attention: problems/p04/README.md\n" in render(done)
    (first, second) = done.problems
    last = second.model_copy(update={"id": "p09"})
    assert "next: " not in render(with_problems(done, first, last))
    strange = second.model_copy(update={"id": HOSTILE})
    assert "next: " not in render(with_problems(done, first, strange))
    assert "next: p03, " in render(with_problems(done, first))


def test_the_command_of_the_next_step_stays_whole(records):
    for width in (72, 80, 90):
        report = render(records("a known mistake"), width=width)
        assert "\n      make explain ID=P02-WEIGHTS-IGNORED\n" in report


def test_a_case_that_was_followed_is_followed_again(records):
    record = records("a walk as it is due")
    (problem,) = record.problems
    checks = [c.model_copy(update={"diagnosis": None}) for c in problem.checks]
    source = read_source(load_problem("p04"), ROOT / "solutions")
    parts = problem.components
    given = (load_problem("p04"), source, checks, parts["correctness"], parts["work"])
    assert next_step(*given).endswith("make trace P=p04 CASE=plain:1 SEED=5eed PROGRAM=0,0,0")


def test_errors_come_before_figures(records):
    fault = render(records("a fault of the judge"))
    assert fault.index("internal[P03") < fault.index("\nmeasured ")
    kernel = KernelReport(kernel="_attention_kernel", line=3, registers=40)
    (problem,) = records("tiles visited twice").problems
    check = problem.checks[-1].model_copy(
        update={"kernels": (Compilation(kernel=kernel, capability=80),)}
    )
    problem = problem.model_copy(update={"checks": (*problem.checks[:-1], check)})
    report = render(with_problems(records("tiles visited twice"), problem))
    assert report.index("error[P04") < report.index("\ncompiled ") < report.index("\nnext: ")


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.NOT_IMPLEMENTED])
def test_titles_are_whole(records, verdict):
    record = records("full marks on the CPU")
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


def test_bonus_problems_alone_have_no_required_points(records):
    record = records("full marks on the CPU")
    bonus = record.problems[1].model_copy(update={"id": "p08", "bonus": True})
    alone = with_problems(record, bonus)
    for text in (
        render(alone),
        markdown.render(alone),
        gradescope.render(alone),
        page.render(alone),
    ):
        assert "required 0" not in text and "bonus 14 / 14" in text
    assert "required 0 / 0" in markdown.render(with_problems(record))  # nothing was graded


def test_one_mistake_is_one_report(records):
    for name in ANSWERS:
        found = [cause for problem in records(name).problems for cause in causes(problem)]
        at_most = 0 if name in (*RIGHT, "not implemented") else 1
        assert len(found) == at_most, name
        assert len(render(records(name)).splitlines()) < 45


def test_different_mistakes_stay_apart_and_are_capped(records):
    record = records("full marks on the CPU")
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


def test_last_line_counts_every_problem_in_one_line(records):
    record = records("measured on a GPU")
    problems = [record.problems[1].model_copy(update={"verdict": verdict}) for verdict in Verdict]
    for width in (80, 200):
        last = render(with_problems(record, *problems), width=width).splitlines()[-1]
        assert last.startswith("11 problems: 1 passed, ")
        assert sum(map(int, re.findall(r"\d+", last.split(":")[1]))) == 11


def test_a_component_that_is_missing_shows_as_a_fault_of_the_judge(records):
    record = records("measured on a GPU")
    problem = record.problems[1]
    parts = {name: part for name, part in problem.components.items() if name != "speed"}
    report = render(with_problems(record, problem.model_copy(update={"components": parts})))
    assert "!  fault of the judge: costs no points" in report


def test_a_wrong_kernel_has_no_speed_to_show(records):
    record = records("measured on a GPU")
    problem = record.problems[1]
    wrong = [CheckResult(id="half", title="", verdict=Verdict.FAIL, weight=1)]
    parts = {
        name: scoring.gate(part, wrong) if name != "correctness" else part
        for name, part in problem.components.items()
    }
    assert "41.2x" in render(with_problems(record, problem))
    report = render(with_problems(record, problem.model_copy(update={"components": parts})))
    assert "41.2x" not in report and "measured" not in report.replace("not measured", "")


def test_absurd_figures_stay_short(records):
    record = records("measured on a GPU")
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
