"""A problem.toml that cannot be used says which file, which key, what it got and expected."""

import pytest

from grader.spec.cases import Case
from grader.spec.problem import PROBLEMS, ManifestError, load_problem, problem_ids, read_problem

TEXT = """
id = "p04"
title = "Causal attention"
file = "causal_attention.py"
entry = "attention"
signature = "attention(q, k, v, *, softmax_scale=None)"
oracle = "causal_attention"
language = "triton"
returns = ["out", "lse"]
gradients = []
bonus = false

[points]
correctness = 9
work = 1
speed = 3
memory = 2

[rests_on]
work = ["plain"]
speed = ["plain", "half"]
memory = ["plain", "lse"]

[[steps]]
title = "the query tile"
lines = 15

[[steps]]
title = "the diagonal"
lines = 3
causes = ["DIAGONAL", "SHIFTED"]

[limits]
call_s = 20
lost_s = 25
total_s = 180

[tolerance]
factor = 2.0
fp32 = "tf32"

[base]
seqlen = { draw = [384, 512, 640] }
head_dim = 64

[[checks]]
id = "plain"
weight = 18
varies = []
cases = [{ seqlen = 128, gpu = true }, { values = "peaked" }]

[[checks]]
id = "lse"
weight = 8
varies = []
outputs = ["lse"]
exact = true
cases = [{ seqlen = 256 }]

[[checks]]
id = "half"
weight = 2.5
varies = ["dtypes"]
cases = [{ seqlen = 256, dtypes = ["fp16", "bf16", "fp32"] }]

[[checks]]
id = "ragged"
weight = 12
varies = ["seqlen"]
cases = [{ seqlen = 200 }, { seqlen = { from = 130, to = 400, step = 3 } }]

[[checks]]
id = "arguments"
weight = 4
varies = []
needs = "plain"
cases = [{ invalid = "q", seqlen = 0, head_dim = 8, layout = "padded", mutate = "ndim" }]

[work]
naive = "causal"
full = 1.1
cases = [{ seqlen = { draw = [256, 512, 768] } }, { seqlen = 384, values = "offset" }]

[[benchmarks]]
device = "cuda"
seqlen = 4096
dtypes = ["bf16"]

[[benchmarks]]
device = "cuda"
seqlen = 2048

[speed]
floor = 1.0
full = 8.0

[speed.devices."NVIDIA H200"]
floor = 1.0
full = 10.0

[memory]
linear_factor = 1.5

[memory.cuda]
lengths = [4096, 8192]
case = { num_q_heads = 2, dtypes = ["fp16"] }
"""
RAGGED = "cases = [{ seqlen = 200 }, { seqlen = { from = 130, to = 400, step = 3 } }]"
WORK = 'cases = [{ seqlen = { draw = [256, 512, 768] } }, { seqlen = 384, values = "offset" }]'
WORK_TABLE = f'[work]\nnaive = "causal"\nfull = 1.1\n{WORK}\n'
PLAIN = "cases = [{ seqlen = 128, gpu = true }, { values"

# What is replaced, by what, and what the message says after the file's name.
MISTAKES = {
    "missing key": ('title = "Causal attention"\n', "", "title: got nothing, expected a value"),
    "missing table": ("[limits]\ncall_s = 20\nlost_s = 25\ntotal_s = 180", "", "limits: got"),
    "missing base": ("[base]", "[bass]", "bass: got an unknown key, expected one of id, title"),
    "missing component": ("work = 1\n", "", "points.work: got nothing, expected a value"),
    "missing subject": ("varies = []\n", "", "checks.0.varies: got nothing, expected a value"),
    "missing target": ("full = 8.0\n", "", "speed.full: got nothing, expected a value"),
    "unknown key": ("bonus =", "point = 3\nbonus =", "point: got an unknown key, expected one"),
    "unknown component": ("work = 1", "work = 1\nstyle = 2", "points: style: got an unknown key"),
    "limit of old": ("call_s = 20", "call_timeout_s = 20", "limits: call_timeout_s: got an"),
    "unknown key of a case": (PLAIN, PLAIN.replace("seqlen", "len"), "checks.0.cases.0: len: got"),
    "unknown key of a draw": ("{ draw = [", "{ drow = [", "base.seqlen: drow: got an unknown key"),
    "other folder": ('id = "p04"', 'id = "p03"', "id: got 'p03', expected the folder's name"),
    "language": ('"triton"', '"cuda"', "language: got 'cuda', expected 'pytorch' or 'triton'"),
    "no oracle": ('oracle = "causal_attention"\n', "", "oracle: got nothing, expected a value"),
    "nothing returned": ('["out", "lse"]', "[]", "returns: got [], expected at least 1 item"),
    "wrong type": ("bonus = false", "bonus = 0", "bonus: got 0, expected a valid boolean"),
    "number in words": ("lines = 3", 'lines = "3"', "steps.1.lines: got '3', expected a valid"),
    "step without check": (
        "lines = 3",
        'lines = 3\nturns_green = ["speed"]',
        "steps: 2: turns_green: got",
    ),
    "negative points": ("speed = 3", "speed = -3", "points.speed: got -3, expected greater than"),
    "half a point": ("work = 1", "work = 0.5", "points.work: got 0.5, expected a valid integer"),
    "no time": ("call_s = 20", "call_s = 0", "limits.call_s: got 0, expected greater than 0"),
    "time without end": ("lost_s = 25", "lost_s = inf", "limits.lost_s: got inf, expected a"),
    "no tolerance": ("factor = 2.0", "factor = nan", "tolerance.factor: got nan, expected a"),
    "precision": ('fp32 = "tf32"', 'fp32 = "fp8"', "tolerance.fp32: got 'fp8', expected 'ieee'"),
    "no weight": ("weight = 18", "weight = 0", "checks.0.weight: got 0, expected greater than 0"),
    "weight without end": ("weight = 18", "weight = inf", "checks.0.weight: got inf, expected a"),
    "no cases": (RAGGED, "cases = []", "checks.3.cases: got [], expected at least 1 item"),
    "a case that is none": (RAGGED, "cases = [128]", "checks.3.cases.0: got 128, expected a"),
    "id": ('id = "half"', 'id = "Half a"', "checks.2.id: got 'Half a', expected"),
    "id given twice": ('id = "half"', 'id = "plain"', "checks: plain: got two checks of this"),
    "dtype": ('["fp16", "bf16", "fp32"]', '["fp8"]', "checks.2.cases.0.dtypes.0: got 'fp8',"),
    "no dtype": ('["fp16", "bf16", "fp32"]', "[]", "checks.2.cases.0.dtypes: got [], expected at"),
    "layout": ('"padded"', '"diagonal"', "checks.4.cases.0.layout: got 'diagonal', expected"),
    "values": ('"peaked"', '"zeros"', "checks.0.cases.1.values: got 'zeros', expected 'normal'"),
    "size in words": ("seqlen = 200", 'seqlen = "200"', "checks.3.cases.0.seqlen: got '200',"),
    "negative size": ("seqlen = 200", "seqlen = -1", "checks.3.cases.0.seqlen: got -1, expected"),
    "empty": ("seqlen = 200", "seqlen = 0", "checks.3.cases.0: seqlen: got 0, expected 1 or more"),
    "draw of one": ("[384, 512, 640]", "[384]", "base.seqlen.draw: got [384], expected at least 2"),
    "draw of zero": ("[384, 512, 640]", "[0, 8]", "base.seqlen.draw.0: got 0, expected greater"),
    "draw of nothing": ("{ draw = [384, 512, 640] }", "{}", "base.seqlen: got {}, expected `draw`"),
    "range upside down": (
        "to = 400",
        "to = 130",
        "checks.3.cases.1.seqlen: got {'from': 130, 'to'",
    ),
    "half a range": ("to = 400, ", "", "checks.3.cases.1.seqlen: got {'from': 130, 'step': 3},"),
    "draw and range": ("{ draw", "{ from = 1, draw", "base.seqlen: got {'draw': (384, 512, 640),"),
    "no step": (
        "step = 3",
        "step = 0",
        "checks.3.cases.1.seqlen.step: got 0, expected greater than",
    ),
    "subject": ('["seqlen"]', '["length"]', "checks: ragged: varies: got 'length', expected some"),
    "output": ('outputs = ["lse"]', 'outputs = ["dq"]', "checks: lse: outputs: got 'dq', expected"),
    "needs itself": ('= "plain"\ncases', '= "arguments"\ncases', "checks: arguments: needs: got"),
    "needs nobody": (
        '= "plain"\ncases',
        '= "plane"\ncases',
        "checks: arguments: needs: got 'plane'",
    ),
    "no lines": ("lines = 3", "lines = 0", "steps.1.lines: got 0, expected greater than or equal"),
    "targets upside down": ("full = 8.0", "full = 0.5", "speed: full: got 0.5, expected more than"),
    "device's targets": ("full = 10.0", "full = 1.0", "speed.devices.NVIDIA H200: full: got 1.0,"),
    "a component that rests on what is no check": (
        '["plain", "half"]',
        '["plain", "hall"]',
        "rests_on: speed: got 'hall', expected some of plain, lse, half",
    ),
    "a component that rests on nothing": (
        'speed = ["plain", "half"]',
        "",
        "rests_on: speed: got no check for a component with points",
    ),
    "points without work": ("[work]", "[worj]", "worj: got an unknown key, expected"),
    "naive in other words": ('naive = "causal"', 'naive = "all"', "work.naive: got 'all'"),
    "naive of nothing": ('naive = "causal"', "naive = 0", "work.naive: got 0, expected"),
    "no naive": ('naive = "causal"\n', "", "work.naive: got nothing, expected a value"),
    "full below what is needed": ("full = 1.1", "full = 0.9", "work.full: got 0.9, expected"),
    "unknown key of work": ("full = 1.1", "full = 1.1\nfloor = 2", "work: floor: got an unknown"),
    "unknown key of a case of work": ("{ seqlen = 384", "{ len = 384", "work.cases.1: len: got an"),
    "work without cases": (WORK, "cases = []", "work.cases: got [], expected at least 1 item"),
    "device": ('device = "cuda"', 'device = "tpu"', "benchmarks.0.device: got 'tpu', expected"),
    "two dtypes at speed": ('["bf16"]\n\n', '["bf16", "fp16"]\n\n', "benchmarks.0.dtypes: got"),
    "one length": (
        "[4096, 8192]",
        "[4096]",
        "memory.cuda.lengths.1: got nothing, expected a value",
    ),
    "memory's device": ("[memory.cuda]", "[memory.tpu]", "memory: tpu: got an unknown key,"),
    "memory for nothing": ("factor = 1.5", "factor = 0", "memory.linear_factor: got 0, expected"),
    "not TOML": ('id = "p04"', "id = p04", "not valid TOML: Invalid value"),
}


def write(folder, text):
    path = folder / "p04" / "problem.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return path


def edited(folder, old, new):
    assert old in TEXT
    return write(folder, TEXT.replace(old, new, 1))


@pytest.fixture
def problem(tmp_path):
    return read_problem(write(tmp_path, TEXT))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_file_key_got_and_expected(tmp_path, mistake):
    old, new, expected = MISTAKES[mistake]
    path = edited(tmp_path, old, new)
    with pytest.raises(ManifestError) as caught:
        read_problem(path)
    assert str(caught.value).startswith(f"{path}: {expected}")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text_is_named(tmp_path):
    path = write(tmp_path, "")
    path.write_bytes(b'id = "\xff"\n')
    with pytest.raises(ManifestError, match=r"p04/problem.toml: not valid TOML: .*utf-8"):
        read_problem(path)


def test_a_missing_problem_names_those_there_are():
    with pytest.raises(ManifestError) as caught:
        load_problem("p99")
    assert str(caught.value) == f"p99: no such problem; expected one of {', '.join(problem_ids())}"


def test_a_missing_check_names_those_there_are(problem):
    with pytest.raises(ManifestError, match=r"no check 'speed' in .* only plain, lse, half, "):
        problem.check("speed")


# A case that departs in what its check does not vary, and one that does not depart.
DEPARTURES = {
    "a dtype": ('{ values = "peaked" }', '{ dtypes = ["fp16"] }', "plain: cases: dtypes: got"),
    "a layout": ('{ values = "peaked" }', '{ layout = "bshd" }', "plain: cases: layout: got bshd"),
    "an option": (
        "{ values",
        "{ softmax_scale = 0.5, values",
        "plain: cases: softmax_scale: got 0",
    ),
    "heads": ("{ seqlen = 200 }", "{ num_q_heads = 3 }", "ragged: cases: num_q_heads: got 3, but"),
    "a ragged length": ("seqlen = 128", "seqlen = 130", "plain: cases: seqlen: got 130, but the"),
    "unequal lengths": ("seqlen = 128", "seqlen_k = 128", "plain: cases: seqlen_k: got 128, but"),
    "a length that may be drawn ragged": (
        "seqlen = 128",
        "seqlen = { draw = [128, 200] }",
        "plain: cases: seqlen: got ",
    ),
}
IN_PLACE = ["seqlen = 1024", "seqlen = { draw = [128, 256] }", 'values = "offset"', "gpu = true"]


@pytest.mark.parametrize("what", DEPARTURES)
def test_a_check_that_departs_in_what_it_does_not_vary_is_refused(tmp_path, what):
    old, new, expected = DEPARTURES[what]
    path = edited(tmp_path, old, new)
    with pytest.raises(ManifestError) as caught:
        read_problem(path)
    assert str(caught.value).startswith(f"{path}: checks: {expected}")
    assert ", but the check varies " in str(caught.value)


@pytest.mark.parametrize("given", IN_PLACE)
def test_whole_tiles_and_other_values_are_no_departure(tmp_path, given):
    path = edited(tmp_path, '{ values = "peaked" }', f"{{ {given} }}")
    assert read_problem(path).check("plain").varies == ()


@pytest.mark.parametrize(("old", "new"), [(WORK_TABLE, ""), ("work = 1\n", "work = 0\n")])
def test_points_for_work_and_its_table_come_together(tmp_path, old, new):
    path = edited(tmp_path, old, new)
    with pytest.raises(ManifestError) as caught:
        read_problem(path)
    told = "work: got points without a table [work], or a table without points"
    assert str(caught.value) == f"{path}: {told}"


def test_a_problem_without_points_for_work_has_no_calls_for_it(tmp_path):
    text = TEXT.replace(WORK_TABLE, "").replace("work = 1\n", "work = 0\n")
    text = text.replace('work = ["plain"]\n', "")
    problem = read_problem(write(tmp_path, text))
    assert problem.work is None and problem.work_cases("5eed") == ()


def test_the_calls_for_work_depend_on_the_seed_and_on_nothing_else(tmp_path, problem):
    text = TEXT.replace("seqlen = 200", "seqlen = 201").replace('"peaked"', '"offset"')
    other = read_problem(write(tmp_path / "other", text))
    drawn = {seed: problem.work_cases(seed) for seed in map(str, range(20))}
    assert {seed: other.work_cases(seed) for seed in drawn} == drawn
    assert {cases[0].seqlen_q for cases in drawn.values()} == {256, 512, 768}
    for first, second in drawn.values():
        assert first.dtype == second.dtype == "fp32" and first.head_dim == 64
        assert (second.seqlen_q, second.values) == (384, "offset")


def test_an_empty_or_odd_case_may_be_one_that_is_to_be_refused(problem):
    (case,) = problem.cases(problem.check("arguments"), "5eed").values()
    assert (case.seqlen_q, case.head_dim, case.layout, case.invalid) == (0, 8, "padded", "q")


@pytest.mark.parametrize("problem_id", problem_ids())
def test_the_problems_of_this_repository_can_be_read(problem_id):
    problem = load_problem(problem_id)
    assert problem.folder == PROBLEMS / problem_id
    cases = [c for k in problem.checks for c in problem.cases(k, "5eed").values()]
    assert len(cases) > 30 and all(isinstance(case, Case) for case in cases)
