"""The terminal report and the live progress: width, totals, merged causes, hostile text."""

import dataclasses
import io
import json
import re
import unicodedata

import pytest
from rich.cells import cell_len
from rich.console import Console

from grader import scoring
from grader.model import (
    CheckResult,
    ComponentResult,
    Diagnosis,
    GradeRecord,
    Message,
    Points,
    ProblemResult,
    Verdict,
)
from grader.render.progress import Progress
from grader.render.terminal import causes, render
from grader.render.text import byte_size, clean, clean_lines, wrap

NEEDS_GPU = "needs a CUDA GPU"
NO_WORK = "not counted in this version"
TITLES = {
    "p01": ("Tiled attention in PyTorch", (12, 0, 4, 4)),
    "p02": ("Weighted row sum", (6, 1, 3, 0)),
    "p03": ("Non-causal attention", (12, 2, 4, 2)),
    "p04": ("Causal attention", (6, 1, 2, 1)),
    "p05": ("Grouped-query attention", (6, 1, 2, 1)),
    "p06": ("Sliding-window attention", (6, 1, 2, 1)),
    "p07": ("Attention with sink tokens", (12, 2, 4, 2)),
    "p08": ("Grouped-query backward", (12, 2, 4, 2)),
    "p09": ("Sink and window backward", (18, 3, 6, 3)),
}
CPU = {"device": "cpu", "torch": "2.13.0", "triton": "3.7.1", "python": "3.11.7"}
GPU = {**CPU, "device": "cuda", "device_name": "NVIDIA H200"}
DIAGONAL = Diagnosis(
    "P04-DIAGONAL",
    "queries do not see their own key",
    "your output equals attention with the mask  key < query  (relative distance 3e-4)",
    "the diagonal belongs to the visible side: step 2 of the handout",
)
DIAGONAL_MESSAGE = Message(
    headline="the output is wrong in 5 of 6 cases",
    where="p04 step 2, test_diagonal, your causal_attention.py line 71",
    input="batch=2 num_q_heads=4 seqlen=129 head_dim=64 fp16   seed=1f0c",
    first="out[0, 0, 0, 0]   got 0.0000   expected -0.4131   allowed 0.0021",
    extent="every row of every head; no NaN; shape and dtype agree",
    repeat="make grade P=p04 SEED=1f0c",
)
HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07\x9b31mall checks pass [bold red]x[/] \u202egnp.exe\u2066\n"
    "9 problems: 9 passed\r\x00\x7f\u200b" + "\ud800" + "e" + "\u0301" * 40 + "W" * 5000
)


def make_check(name, verdict=Verdict.PASS, *, diagnosis=None, message=None, step=2):
    return CheckResult(name, f"{name} holds", step, verdict, diagnosis=diagnosis, message=message)


SPEED_FIGURES = {
    "speedup": 41.23,
    "median_ms": 0.357,
    "naive_ms": 14.72,
    "spread_percent": 1.04,
    "device": "NVIDIA H200",
    "shape": "batch=4 num_q_heads=16 seqlen=4096 head_dim=64 bf16",
}
MEMORY_FIGURES = {
    "extra_bytes": [655_360, 1_258_291],
    "naive_extra_bytes": [2 * 2**30, 11_059_658_752],
    "allowed_bytes": [2**26, 2**27],
    "lengths": [2048, 4096],
}


def make_problem(problem_id, checks, *, gpu=False, message=None, **overrides):
    """Build a problem from its checks and what the device can measure."""
    title, worth = TITLES[problem_id]
    possible = dict(zip(("correctness", "work", "speed", "memory"), worth, strict=True))
    correctness, checks = scoring.score_correctness(checks, possible["correctness"])
    components = {"correctness": correctness}
    if possible["work"]:
        components["work"] = scoring.not_measured(possible["work"], NO_WORK)
    if gpu:
        speed = scoring.score_speed(SPEED_FIGURES, possible["speed"], floor=1.0, full=20.0)
        components["speed"] = scoring.gate(speed, correctness)
        memory = scoring.score_memory(MEMORY_FIGURES, possible["memory"])
        components["memory"] = scoring.gate(memory, correctness)
    else:
        components["speed"] = scoring.not_measured(possible["speed"], NEEDS_GPU)
        components["memory"] = scoring.not_measured(possible["memory"], NEEDS_GPU)
    components |= overrides
    components = scoring.complete_components(components, possible)
    return ProblemResult(
        id=problem_id,
        title=title,
        bonus=problem_id in ("p08", "p09"),
        verdict=scoring.problem_verdict(components, checks, message),
        points=scoring.problem_points(components),
        components=components,
        checks=checks,
        message=message,
        next_step=f"{problem_id} step 1: see problems/{problem_id}/README.md, then make watch "
        f"P={problem_id}",
    )


def make_record(problems, environment=CPU, **fields):
    problems = tuple(problems)
    totals, bonus = scoring.total(problems)
    return GradeRecord(
        mode=fields.pop("mode", "local"),
        environment=environment,
        seed="1f0c",
        submission="problems",
        problems=problems,
        totals=totals,
        bonus=bonus,
        **fields,
    )


def stubs():
    return make_record(
        make_problem(
            name,
            [make_check(f"check_{i}", Verdict.NOT_IMPLEMENTED) for i in range(6)],
            message=Message(f"{name} is not implemented"),
        )
        for name in TITLES
    )


def passing(name, **options):
    return make_problem(name, [make_check(f"check_{i}") for i in range(7)], **options)


def mixture():
    crash = Message("TypeError: unsupported operand", output="line one\nline two\n")
    refused = Message("the source imports `ctypes`", where="weighted_row_sum.py line 3")
    p04 = make_problem(
        "p04",
        [
            make_check("diagonal", Verdict.FAIL, diagnosis=DIAGONAL, message=DIAGONAL_MESSAGE),
            make_check("layouts", Verdict.FAIL, diagnosis=DIAGONAL),
            make_check("scale"),
            make_check("lengths", Verdict.FAIL, diagnosis=DIAGONAL),
        ],
        gpu=True,
    )
    p05 = make_problem(
        "p05", [make_check(f"kernel_{i}", Verdict.ERROR, message=crash) for i in range(6)], gpu=True
    )
    messages = [Message("wrong", first=f"out[{i}]") for i in range(7)]
    wrong = [make_check(f"rule_{i}", Verdict.FAIL, message=m) for i, m in enumerate(messages)]
    p06 = make_problem("p06", wrong, gpu=True)
    p07 = make_problem(
        "p07",
        [make_check("sinks"), make_check("overlap", Verdict.INTERNAL, message=Message("oracle"))],
        gpu=True,
    )
    possible = {"correctness": 6, "work": 1, "speed": 3, "memory": 0}
    p02 = dataclasses.replace(
        passing("p02", gpu=True),
        verdict=Verdict.REJECTED,
        message=refused,
        checks=(),
        components={k: scoring.withheld(Verdict.REJECTED, n, "x") for k, n in possible.items()},
        points=Points(0, 10, 10),
    )
    p08 = make_problem("p08", [make_check("dq", Verdict.NOT_IMPLEMENTED)])
    problems = [passing("p01", gpu=True), p02, passing("p03", gpu=True), p04, p05, p06, p07, p08]
    return make_record(problems, GPU)


def full_marks():
    problems = []
    for name in TITLES:
        work = ComponentResult(Verdict.PASS, Points(TITLES[name][1][1], *[TITLES[name][1][1]] * 2))
        problems.append(passing(name, gpu=True, work=work))
    return make_record(problems, GPU, mode="official")


def hostile():
    message = Message(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE * 30, HOSTILE)
    diagnosis = Diagnosis(HOSTILE, HOSTILE, HOSTILE, HOSTILE)
    checks = [
        make_check(HOSTILE, Verdict.FAIL, message=message),
        make_check("wide", Verdict.CRASH, message=Message("wide", where="漢字" * 90)),
        make_check("known", Verdict.FAIL, message=message, diagnosis=diagnosis),
        make_check(HOSTILE + "2", Verdict.TIMEOUT, message=message),
    ]
    problem = make_problem("p04", checks, gpu=True)
    figures = {**SPEED_FIGURES, "device": HOSTILE, "shape": HOSTILE}
    components = {
        **problem.components,
        "speed": ComponentResult(Verdict.FAIL, Points(0, 2, 2), HOSTILE, figures),
        "work": scoring.not_measured(1, HOSTILE),
    }
    problem = dataclasses.replace(
        problem, id=HOSTILE, title=HOSTILE, next_step=HOSTILE, components=components
    )
    return make_record([problem], {"device": HOSTILE, "torch": HOSTILE, "triton": None})


RECORDS = {
    "stubs": stubs(),
    "mixture": mixture(),
    "full_marks": full_marks(),
    "hostile": hostile(),
    "empty": make_record([]),
    "bonus_only": make_record([passing("p08")]),
    "interrupted": make_record([passing("p01")], interrupted=True),
}


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("width", [40, 72, 80, 120])
def test_lines_fit_and_are_plain(name, width):
    report = render(RECORDS[name], width=width)
    assert report.endswith("\n") and not report.endswith("\n\n")
    for line in report[:-1].split("\n"):
        assert cell_len(line) <= max(width, 72)
        assert line == line.rstrip()
        assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs") for char in line)


@pytest.mark.parametrize("name", RECORDS)
def test_colour_repeats_the_words(name):
    coloured = render(RECORDS[name], color=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render(RECORDS[name])
    assert "\x1b" not in render(RECORDS[name])


def test_colour_does_not_depend_on_the_environment(monkeypatch):
    expected = render(RECORDS["mixture"], color=True)
    assert "\x1b[" in expected
    for variable in ("NO_COLOR", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("TERM", "dumb")
    assert render(RECORDS["mixture"], color=True) == expected


def test_stubs_show_the_table_and_one_next_step():
    report = render(RECORDS["stubs"])
    lines = report.splitlines()
    assert "error[" not in report and "internal[" not in report
    assert lines[-1] == "9 problems: 0 passed, 9 not implemented"
    assert report.count("next: ") == 1 and "next: p01 step 1" in report
    assert "required 0 / 60 available here (100 in all)" in report
    assert "bonus 0 / 30 available here (50 in all)" in report
    assert f"-  not measured: {NEEDS_GPU} (speed, memory)" in lines
    assert f"-  not measured: {NO_WORK} (work)" in lines
    assert "mode local: not for credit" in lines[0] and "seed 1f0c" in lines[0]
    assert lines[1] == "device cpu   torch 2.13.0   triton 3.7.1   python 3.11.7"


def test_full_marks_say_what_was_measured():
    report = render(RECORDS["full_marks"])
    assert "required 100 / 100\n" in report and "bonus 50 / 50\n" in report
    assert "next: " not in report and "not for credit" not in report
    row = next(line for line in report.splitlines() if re.match(r"p04 .*41", line))
    assert row.split("  ")[-1] == "10.3 GiB"
    assert row.split() == "p04 41.2x 0.357 ms 14.7 ms 1 % 1.2 MiB 10.3 GiB".split()
    assert "device cuda (NVIDIA H200)" in report
    assert report.splitlines()[-1] == "9 problems: 9 passed"


@pytest.mark.parametrize("name", ["stubs", "mixture", "full_marks", "bonus_only"])
def test_totals_agree_with_the_json_record(name):
    data = json.loads(json.dumps(RECORDS[name].to_json()))
    report = render(RECORDS[name])
    for key, label in (("totals", "required"), ("bonus", "bonus")):
        part = data[key]
        if not part["possible"]:
            assert f"{label} " not in report
            continue
        found = re.search(rf"{label} (\d+) / (\d+)(?: available here \((\d+) in all\))?\n", report)
        earned, available, possible = found.groups()
        assert int(earned) == part["earned"] and int(available) == part["available"]
        assert int(possible or available) == part["possible"]
    for problem in data["problems"]:
        row = next(line for line in report.splitlines() if line.startswith(problem["id"]))
        assert row.endswith(f"  {problem['points']['earned']}/{problem['points']['available']}")


def test_checks_with_one_diagnosis_are_one_message():
    report = render(RECORDS["mixture"])
    assert report.count("[P04-DIAGONAL]") == 1
    assert "error[P04-DIAGONAL]: queries do not see their own key" in report
    assert "  also    layouts, lengths" in report
    assert "note: your output equals attention with the mask  key < query" in report
    assert "help: the diagonal belongs to the visible side" in report
    assert "(repeat: make" in report


def test_one_exception_in_every_check_is_one_message():
    report = render(RECORDS["mixture"])
    assert report.count("TypeError: unsupported operand") == 1
    assert "error[P05-ERROR]: TypeError" in report
    assert "  output  | line one\n          | line two\n" in report


def test_different_wrong_results_stay_apart_and_are_capped():
    problem = next(p for p in RECORDS["mixture"].problems if p.id == "p06")
    assert len(causes(problem)) == 7
    report = render(RECORDS["mixture"])
    assert report.count("error[P06-") == 3
    assert "p06: and 4 more checks: rule_3, rule_4, rule_5, rule_6; see --json" in report


def test_fault_of_the_judge_is_not_called_an_error():
    report = render(RECORDS["mixture"])
    assert "internal[P07-INTERNAL]: oracle" in report
    assert "note: this is a fault of the judge: it costs no points" in report
    assert report.splitlines()[-1] == (
        "8 problems: 2 passed, 2 failed, 1 error, 1 not implemented, 1 rejected, 1 other"
    )


def test_last_line_counts_every_problem_in_one_line():
    problems = [dataclasses.replace(passing("p04"), verdict=verdict) for verdict in Verdict]
    for width in (80, 200):
        last = render(make_record(problems), width=width).splitlines()[-1]
        assert last.startswith("11 problems: 1 passed, ")
        assert sum(map(int, re.findall(r"\d+", last.split(":")[1]))) == 11


def test_rejected_problem_is_one_message():
    checks = [make_check("formula", Verdict.REJECTED), make_check("scale", Verdict.SKIPPED)]
    refused = Message("the source imports `ctypes`")
    problem = make_problem("p03", checks, message=refused)
    assert [cause.id for cause in causes(problem)] == ["P03-REJECTED"]


def test_next_step_is_of_the_first_problem_with_points_to_gain():
    assert "next: p02 step 1" in render(RECORDS["mixture"])
    assert "error[P02-REJECTED]: the source imports `ctypes`" in render(RECORDS["mixture"])


def test_missing_component_shows_as_a_fault_of_the_judge():
    problem = passing("p04", gpu=True)
    del problem.components["speed"]
    report = render(make_record([problem], GPU))
    assert "!  fault of the judge: costs no points" in report


def test_details_survive_missing_figures():
    bare = ComponentResult(Verdict.FAIL, Points(0, 2, 2), "too slow", {"speedup": "fast"})
    odd = ComponentResult(Verdict.FAIL, Points(0, 1, 1), None, {"extra_bytes": []})
    report = render(make_record([passing("p04", gpu=True, speed=bare, memory=odd)], GPU))
    assert "p04 speed: too slow" in report


def test_lost_points_say_what_was_missing():
    slow = scoring.score_speed({**SPEED_FIGURES, "speedup": 8.3}, 2, floor=1.0, full=20.0)
    figures = {**MEMORY_FIGURES, "extra_bytes": [2**25, 2**31]}
    report = render(
        make_record(
            [passing("p04", gpu=True, speed=slow, memory=scoring.score_memory(figures, 1))], GPU
        )
    )
    assert "p04 speed: 8.3x naive; no points at 1x, full points at 20x\n" in report
    assert "than is allowed at seqlen 4096" in report and "(128 MiB)" in report
    assert report.splitlines()[-1] == "1 problem: 0 passed, 1 failed"


def test_wrong_kernel_has_no_speed_to_show():
    problem = next(p for p in RECORDS["mixture"].problems if p.id == "p04")
    assert "41.2x" not in render(make_record([problem], GPU))


def test_hostile_text_cannot_speak_for_the_report():
    report = render(RECORDS["hostile"])
    assert report.splitlines()[-1] == "1 problem: 0 passed, 1 crashed"
    assert "\n9 problems: 9 passed" not in report
    assert "owned" not in report and "[2J" not in report
    assert "[bold red]x[/]" in report
    assert len(report) < 20_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\r\nc\u2028d", "a b c d"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;title", ""),
        ("\x1bcreset", "reset"),
        ("a\u202eb\u2066c\u200bd\ufeff", "abcd"),
        ("\ud800x\x00\x7f\x85y", "x y"),
        ("a\tb\u00a0c", "a b c"),
        ("漢字 é", "漢字 é"),
        (None, ""),
        (12, "12"),
    ],
)
def test_clean(text, expected):
    assert clean(text) == expected


def test_clean_limits_length():
    assert len(clean("x" * 10**6)) == 300
    assert clean("x" * 301).endswith(" [...]")
    assert clean("e" + "\u0301" * 100) == "e" + "\u0301" * 2
    tail = clean_lines("\n".join(f"line {i}" for i in range(100)) + "\n\n")
    assert tail == [f"line {i}" for i in range(90, 100)]


@pytest.mark.parametrize("text", ["", "a b   c", "x" * 500, "漢" * 200, "a " * 200, " lead"])
def test_wrap_fits_and_keeps_every_character(text):
    lines = wrap(text, 40, "  where   ")
    assert all(cell_len(line) <= 40 for line in lines)
    assert lines[0].startswith("  where   ".rstrip())
    joined = "".join(line[10:] for line in lines)
    assert joined.replace(" ", "") == text.replace(" ", "")


def test_byte_sizes():
    assert [byte_size(n) for n in (0, 1023, 1024, 1_258_291, 11_059_658_752, float("nan"))] == [
        "0 B", "1023 B", "1.0 KiB", "1.2 MiB", "10.3 GiB", None
    ]  # fmt: skip


def test_absurd_figures_stay_short():
    assert len(byte_size(1e300)) < 16
    problem = passing("p04", gpu=True)
    absurd = {"speedup": 1e300, "median_ms": 1e300, "naive_ms": 1e-300, "spread_percent": 1e9}
    speed = ComponentResult(Verdict.PASS, Points(2, 2, 2), None, absurd)
    problem = dataclasses.replace(problem, components={**problem.components, "speed": speed})
    assert all(len(line) <= 80 for line in render(make_record([problem], GPU)).splitlines())


def run_progress(console, *, fail=False):
    ticks = iter(range(1000))
    with Progress(console, clock=lambda: next(ticks) / 10) as progress:
        progress.start({"p04": 2, "p05": 1})
        progress.phase("p04", "import")
        progress.check_done("p04", "diagonal", Verdict.PASS)
        if fail:
            raise RuntimeError("the orchestrator broke")
        progress.check_done("p04", "\x1b[31mlengths", Verdict.FAIL)
        progress.problem_done("p04", Verdict.FAIL, Points(3, 6, 10))
        progress.check_done("p09", "unannounced", Verdict.PASS)
        progress.problem_done("p09", Verdict.PASS, Points(1, 1, 1))
    progress.stop()


def test_progress_without_a_terminal_is_one_line_a_problem():
    stream = io.StringIO()
    run_progress(Console(file=stream, force_terminal=False))
    assert stream.getvalue().splitlines() == [
        "p04  fail  1/2 correctness checks  3/6 points  0.1 s",
        "p09  pass  1/1 correctness checks  1/1 points  0.1 s",
    ]


def test_progress_survives_a_closed_stream():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=False)
    stream.close()
    run_progress(console)


@pytest.mark.parametrize("fail", [False, True])
def test_progress_gives_the_cursor_back(fail):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, legacy_windows=False, _environ={})
    try:
        run_progress(console, fail=fail)
    except RuntimeError:
        assert fail
    written = stream.getvalue()
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l") >= 0
    assert "diagonal" in written or "waiting" in written
    assert "\x1b[31mlengths" not in written
