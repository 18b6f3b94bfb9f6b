"""The set checks itself: each problem's problem.toml, stub and answer agree.

Its tests and cases: tests/test_set_cases.py. `make check` runs both.
"""

import ast
import collections
import inspect
import itertools
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import reference
from grader.base.dtypes import TORCH_DTYPES
from grader.checks.performance import memory_figures
from grader.source.steps import step_regions
from grader.source.submission import read_source
from grader.spec.causes import entries
from grader.spec.grade_record import COMPONENTS, Verdict
from grader.spec.problem import ROOT, load_problem, problem_ids
from tests.forked import forked_workers
from tests.harness import judge, model_answer

ANSWERS = ROOT / "solutions"
SEEN = ("kernels", "pairs", "results")
POINTS = {
    "p01": 20,
    "p02": 10,
    "p03": 20,
    "p04": 15,
    "p05": 10,
    "p06": 15,
    "p07": 10,
    "p08": 20,
    "p09": 30,
}
BONUS = ("p08", "p09")
TOTALS = {"required": 100, "bonus": 50}
IDS = tuple(POINTS)
# correctness, work, speed, memory: 60/10/20/10 % but for p01 (no kernel) and rows (no memory part)
SPLITS = {10: (6, 1, 2, 1), 15: (9, 2, 3, 1), 20: (12, 2, 4, 2), 30: (18, 3, 6, 3)}
SPLIT_WITHOUT_KERNEL, SPLITS_OF_ROWS = (12, 0, 4, 4), {10: (6, 1, 3, 0)}
MAX_NEW_LINES = 60
MARKER = re.compile(r"^ *# (>>>|<<<) step (\d+)(?:: (.+) \(about (\d+) lines?\))?$")

each_problem = pytest.mark.parametrize("problem", [load_problem(id) for id in IDS], ids=IDS)


@pytest.fixture(scope="session")
def stubs(tmp_path_factory):
    """A submission of all stubs, also where `problems/` already holds a student's answers."""
    folder = tmp_path_factory.mktemp("stubs")
    for problem in map(load_problem, IDS):
        (folder / problem.id).mkdir()
        (folder / problem.id / problem.file).write_text(stub_text(problem), encoding="utf-8")
    return folder


def stub_text(problem):
    """The stub in `problems/`; the committed one if steps there have been filled in since."""
    path = problem.folder / problem.file
    text = path.read_text(encoding="utf-8")
    regions = step_regions(text)
    filled = [n for n, region in regions.items() if answered(text, region)]
    if filled or len(regions) != len(problem.steps):
        committed = subprocess.run(
            ["git", "show", f"HEAD:./{path.relative_to(ROOT)}"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return committed.stdout if committed.returncode == 0 else text
    return text


def is_on_rows(problem):
    """Whether the inputs are a matrix and what goes with it, not q, k and v."""
    return "rows" in problem.base.given


def code_lines(text, region):
    """The lines of code between a step's markers."""
    lines = text.splitlines()[region[0] : region[1] - 1]
    return [s for s in map(str.strip, lines) if s and not s.startswith("#")]


def answered(text, region):
    code = code_lines(text, region)
    return bool(code) and not code[0].startswith("raise NotImplementedError(")


def test_the_problems_and_their_totals():
    assert problem_ids() == IDS
    problems = [load_problem(id) for id in IDS]
    assert {p.id: p.total_points for p in problems} == POINTS
    assert tuple(p.id for p in problems if p.bonus) == BONUS
    assert sum(p.total_points for p in problems if not p.bonus) == TOTALS["required"]
    assert sum(p.total_points for p in problems if p.bonus) == TOTALS["bonus"]


@each_problem
def test_points_are_split_as_designed(problem):
    splits = SPLITS_OF_ROWS if is_on_rows(problem) else SPLITS
    expected = splits[problem.total_points] if problem.uses_triton else SPLIT_WITHOUT_KERNEL
    split = tuple(problem.points_of(part) for part in COMPONENTS)
    assert split == expected


@each_problem
def test_work_speed_and_memory_rest_on_what_their_calls_need(problem):
    """Its mask, dtype and heads, and the kernels that a GPU runs; never what it does not touch."""
    calls = {
        "work": problem.work_cases("5eed"),
        "speed": [c for device in ("cuda", "cpu") for c in problem.benchmarks_on(device)],
        "memory": [c for d in ("cuda", "cpu") for c in problem.memory_cases(d) or ()],
    }
    for component, cases in calls.items():
        checks = [problem.check(id) for id in getattr(problem.rests_on, component)]
        if not checks:
            continue
        ids = {check.id for check in checks}
        given = [table.given for check in checks for table in check.cases]
        assert "plain" in ids and ("compiles" in ids) == problem.uses_triton
        assert not any(check.exact or "invalid" in table for check in checks for table in given)
        assert ("half" in ids) == any(case.dtype != "fp32" for case in cases)
        for case in cases:
            options = {name for name in case.kwargs if not name.startswith("tile")}
            varied = {name for check in checks for name in check.varies}
            assert options <= varied | problem.base.given.keys()
            if case.num_kv_heads != case.num_q_heads and component != "work":
                assert "num_kv_heads" in varied
            if (
                component == "speed"
                and case.head_dim != problem.base.head_dim
                and case.rows is None
            ):
                assert "head_dim" in varied
        if component == "speed":  # masks and the running maximum take time
            assert {id for id in ids if id.startswith("ragged")}
            assert is_on_rows(problem) or "large_logits" in ids


@each_problem
def test_speed_and_memory_targets_make_sense(problem):
    for targets in (problem.speed, *problem.speed.devices.values()):
        assert 0 < targets.floor < targets.full
    for device in ("cpu", "cuda"):
        cases = problem.memory_cases(device)
        assert bool(cases) == (
            problem.points.memory > 0 and (device == "cuda" or problem.id == "p01")
        )
        if cases:
            assert cases[1].seqlen_q == 2 * cases[0].seqlen_q


@each_problem
def test_the_scores_of_one_head_are_more_than_memory_may_grow(problem):
    for device in ("cpu", "cuda"):
        cases = problem.memory_cases(device)
        if cases:
            case = cases[1]
            figures = memory_figures(problem, cases, [0, 0], [], device)
            scores = case.seqlen_q * case.seqlen_k * TORCH_DTYPES[case.dtype].itemsize
            assert scores > 1.2 * figures.allowed_bytes[1], device


def test_whole_rows_of_scores_are_more_than_memory_may_grow_on_a_cpu():
    problem = load_problem("p01")
    cases = problem.memory_cases("cpu")
    figures = memory_figures(problem, cases, [0, 0], [], "cpu")
    assert figures.tile == (cases[1].kwargs["tile_q"], cases[1].kwargs["tile_k"])
    tile_q, tile_k = figures.tile
    for case, allowed in zip(cases, figures.allowed_bytes, strict=True):
        rows = min(tile_q, case.seqlen_q)
        assert 10 * rows * tile_k * 4 < allowed  # a tile of scores, several times over
    assert rows * cases[1].seqlen_k * 4 > 1.2 * allowed


@each_problem
def test_benchmarks_begin_with_the_biggest(problem):
    def naive_bytes(case):
        numbers = case.rows * case.cols if case.rows else case.seqlen_q * case.seqlen_k
        return case.batch * case.num_q_heads * numbers * TORCH_DTYPES[case.dtype].itemsize

    assert len(problem.benchmarks_on("cuda")) >= 2
    assert bool(problem.benchmarks_on("cpu")) == (problem.id == "p01")
    for device in ("cuda", "cpu"):
        sizes = [naive_bytes(b) for b in problem.benchmarks_on(device)]
        assert all(a > b for a, b in itertools.pairwise(sizes)), (device, sizes)


@each_problem
def test_titles_are_there_and_differ(problem):
    titles = [step.title for step in problem.steps]
    assert len(set(titles)) == len(titles)
    assert problem.title


@each_problem
def test_causes_of_steps_are_known_mistakes_and_stand_once(problem):
    causes = [cause for step in problem.steps for cause in step.causes]
    assert len(set(causes)) == len(causes)
    known = {mistake.id for mistake in reference.mistakes_for(problem.id)}
    assert set(causes) <= known | {id for id, entry in entries().items() if entry.file in SEEN}


@each_problem
def test_the_oracle_has_the_signature_of_the_entry_point(problem):
    oracle = inspect.signature(getattr(reference, problem.oracle))
    wanted = ast.parse(f"def {problem.signature}: ...").body[0].args
    names = [a.arg for a in (*wanted.args, *wanted.kwonlyargs)]
    assert list(oracle.parameters) == names


@each_problem
def test_solution_is_a_relative_link_to_the_answer(problem):
    link = problem.folder / "solution.py"
    assert link.is_symlink()
    assert os.readlink(link) == f"../../solutions/{problem.id}/{problem.file}"
    assert link.resolve() == ANSWERS / problem.id / problem.file


def outside_regions(text):
    """The file's lines with the markers, without what is between them."""
    inside = {n for first, last in step_regions(text).values() for n in range(first + 1, last)}
    return [line for n, line in enumerate(text.splitlines(), start=1) if n not in inside]


@each_problem
def test_stub_and_answer_are_one_file_outside_the_steps(problem):
    assert outside_regions(stub_text(problem)) == outside_regions(model_answer(problem.id))


@each_problem
def test_each_step_has_one_region(problem):
    found = []
    for line in stub_text(problem).splitlines():
        if ">>> step" in line or "<<< step" in line:
            match = MARKER.match(line)
            assert match, f"not a marker: {line}"
            found.append(match.groups())
    expected = []
    for number, step in enumerate(problem.steps, start=1):
        expected += [
            (">>>", str(number), step.title, str(step.lines)),
            ("<<<", str(number), *2 * [None]),
        ]
    pairs = [tuple(found[n : n + 2]) for n in range(0, len(found), 2)]
    expected = [tuple(expected[n : n + 2]) for n in range(0, len(expected), 2)]
    assert sorted(pairs) == expected
    moved = [step for step, wanted in zip(pairs, expected, strict=True) if step != wanted]
    if moved:  # a helper stands above the kernel that calls it: the handout must say so
        assert re.search(r"come first in the\s+file", (problem.folder / "README.md").read_text())


@each_problem
def test_steps_are_as_long_as_they_say(problem):
    answer = model_answer(problem.id)
    for number, step in enumerate(problem.steps, start=1):
        got = len(code_lines(answer, step_regions(answer)[number]))
        assert step.lines / 2 <= got <= step.lines * 2, f"step {number}: {got} lines of code"
    assert sum(step.lines for step in problem.steps) <= MAX_NEW_LINES


@each_problem
def test_stub_says_what_must_hold_after_each_step(problem):
    text = stub_text(problem)
    raising = []
    for number, region in step_regions(text).items():
        body = text.splitlines()[region[0] : region[1] - 1]
        assert body and body[0].strip().startswith("#"), f"step {number} has no comment"
        code = code_lines(text, region)
        if code:
            assert code[0].startswith("raise NotImplementedError("), f"step {number}: {code}"
            raising.append(number)
    assert raising in ([1], [len(problem.steps)])


@each_problem
def test_signature_is_that_of_problem_toml(problem):
    expected = ast.parse(f"def {problem.signature}: ...").body[0]
    assert expected.name == problem.entry
    functions = [n for n in ast.parse(stub_text(problem)).body if isinstance(n, ast.FunctionDef)]
    (got,) = [f.args for f in functions if f.name == problem.entry]
    for argument in ast.walk(got):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    assert ast.unparse(got) == ast.unparse(expected.args)


@each_problem
def test_stub_is_not_implemented_by_its_text(problem, stubs):
    source = read_source(problem, stubs)
    assert source.verdict is Verdict.NOT_IMPLEMENTED
    assert source.next_step == 1
    expected = f"{problem.id} step 1: {problem.steps[0].title}; see problems/{problem.id}/README.md"
    assert source.message.headline == expected


@each_problem
def test_answer_is_found_complete_by_its_text(problem):
    source = read_source(problem, ANSWERS)
    assert (source.verdict, source.next_step) == (None, None), source.message


@each_problem
def test_stubs_import_and_raise_when_called(problem):
    text, first = stub_text(problem), problem.checks[0].id  # a bridge is the first step
    with forked_workers():
        found = judge(text, problem, checks={first}, enough=lambda found: True).of(first)
    assert found.verdict is Verdict.NOT_IMPLEMENTED
    assert f'"{problem.id} step 1: ' in "".join(text.split("\n")[found.message.line - 1 :][:2])


def test_no_check_passes_with_the_stubs(stubs, tmp_path):
    report = tmp_path / "report.json"
    options = [
        *("-q", "-p", "no:cacheprovider", "--device", "cpu", "--submission", stubs),
        *("-c", ROOT / "pyproject.toml", "--rootdir", ROOT, "--tb=no", "-r", "N"),
        *("--json-report", f"--json-report-file={report}"),
        *(p.folder / f"test_{p.id}.py" for p in map(load_problem, IDS)),
    ]
    assert pytest.main([*map(str, options)]) == 1  # in this process, which has imported torch
    verdicts = collections.defaultdict(collections.Counter)
    for test in json.loads(report.read_text())["tests"]:
        assert test["outcome"] != "passed", test["nodeid"]
        id = Path(test["nodeid"].partition("::")[0]).parent.name
        verdicts[id][test["outcome"]] += 1
    assert set(verdicts) == set(IDS)
    for id, counted in verdicts.items():
        problem = load_problem(id)
        cases = sum(len(problem.cases(c, "00")) for c in problem.checks)
        assert counted["failed"] == 1, id  # not implemented, told once
        assert counted["failed"] + counted["skipped"] == cases == counted.total(), id
