"""benchmarks/limits/README.md: its figures are those of the records.

`python -m tests.test_limits_page` writes the table anew after the record has changed.
"""

import json
import re

import pytest

from grader.manifest import ROOT

PAGE = ROOT / "benchmarks" / "limits" / "README.md"
RECORDS = ROOT / "benchmarks" / "records"
RECORD = json.loads((RECORDS / "nvidia-h200-2026-11-23-limits.json").read_text())
VARIANTS = json.loads((RECORDS / "limits-variants-2026-11-23.json").read_text())
BEGIN = "<!-- table of ../records/nvidia-h200-2026-11-23-limits.json -->\n"
END = "<!-- end of table -->"
FULL, SHORT, WINDOW = "2,16,16,8192,128,full", "16,16,16,1024,128", "1,32,8,16384,128,w=4096"


def milliseconds(result):
    return {row["id"]: row["median_ms"] for row in result["contenders"]}


def table():
    """Every result: the best peer's time over the answer's, and over that of the kernels here."""
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
    rows = VARIANTS["backward"]
    return next(row["ms"] for row in rows if (row["run"], row["shape"]) == (run, shape))


def test_the_steps_are_those_of_the_record():
    said = dict(re.findall(r"^\| ([a-zA-Z0-9' ]+) \| ([0-9.]+) \|.*\|$", PAGE.read_text(), re.M))
    found = forward(1, FULL)
    variants = {
        "plain answer": "answer", "steps 1 and 2": "step-2", "step 3": "step-3",
        "and a softmax under one's own second product": "step-4", "step 4": "default",
        "and the softmax after both products again": "wait-moved", "cuDNN": "cudnn",
    }  # fmt: skip
    for name, variant in variants.items():
        assert float(said[name]) == pytest.approx(found[variant], abs=6e-4), name


def longer(one, other):
    """By how many percent `one` is longer than `other`, rounded."""
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
    pairs, wide = 8192 * 8193 // 2, backward(2, "1,64,8,8192,128")
    product = 2 * 64 * 128 * pairs / 1e9  # GFLOP, and per ms TFLOP/s
    rates = round(3 * product / wide["dq"]), round(4 * product / wide["dkdv"])
    assert f"dQ then runs at {rates[0]} TFLOP/s, as fast" in page
    assert f"dK and dV at {rates[1]} (run 2)" in page
    narrow = backward(2, "2,64,8,8192,64")
    assert f"({narrow['dkdv-reg']:.2f} for {narrow['dkdv']:.2f} ms)" in page
    less = round(100 * (1 - narrow["dq-reg"] / narrow["dq"]))
    plain = round(100 * (1 - narrow["answer-dq"] / narrow["dq-reg"]))
    assert f"| {less} % less; the plain answer takes {plain} % less |" in page
    at_64 = [
        longer(min(v for k, v in x.items() if k not in ("answer", "cudnn", "flex")), x["answer"])
        for x in (forward(1, s) for s in ("2,64,8,8192,64,w=1024", "2,64,8,8192,64,w=128,s=4"))
    ]
    at_64 += [
        longer(x["explicit"], x["answer"])
        for x in (forward(3, s) for s in ("1,32,32,16384,64", "2,64,8,8192,64,w=128"))
    ]
    assert f"| {min(at_64)} to {max(at_64)} % longer than the plain answer |" in page


def test_what_was_asked_for_and_not_reached():
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    found = {(r["problem"], r["shape"]["label"], r["pass"]): r for r in RECORD["results"]}

    def ratio(*key):
        ms = milliseconds(found[key])
        return ms[found[key]["best_peer"]] / ms["limits"]

    wide = ("p09", "1,32,8,16384,128,w=4096,s=4", "backward")
    assert f"at head_dim 128 ({ratio('p08', '1,64,8,8192,128', 'backward'):.2f})" in page
    assert f"a window of 4096 ({ratio(*wide):.2f})" in page
    assert f"gpt-oss's shape ({ratio('p09', '1,64,8,8192,64,w=128,s=4', 'backward'):.1f})" in page
    rate = next(r["rate"] for r in found[wide]["contenders"] if r["id"] == "limits") * 7 / 5
    share = rate / found[wide]["ceilings"]["matmul_tflops"]
    assert f"run at {rate:.0f} TFLOP/s, {share:.0%}".replace("%", " %") in page
    assert f"they would give {ratio(*wide) / share:.2f}" in page
    full = found["p03", FULL, "forward"]
    matmul = round(full["ceilings"]["matmul_tflops"], -1)
    limits = next(r["rate"] for r in full["contenders"] if r["id"] == "limits")
    assert f"reached {matmul:.0f} TFLOP/s in the run of the table above" in page
    assert f"without that overlap {limits:.0f}." in page


if __name__ == "__main__":
    PAGE.write_text(page_with_table(), encoding="utf-8")
