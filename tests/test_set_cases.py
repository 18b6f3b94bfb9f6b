"""The set checks the tests and cases of each problem."""

import ast
import itertools

import pytest

from grader.spec.cases import Draw
from grader.spec.inputs import invalidate, make_inputs
from grader.spec.problem import load_problem
from grader.spec.problem_tables import WORK
from tests.test_set import each_problem, is_on_rows


@each_problem
def test_checks_and_test_functions_are_one_to_one(problem):
    tree = ast.parse((problem.folder / f"test_{problem.id}.py").read_text())
    assert ast.get_docstring(tree).startswith(f"{problem.id}, ")
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    got, expected = [f.name for f in functions], [check.test_name for check in problem.checks]
    assert got == expected, f"test_{problem.id}.py: expected a function per check, in their order"
    titles = [ast.get_docstring(f, clean=False) for f in functions]
    assert len(set(titles)) == len(titles)
    for title in titles:
        assert title and "\n" not in title and len(title) <= 90, title
        assert title == title.strip() and not title.endswith("."), title
    for function in functions:
        assert [a.arg for a in function.args.args] == ["case"], function.name


@each_problem
def test_each_check_turns_green_with_one_step(problem):
    said = [name for step in problem.steps for name in step.turns_green]
    wanted = [check.id for check in problem.checks if not check.compiles]
    wanted += [WORK] * (problem.work is not None)
    expected = "in `turns_green` of the one step with which it first passes"
    wrong = {name for name in {*said, *wanted} if said.count(name) != wanted.count(name)}
    assert not wrong, f"{problem.id}/problem.toml: expected each {expected}: {sorted(wrong)}"


def valid_cases(problem):
    """Every case of a problem that is no call to refuse, with the sizes that one seed draws."""
    cases = [problem.cases(check, "00").values() for check in problem.checks]
    return [case for case in itertools.chain(*cases) if case.invalid is None]


@each_problem
def test_every_check_has_sizes_that_nobody_can_know_before(problem):
    """Zeros above the sizes that stand in problem.toml fail every check."""
    for check in problem.checks:
        cases = problem.cases(check, "00").values()
        if any(case.invalid for case in cases):
            assert check.needs == "plain"
            continue
        drawn = [t for t in check.cases if any(isinstance(v, Draw) for v in sizes(problem, t))]
        on_cpu = [t for t in drawn if set(t.dtypes or ("fp32",)) & {"fp32", "fp16"}]
        assert on_cpu, (
            f"{problem.id}/problem.toml: {check.id}: got sizes that stand in the file, expected a"
            " case in fp32 or fp16 whose length is drawn: seqlen = { from = 310, to = 450 }"
        )


def sizes(problem, table):
    """The sizes of a case: its own, or those of the plain case."""
    given = problem.base.given | table.given
    names = ("rows", "cols") if is_on_rows(problem) else ("seqlen", "seqlen_k")
    return [given[name] for name in names if name in given]


def options(cases, name):
    return [dict(c.options)[name] for c in cases if name in dict(c.options)]


@each_problem
def test_required_cases_are_present(problem):
    cases = valid_cases(problem)
    assert {c.dtype for c in cases} == {"fp32", "fp16", "bf16"}
    if is_on_rows(problem):
        assert {1, 63, 65, 129} <= {c.rows for c in cases}
        assert {1, 15, 65, 1000, 1023, 1025} <= {c.cols for c in cases}
        assert {"padded", "transposed"} <= {c.layout for c in cases}
        return
    around_tiles = {15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129}
    if problem.id == "p01":  # its tile sizes are arguments
        assert any(c.seqlen_q % t for c in cases for t in options([c], "tile_q"))
    lengths = {c.seqlen_k for c in cases}
    assert {1} | around_tiles <= lengths
    assert max(lengths) >= 257
    assert max(c.batch for c in cases) >= 2
    assert any(c.batch >= 2 and c.num_q_heads >= 2 for c in cases)
    assert {"packed_qkv", "bshd", "padded"} <= {c.layout for c in cases}
    assert {"large", "peaked", "offset", "needle"} <= {c.values for c in cases}
    assert {16, 32, 64, 128} <= {c.head_dim for c in cases}
    scales = options(cases, "softmax_scale")
    assert 0.0 in scales and min(scales) < 0 < max(scales)


@pytest.mark.parametrize("id", ["p01", "p03"])
def test_lengths_of_queries_and_keys_differ(id):
    cases = valid_cases(load_problem(id))
    assert any(c.seqlen_q < c.seqlen_k for c in cases)
    assert any(c.seqlen_q > c.seqlen_k for c in cases)


@pytest.mark.parametrize("id", ["p05", "p06", "p07", "p08", "p09"])
def test_every_grouping_from_one_to_all(id):
    cases = valid_cases(load_problem(id))
    groups = {(c.num_q_heads, c.num_kv_heads) for c in cases if c.num_q_heads > 2}
    assert any(kv == q for q, kv in groups)
    assert any(1 < kv < q for q, kv in groups)
    assert any(
        kv == 1 for _, kv in {(c.num_q_heads, c.num_kv_heads) for c in cases if c.num_q_heads > 1}
    )
    assert any(c.batch > 1 and 1 < c.num_kv_heads < c.num_q_heads for c in cases)


@pytest.mark.parametrize("id", ["p06", "p07", "p09"])
def test_windows_of_every_kind(id):
    cases = [(c, dict(c.options)["window_size"]) for c in valid_cases(load_problem(id))]
    assert all(window >= 1 for _, window in cases)
    assert any(window == 1 and c.seqlen_q > 1 for c, window in cases)
    assert any(window % 16 and window < c.seqlen_q for c, window in cases)
    assert any(window % 64 == 0 and window < c.seqlen_q for c, window in cases)
    assert any(window == c.seqlen_q for c, window in cases)
    assert any(window == c.seqlen_q - 1 for c, window in cases)
    assert any(window > c.seqlen_q for c, window in cases)
    assert any(window == 2**31 - 1 for _, window in cases)


@pytest.mark.parametrize("id", ["p07", "p09"])
def test_sinks_of_every_kind(id):
    cases = [
        (c.seqlen_q, dict(c.options)["window_size"], dict(c.options).get("num_sink_tokens"))
        for c in valid_cases(load_problem(id))
    ]
    sinks = {s for _, _, s in cases}
    assert {None, 1, 4} <= sinks
    assert any(s and s < w < n for n, w, s in cases), "sinks inside the first window"
    assert any(s and w < s < n for n, w, s in cases), "sinks beyond the window"
    assert any(s and s >= n for n, _, s in cases), "sinks beyond the sequence"


def test_zero_sinks_may_be_said():
    assert 0 in options(valid_cases(load_problem("p07")), "num_sink_tokens")


@pytest.mark.parametrize("id", ["p08", "p09"])
def test_upstream_gradients_are_strided(id):
    problem = load_problem(id)
    assert problem.gradients[:3] == ("dq", "dk", "dv")
    assert {"dense", "bshd", "expanded"} <= {c.dout_layout for c in valid_cases(problem)}


def test_sink_logits_with_and_without_sink_tokens():
    cases = [c for c in valid_cases(load_problem("p09")) if c.sink_logits]
    assert any(not dict(c.options).get("num_sink_tokens") for c in cases)
    assert any(dict(c.options).get("num_sink_tokens") for c in cases)
    assert any(c.sink_logits_values == "neg_inf" for c in cases)


@each_problem
def test_unsupported_arguments_are_tried(problem):
    cases = [
        case
        for check in problem.checks
        for case in problem.cases(check, "00").values()
        if case.invalid is not None
    ]
    for case in cases:
        invalidate(make_inputs(problem, case, seed=0), case.mutate)  # raises on an unknown mutation
    names = {c.invalid for c in cases}
    assert {*problem.inputs, "dtype"} <= names
    assert is_on_rows(problem) or "head_dim" in names
    parameters = [
        a.arg
        for a in ast.parse(f"def {problem.signature}: ...").body[0].args.kwonlyargs
        if a.arg in ("window_size", "num_sink_tokens", "tile_q", "tile_k")
    ]
    assert set(parameters) <= names
