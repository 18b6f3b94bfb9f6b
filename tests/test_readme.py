"""README.md: its figures are those of the record, its sample messages those of the judge.

`python -m tests.test_readme` writes the table anew after the record has changed.
"""

import functools
import json
import math
import re
import shlex

import pytest

from grader.base.text import byte_size, milliseconds
from grader.commands.calibrate import command as calibrate
from grader.commands.cli import parser_of
from grader.spec.grade_record import SpeedFigures
from grader.spec.inputs import make_inputs
from grader.spec.problem import ROOT, load_problem, problem_ids
from grader.timing.calibration import SHARE, USUAL_PERCENT, calibrated, slower
from grader.timing.choice import IMPLIED, STATED
from tests import harness
from tests.harness import edited, model_answer
from tests.records import in_this_process, write_answers

README = ROOT / "README.md"
DOCS = tuple((ROOT / "docs").glob("*.md"))
RECORD = ROOT / "docs" / "records" / "nvidia-h200-2026-11-22.json"
BENCHMARK = ROOT / "benchmarks" / "records" / "nvidia-h200-2026-11-21.json"
BEGIN = f"<!-- table of {RECORD.relative_to(ROOT)} -->\n"
END = "<!-- end of table -->"


def table(record: dict) -> str:
    """The speed and memory of every problem of a grade record, as a Markdown table."""
    lines = [
        "| | shape | time | naive | speed-up | extra memory | naive |",
        "|---|---|---|---|---|---|---|",
    ]
    for problem in record["problems"]:
        speed = problem["components"]["speed"]["figures"]
        memory = problem["components"]["memory"]["figures"]
        extra, naive_extra = "", ""
        if memory:
            # PyTorch's allocator takes memory from the driver in segments of 20 MiB.
            extra = f"under {20 * math.ceil(memory['extra_bytes'][-1] / (20 * 2**20))} MiB"
            naive_extra = f"{byte_size(memory['naive_extra_bytes'][-1])} at {memory['lengths'][-1]}"
        cells = (
            problem["id"],
            speed["shape"],
            milliseconds(speed["median_ms"]),
            milliseconds(speed["naive_ms"]),
            f"{speed['speedup']:.1f}x",
            extra,
            naive_extra,
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def readme_with_table() -> str:
    text = README.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return before + BEGIN + table(json.loads(RECORD.read_text())) + rest[rest.index(END) :]


def test_table_is_made_from_the_record():
    assert README.read_text(encoding="utf-8") == readme_with_table()


def test_what_is_said_of_the_answers_memory_is_in_the_record():
    said = " ".join(README.read_text(encoding="utf-8").split())
    assert (
        "What the answers to p02 to p07 themselves ask for beyond their outputs is nothing" in said
    )
    found = set()
    for result in json.loads(BENCHMARK.read_text())["results"]:
        (ours,) = [row for row in result["contenders"] if row["id"] == "ours"]
        found |= {result["problem"]} if ours["extra_bytes"] == 0 else set()
        assert ours["extra_bytes"] == 0 or result["problem"] in ("p01", "p08", "p09")
    assert found == {"p02", "p03", "p04", "p05", "p06", "p07"}


def test_record_is_of_full_marks_on_the_named_machine():
    record = json.loads(RECORD.read_text())
    assert record["environment"]["device_name"] == "NVIDIA H200"
    text = README.read_text(encoding="utf-8")
    assert f"torch {record['environment']['torch']}" in text
    assert f"Triton {record['environment']['triton']}" in text
    for part in (record["totals"], record["bonus"]):
        assert part["earned"] == part["available"]


def test_problem_list_agrees_with_problem_toml():
    text = README.read_text(encoding="utf-8")
    for problem in map(load_problem, problem_ids()):
        bonus = " bonus" if problem.bonus else ""
        row = rf"\| \[{problem.id}\]\(problems/{problem.id}/README\.md\) \| .* \| "
        assert re.search(row + rf"{problem.total_points}{bonus} \|", text), problem.id


def test_sample_messages_are_those_of_the_judge():
    text = " ".join(README.read_text(encoding="utf-8").split())
    p05 = load_problem("p05")
    share = p05.check("groups").weight / sum(check.weight for check in p05.checks)
    assert f"costs the check of groups, {100 * share:g} % of the points for correctness" in text
    first = load_problem("p01").steps[0].title
    assert f"next: p01 step 1 ({first}), problems/p01/README.md; make hint P=p01" in text


def test_the_sample_of_a_wrong_answer_is_what_the_judge_prints(grader, tmp_path, monkeypatch):
    """Of the checks that it names, judged in this process as a grading judges them."""
    (shown,) = re.findall(r"^error\[.*?(?=^```)", README.read_text(encoding="utf-8"), re.M | re.S)
    right, wrong = "q_head // group_size", "q_head % (num_q_heads // group_size)"
    answer = edited(model_answer("p05"), (f"kv_head = {right}", f"kv_head = {wrong}"))
    write_answers(tmp_path, {"p05": answer})
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(harness, "run_of", functools.partial(harness.run_of, shrinks=1))
    p05 = load_problem("p05")
    few = tuple(c for c in p05.checks if c.id in ("plain", "groups", "lse_heads", "lse_lengths"))
    few = p05.model_copy(update={"checks": few})
    seed = re.search(r"SEED=(\w+)", shown)[1]
    words = ("grade", "--submission", tmp_path, "--only", "p05", "--device", "cpu", "--seed", seed)
    with in_this_process(problem_of=lambda id: few, inputs_of=make_inputs):
        _, out, _ = grader(*words)
    (printed,) = re.findall(r"^error\[.*?\n(?=\n)", out, re.M | re.S)
    # The last digits are those of one PyTorch.
    assert re.sub(r"-?\d+\.\d+", "N", printed) == re.sub(r"-?\d+\.\d+", "N", shown)


@pytest.mark.parametrize("path", ["README.md", *sorted(str(p.relative_to(ROOT)) for p in DOCS)])
def test_commands_of_the_grader_have_the_options_that_are_named(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    shown = re.findall(r"^python -m grader (.+)$", text, re.MULTILINE)
    shown += re.findall(r"`python -m grader ([a-z]+ [^`\n]+)`", text)
    for command in shown:
        words = shlex.split(re.sub(r"\bN\b", "3", command), comments=True)
        options = parser_of().parse_args(words)  # ends with a usage error where one is unknown
        assert callable(options.run)
    if path.endswith("grading.md"):
        commands = {command.split()[0] for command in shown}
        assert commands >= {"grade", "lint", "calibrate"}


def test_the_page_on_calibration_says_what_the_judge_does():
    text = (ROOT / "docs" / "grading.md").read_text(encoding="utf-8")
    section = text.split("## Calibrating a GPU\n")[1].split("\n## ")[0]
    section = " ".join(section.split())
    assert f"`full` is {SHARE:g} of the median" in section
    assert f"more than twice the spread seen then, and by more than {USUAL_PERCENT:g} %" in section
    for source in (STATED, IMPLIED):
        assert f"*{source}*" in section
    known = calibrated(load_problem("p03"), "cuda", [SpeedFigures(speedup=9, naive_ms=12.1)])
    assert slower(known, 14.1) in section
    default = (calibrate.LEAST_RUNS, parser_of().parse_args(["calibrate"]).runs)
    assert default == (3, 5) and "five times (`--runs N`)" in section


if __name__ == "__main__":
    README.write_text(readme_with_table(), encoding="utf-8")
