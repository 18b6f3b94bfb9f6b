"""Tests that the figures in benchmarks/limits/README.md are those of the records.

`python -m benchmarks.tests.test_limits_page` writes the table again after the record has changed.
"""

import json
import re

import pytest

from benchmarks.limits import training
from grader.spec.problem import ROOT

PAGE = ROOT / "benchmarks" / "limits" / "README.md"
RECORDS = ROOT / "benchmarks" / "records"
RECORD = json.loads((RECORDS / "nvidia-h200-2026-11-23-limits.json").read_text())
VARIANTS = json.loads((RECORDS / "limits-variants-2026-11-23.json").read_text())
BACKWARD = json.loads((RECORDS / "limits-backward-2026-11-23.json").read_text())
BEGIN = "<!-- table of ../records/nvidia-h200-2026-11-23-limits.json -->\n"
END = "<!-- end of table -->"
FULL, SHORT, WINDOW = "2,16,16,8192,128,full", "16,16,16,1024,128", "1,32,8,16384,128,w=4096"
CAUSAL, WIDE, GPT_OSS = "1,64,8,8192,128", f"{WINDOW},s=4", "1,64,8,8192,64,w=128,s=4"


def milliseconds(result):
    return {row["id"]: row["median_ms"] for row in result["contenders"]}


def table():
    """Return a row per result: the best peer's time over the answer's and over that here."""
    lines = ["| | shape | pass | best peer | answer | here |", "|---|---|---|---|---|---|"]
    for result in RECORD["results"]:
        ms = milliseconds(result)
        row = next(row for row in result["contenders"] if row["id"] == "limits")
        peer = ms[result["best_peer"]]
        here = "plain" if "plain" in row["label"] else f"{peer / ms['limits']:.2f}"
        lines.append(
            f"| {result['problem']} | {result['shape']['label']} | {result['pass']}"
            f" | {peer:.3f} ms | {peer / ms['ours']:.2f} | {here} |"
        )
    return "\n".join(lines) + "\n"


def page_with_table():
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + table() + rest[rest.index(END) :]


def test_the_table_is_that_of_the_record():
    assert PAGE.read_text(encoding="utf-8") == page_with_table()


def test_the_account_of_the_page_adds_up():
    rows = re.findall(r"^\| ([a-z0-9 ]+) \| .* \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.M)
    said = {unit: (int(wide), int(narrow)) for unit, wide, narrow in rows}
    queries, keys = 64, 128
    for i, head_dim in enumerate((128, 64)):
        operands = 2 * head_dim * (queries + keys + keys)  # bytes that two products read
        assert said["tensor cores"][i] == 2 * queries * keys * head_dim / 2048
        assert said["exp2"][i] == queries * keys / 16
        assert said["shared memory"][i] == operands / 128


def forward(run, shape):
    return {
        row["variant"]: row["ms"]
        for row in VARIANTS["forward"]
        if (row["run"], row["shape"]) == (run, shape)
    }


def backward(run, shape):
    return {
        row["variant"]: row["ms"]
        for row in BACKWARD["backward"]
        if (row["run"], row["shape"]) == (run, shape)
    }


def test_the_steps_are_those_of_the_record():
    page = PAGE.read_text().partition("## The gradients")[0]
    said = dict(re.findall(r"^\| ([a-zA-Z0-9' ]+) \| ([0-9.]+) \|.*\|$", page, re.M))
    found = forward(1, FULL)
    variants = {
        "plain answer": "answer", "steps 1 and 2": "step-2", "step 3": "step-3",
        "and a softmax under one's own second product": "step-4", "step 4": "default",
        "and the softmax after both products again": "wait-moved", "cuDNN": "cudnn",
    }  # fmt: skip
    for name, variant in variants.items():
        assert float(said[name]) == pytest.approx(found[variant], abs=6e-4), name


def longer(one, other):
    """Return by how many percent `one` is longer than `other`, rounded."""
    return round(100 * (one / other - 1))


def test_what_the_page_says_in_words():
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    short = forward(3, SHORT)
    assert f"{short['explicit']:.3f} for {short['apart']:.3f} (run 3)" in page
    windows = [forward(2, s) for s in (WINDOW, "1,32,8,16384,128,w=1024,s=4")]
    windows.append(forward(2, "1,32,8,16384,128,w=1024"))
    saved = [round(100 * (1 - w["moved"] / w["moved-free"])) for w in windows]
    assert f"{min(saved)} to {max(saved)} % (run 2)" in page
    overlap = [(forward(1, FULL)["default"], forward(1, FULL)["wait-moved"])]
    for shape in {row["shape"] for row in VARIANTS["forward"] if row["run"] == 2} - {SHORT}:
        overlap.append((forward(2, shape)["default"], forward(2, shape)["moved"]))
    less = [round(100 * (1 - moved / default)) for default, moved in overlap]
    assert f"take {min(less)} to {max(less)} % less" in page
    counters = VARIANTS["counters"]
    assert f"{round(counters['tensor_pipe_percent'])} % of the cycles" in page
    assert f"exp2 in {round(counters['xu_pipe_percent'])} %, at {counters['clock_ghz']} GHz" in page

    one, causal = forward(1, FULL), forward(1, "2,16,16,8192,128")
    poly = [longer(x["poly"], x["default"]) for x in (one, causal)]
    assert f"| {min(poly)} to {max(poly)} % longer: exp2" in page
    three = [longer(one[x], one["default"]) for x in one if x.startswith("3c") and "poly" not in x]
    assert f"{min(three)} to {max(three)} % longer without a mask" in page
    for name in ("late-v", "s3", "turn-early"):
        assert abs(one[name] / one["default"] - 1) < 0.01
    assert f"| {longer(causal['toggle-persistent'], causal['default'])} % longer |" in page
    snake = forward(2, "2,16,16,8192,128")
    assert f"| {longer(snake['flip'], snake['default'])} % longer |" in page
    older = next(
        row["ms"]
        for row in VARIANTS["backward"]
        if (row["run"], row["shape"]) == (2, "2,64,8,8192,64")
    )
    assert f"({older['dkdv-reg']:.2f} for {older['dkdv']:.2f} ms, run 2" in page
    at_64 = [
        longer(min(v for k, v in x.items() if k not in ("answer", "cudnn", "flex")), x["answer"])
        for x in (forward(1, s) for s in ("2,64,8,8192,64,w=1024", "2,64,8,8192,64,w=128,s=4"))
    ]
    at_64 += [
        longer(x["explicit"], x["answer"])
        for x in (forward(3, s) for s in ("1,32,32,16384,64", "2,64,8,8192,64,w=128"))
    ]
    assert f"| {min(at_64)} to {max(at_64)} % longer than the plain answer |" in page


def test_the_ways_to_add_dq_are_those_of_the_record():
    rows = re.findall(r"^\| ([^|]+) \| ([0-9.]+) \| (\d) \|$", PAGE.read_text(), re.M)
    variants = {
        "without the fifth product": "no-dq", "with it, nothing added": "no-adding",
        "added from registers, in rows of the tile": "registers",
        "so that a warp adds 256 bytes in a row": "registers-256",
        "added by TMA from shared memory, all heads at each tile": "back-all-heads",
        "the same, one head after the other": "back",
        "two kernels, seven products": "seven", "cuDNN": "cudnn",
    }  # fmt: skip
    assert [name for name, _, _ in rows] == list(variants)
    for name, ms, run in rows:
        assert ms == f"{backward(int(run), CAUSAL)[variants[name]]:.2f}", name


def test_what_the_page_says_of_the_gradients():
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    forwards, back = backward(3, WIDE)["tma"], backward(5, WIDE)["back"]
    assert f"(window of 4096: {forwards:.2f} for {back:.2f} ms, runs 3 and 5;" in page
    around = backward(5, CAUSAL)["begin"] + backward(5, CAUSAL)["cast"]
    assert f"delta, zeros and the cast of dQ take {around:.2f} ms more" in page
    causal, wide = backward(6, CAUSAL), backward(6, WIDE)
    assert f"causal {causal['231']:.2f} ms with one of dQ and three of dS" in page
    assert f"{causal['222']:.2f} with two of each" in page
    assert f"{wide['231']:.2f} and {wide['222']:.2f} (run 6)" in page
    narrow = backward(5, GPT_OSS)
    skipped = f"{narrow['without-dq']:.3f} for {narrow['seven-dkdv']:.3f} ms"
    assert f"({skipped} at gpt-oss's shape, run 5)" in page
    last, seven = backward(5, CAUSAL), backward(5, CAUSAL)["seven"]
    assert f"takes {last['back-no-adding']:.2f} ms, run 5" in page
    assert f"| {seven:.2f} ms for {last['back']:.2f} and what is around it |" in page
    halves = [longer(x["halves"], x["turns"]) for x in (backward(4, CAUSAL), backward(4, WIDE))]
    assert f"causal {halves[0]} % longer, a window of 4096 {-halves[1]} % less" in page


def test_what_was_aimed_at_and_not_reached():
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    found = {(r["problem"], r["shape"]["label"], r["pass"]): r for r in RECORD["results"]}

    def ratio(*key):
        ms = milliseconds(found[key])
        return ms[found[key]["best_peer"]] / ms["limits"]

    assert f"at head_dim 128 ({ratio('p08', CAUSAL, 'backward'):.2f})" in page
    narrower = WIDE.replace("4096", "1024")
    assert f"a window of 1024 forward ({ratio('p09', narrower, 'forward'):.2f})" in page
    assert f"of 4096 backward ({ratio('p09', WIDE, 'backward'):.2f})" in page
    assert f"gpt-oss's shape ({ratio('p09', GPT_OSS, 'backward'):.1f})" in page
    wide, narrow = backward(7, WIDE), backward(7, GPT_OSS)
    few, here = "begin-32-1024-4-4", f"begin-{training._PREPARED_QUERIES}-{training._PROGRAMS}-1-4"
    assert f"it takes {wide[few]:.3f} ms in place of {wide[here]:.3f} at head_dim 128" in page
    assert f"but {narrow[few]:.3f} in place of {narrow[here]:.3f} at gpt-oss's shape" in page
    full = found["p03", FULL, "forward"]
    matmul = round(full["ceilings"]["matmul_tflops"], -1)
    limits = next(r["rate"] for r in full["contenders"] if r["id"] == "limits")
    assert f"reached {matmul:.0f} TFLOP/s in the run of the table above" in page
    assert f"without that overlap {limits:.0f}." in page


def test_the_figures_at_the_top_are_those_of_the_table():
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    at = {}
    for result in RECORD["results"]:
        row = next(row for row in result["contenders"] if row["id"] == "limits")
        if "plain" not in row["label"]:
            ms = milliseconds(result)
            part = (result["best_peer"], result["pass"], result["shape"]["head_dim"])
            at.setdefault(part, []).append(ms[result["best_peer"]] / ms["limits"])
    forwards, backwards = at["sdpa_cudnn", "forward", 128], at["sdpa_cudnn", "backward", 128]
    assert f"at {min(forwards):.2f} to {max(forwards):.2f} of cuDNN's speed forward" in page
    assert f"at {backwards[0]:.2f} of it backward" in page
    windows = at["flex", "forward", 128] + at["flex", "backward", 128]
    assert f"at {min(windows):.1f} to {max(windows):.1f} of FlexAttention's" in page
    assert f"runs at {at['sdpa_cudnn', 'backward', 64][0]:.2f} of cuDNN's" in page


if __name__ == "__main__":
    PAGE.write_text(page_with_table(), encoding="utf-8")
