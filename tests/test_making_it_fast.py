"""docs/making-it-fast.md: its figures have a source and its commands exist."""

import json
import re
import shlex

from benchmarks import variants
from grader.spec.problem import ROOT

TEXT = (ROOT / "docs" / "making-it-fast.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROSE = re.sub(r"<!--.*?-->", "", FENCE.sub("", TEXT))  # marks of `release` are no words
(EXAMPLE,) = [block for language, block in FENCE.findall(TEXT) if language == "python example"]
NOTES = (ROOT / "benchmarks" / "NOTES.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def read(path):
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def test_the_example_begins_with_figures_of_the_records():
    graded = read("docs/records/nvidia-h200-2026-11-22.json")
    (p04,) = [problem for problem in graded["problems"] if problem["id"] == "p04"]
    speed = p04["components"]["speed"]["figures"]
    assert round(speed["median_ms"], 3) == 0.315 and "0.315e-3" in EXAMPLE
    assert speed["shape"] == "batch=4 num_q_heads=16 seqlen=4096 head_dim=64 bf16"
    timed = read("benchmarks/records/nvidia-h200-2026-11-21.json")
    assert round(timed["ceilings"]["matmul_tflops"]) == 791 and "791e12" in EXAMPLE
    assert round(timed["ceilings"]["copy_gbps"]) == 4307 and "4307e9" in EXAMPLE
    assert timed["hardware"]["multiprocessors"] == 132
    assert timed["hardware"]["clocks_mhz"].endswith(" 1980")


def test_every_time_and_ratio_has_a_source():
    sources = re.sub(r"\s+", " ", NOTES + README)
    figures = re.findall(r"(?<![\d.])(\d+\.\d+)(?= (?:to|ms\b))|(?<![\d.])(\d+\.\d+)x", PROSE)
    found = {a or b for a, b in figures}
    assert len(found) > 20
    computed = {"0.128"}  # in the example
    for figure in found - computed:
        assert re.search(rf"(?<![\d.]){figure}(?!\d)", sources), figure
    assert "0.128" in EXAMPLE


def test_the_claims_are_those_of_the_record():
    claims = " ".join(PROSE[PROSE.index("## How to read a claimed speed-up") :].split())
    graded = read("docs/records/nvidia-h200-2026-11-22.json")
    by_id = {problem["id"]: problem["components"] for problem in graded["problems"]}
    for problem in ("p03", "p04", "p06"):
        assert f"{by_id[problem]['speed']['figures']['speedup']:.1f}x" in claims
    memory = by_id["p04"]["memory"]["figures"]
    # One segment of PyTorch's allocator, in which outputs of 2 MiB and 64 KiB lie.
    assert memory["extra_bytes"][-1] == 20 * 2**20 - 16384 * (64 * 2 + 4)
    assert "outputs p04 asks for no memory" in claims
    assert f"{memory['naive_extra_bytes'][-1] / 2**30:.1f} GiB" in claims


def test_commands_of_the_benchmark_are_read_by_it():
    commands = re.findall(r"`python -m benchmarks\.variants ([^`]+)`", PROSE)
    assert len(commands) >= 2
    for command in commands:
        assert variants.main([*shlex.split(command), "--dry-run"]) == 0


def test_short_enough_to_be_read():
    for part in re.split(r"^##+ ", PROSE, flags=re.MULTILINE):
        lines = [line for line in part.splitlines() if not line.startswith("|")]
        assert len(" ".join(lines).split()) <= 200, part
