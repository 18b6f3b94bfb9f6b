"""A problem.toml that cannot be used says which file, which key, what it got and expected."""

import dataclasses

import pytest

from grader.manifest import (
    PROBLEMS,
    Case,
    ManifestError,
    expand_cases,
    load_problem,
    problem_ids,
    read_problem,
)

TEXT = (PROBLEMS / "p02" / "problem.toml").read_text(encoding="utf-8")

# What is replaced, by what, and what the message says after the file's name.
MISTAKES = {
    "missing key": ('title = "Weighted row sum"\n', "", "title: got nothing, expected a value"),
    "missing table": ("[tolerance]\nfactor = 2.0\n", "", "tolerance: got nothing, expected"),
    "missing component": ("work = 1\n", "", "points: work: got nothing, expected a value"),
    "unknown key": ('id = "p02"', 'id = "p02"\npoint = 3', "point: got an unknown key, expected"),
    "unknown component": ("work = 1", "work = 1\nstyle = 2", "points: style: got an unknown key"),
    "unknown limit": ("call_timeout_s", "timeout", "limits: call_timeout_s: got nothing"),
    "unknown key of a case": (
        "{ rows = 4, cols = 2048,",
        "{ row = 4, cols = 2048,",
        "check one_block: cases: row: got an unknown key, expected one of batch",
    ),
    "other folder": ('id = "p02"', 'id = "p03"', "id: got 'p03', expected the folder's name 'p02'"),
    "wrong type": ("bonus = false", "bonus = 0", "bonus: got 0, expected a bool"),
    "negative points": ("speed = 3", "speed = -3", "points.speed: got -3, expected a whole number"),
    "half a point": ("work = 1", "work = 0.5", "points.work: got 0.5, expected a whole number"),
    "no time": ("call_timeout_s = 20", "call_timeout_s = 0", "limits.call_timeout_s: got 0"),
    "no tolerance": ("factor = 2.0", "factor = nan", "tolerance.factor: got nan, expected"),
    "no such step": (
        'id = "layouts"\nstep = 3',
        'id = "layouts"\nstep = 7',
        "check layouts: step: got 7, expected 1 to 6",
    ),
    "no weight": (
        'id = "one_block"\nstep = 4\nweight = 2',
        'id = "one_block"\nstep = 4\nweight = 0',
        "check one_block: weight: got 0, expected a whole number >= 1",
    ),
    "no cases": (
        "cases = [\n  { rows = 4, cols = 2048",
        "cases = []\nother = [\n  { rows = 4, cols = 2048",
        "check one_block: other: got an unknown key",
    ),
    "wrong dtype": (
        '{ rows = 64, cols = 64, dtypes = ["fp32"] }',
        '{ rows = 64, cols = 64, dtypes = ["fp8"] }',
        "check one_block: cases: dtypes: got 'fp8', expected one of fp32, fp16, bf16",
    ),
    "wrong layout": (
        'cols = 65, layout = "transposed"',
        'cols = 65, layout = "diagonal"',
        "check layouts: cases: layout: got 'diagonal', expected one of dense, packed_qkv",
    ),
    "wrong values": (
        'values = "offset"',
        'values = "zeros"',
        "check accumulation: cases: values: got 'zeros', expected one of normal",
    ),
    "no rows": (
        "{ rows = 64, cols = 64,",
        "{ rows = 0, cols = 64,",
        "check one_block: cases: rows: got 0, expected a whole number >= 1",
    ),
    "no lines": ("lines = 6", "lines = 0", "step 6: lines: got 0, expected a whole number >= 1"),
    "targets upside down": ("full = 3.0", "full = 0.5", "speed.full: got 0.5, expected more than"),
    "no target": ("floor = 1.0\n", "", "speed: floor: got nothing, expected a value"),
    "wrong device": ('device = "cuda"', 'device = "tpu"', "benchmarks: device: got 'tpu'"),
    "not TOML": ('id = "p02"', "id = p02", "not valid TOML"),
}


def write(folder, text):
    path = folder / "p02" / "problem.toml"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(tmp_path, mistake):
    old, new, expected = MISTAKES[mistake]
    assert old in TEXT
    path = write(tmp_path, TEXT.replace(old, new, 1))
    with pytest.raises(ManifestError) as caught:
        read_problem(path)
    assert str(caught.value).startswith(f"{path}: {expected}")
    assert "\n" not in str(caught.value)


def test_without_a_mistake_it_is_read(tmp_path):
    assert read_problem(write(tmp_path, TEXT)) == load_problem("p02")


def test_a_missing_problem_names_those_there_are(tmp_path):
    with pytest.raises(ManifestError) as caught:
        load_problem("p99")
    assert str(caught.value) == f"p99: no such problem; expected one of {', '.join(problem_ids())}"


def test_a_missing_check_names_those_there_are():
    with pytest.raises(ManifestError, match=r"no check called .speed. .* it has one_block, "):
        load_problem("p02").check("speed")


def test_a_table_gives_one_case_for_each_dtype():
    table = {"seqlen": 65, "num_q_heads": 4, "dtypes": ["fp32", "bf16"], "window_size": 8}
    cases = list(expand_cases(table))
    common = Case(num_q_heads=4, num_kv_heads=4, seqlen_q=65, seqlen_k=65)
    common = dataclasses.replace(common, options=(("window_size", 8),))
    assert cases == [dataclasses.replace(common, dtype=dtype) for dtype in ("fp32", "bf16")]
    assert table["seqlen"] == 65


def test_an_empty_tensor_is_a_case_only_where_it_is_to_be_refused():
    (case,) = expand_cases({"rows": 0, "cols": 8, "invalid": "x"})
    assert case.rows == 0
