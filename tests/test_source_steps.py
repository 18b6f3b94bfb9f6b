"""The steps of a stub: where they begin and end, which are empty, where a loop was stopped."""

import ast

import pytest

from grader.source import submission
from grader.source.loops import loops_around
from grader.source.steps import given_digest, step_regions
from grader.source.submission import Source, read_source
from grader.spec.grade_record import Verdict
from grader.spec.problem import PROBLEMS, ROOT, load_problem, problem_ids
from tests import forked
from tests.harness import edited, judge, model_answer
from tests.shares import drawn
from tests.test_source import examined

P03, P04 = map(load_problem, ("p03", "p04"))

_quick = forked.quick


def lines_between(text, region):
    first, last = region
    return "\n".join(text.split("\n")[first : last - 1])


def filled(problem, steps):
    """The stub with the model answer's code in the first `steps` of its steps."""
    stub = (PROBLEMS / problem.id / problem.file).read_text(encoding="utf-8")
    answer = (ROOT / "solutions" / problem.id / problem.file).read_text(encoding="utf-8")
    for step in range(1, steps + 1):
        old = lines_between(stub, step_regions(stub)[step])
        new = lines_between(answer, step_regions(answer)[step])
        stub = edited(stub, (old, new))
    return stub


@pytest.mark.parametrize("problem_id", drawn(problem_ids(), 3))
def test_a_partly_filled_stub_names_its_first_empty_step(problem_id):
    problem = load_problem(problem_id)
    if read_source(problem, PROBLEMS).verdict is not Verdict.NOT_IMPLEMENTED:
        pytest.skip("problems/ holds an answer here")
    for done in range(len(problem.steps)):
        source = examined(filled(problem, done), problem)
        assert source.next_step == done + 1
        if source.verdict is None:  # not provable from the text: the worker finds out
            continue
        title = f"{problem_id} step {done + 1}: {problem.steps[done].title}"
        assert source.message.headline == f"{title}; see problems/{problem_id}/README.md"
        assert source.message.step == done + 1
        assert source.verdict is Verdict.NOT_IMPLEMENTED and source.message.line
    assert examined(filled(problem, len(problem.steps)), problem).next_step is None


REGIONS = """def weighted_row_sum(x, w):
    # >>> step 1: rows
    rows = 1
    # <<< step 1
    # >>> step 2: sum
    # Say how.
    # <<< step 2
    # >>> step 3: never closed
    return rows
# <<< step 9
"""


def test_step_regions_are_the_lines_of_the_markers():
    assert step_regions(REGIONS) == {1: (2, 4), 2: (5, 7)}
    assert examined(REGIONS).next_step == 2


@pytest.mark.parametrize(("line", "step"), [(1, None), (2, 1), (4, 1), (5, 2), (7, 2), (9, None)])
def test_a_line_is_in_the_step_whose_markers_enclose_it(line, step):
    assert Source("p02", REGIONS.encode()).step_at(line) == step


LOOPS = """\
def entry(x):
    # >>> step 1: two loops
    for row in x:  # whole
        while row < 3:  # inner
            row += 0  # body
    # <<< step 1
    while x < 3:  # mixed
        # >>> step 2: one row
        x = x * 1  # multiplied
        # <<< step 2
        x += 0  # given
    # >>> step 3: no loop
    x.wait()  # straight
    helper(x)
    # <<< step 3
    for row in x:
        kernel[(1,)](x)
    return x

def helper(x):
    # >>> step 4: a loop of a function that no loop calls
    while x:  # helper
        pass
    # <<< step 4

def kernel(x):
    # >>> step 5: a loop of a function that a given loop launches
    while x:  # kernel
        pass
    # <<< step 5
"""


@pytest.mark.parametrize(
    ("mark", "step"),
    [
        *(("whole", 1), ("inner", 1), ("body", 1), ("mixed", None), ("multiplied", None)),
        *(("given", None), ("straight", None), ("helper", 4), ("kernel", None)),
    ],
)
def test_where_a_loop_was_stopped_tells_its_step_if_all_of_it_is_one(mark, step):
    (line,) = (n for n, row in enumerate(LOOPS.splitlines(), 1) if row.endswith(f"# {mark}"))
    assert Source("p02", LOOPS.encode()).step_of_loops_at(line) == step
    assert Source("p02", LOOPS.encode(), other_release=True).step_of_loops_at(line) is None


def test_a_loop_of_a_function_that_calls_itself_is_found_once():
    text = "def again(x):\n    while x:\n        again(x)\n"
    assert loops_around(ast.parse(text), 3) == [range(2, 4), range(2, 4)]
    assert loops_around(ast.parse("while True:\n    pass\n"), 2) == [range(1, 3)]
    assert loops_around(ast.parse("def f():\n    pass\n"), 9) == []


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_steps_are_found_whatever_ends_a_line(end):
    source = examined(REGIONS.replace("\n", end))
    assert source.next_step == 2 and source.step_at(3) == 1


@pytest.mark.parametrize("char", ["\f", "\v", "\x1c", "\x85", "\u2028"])
def test_what_ends_no_line_for_python_moves_no_step(char):
    text = f"# a{char}b\n" + REGIONS
    source = examined(text)
    error = examined(text.replace("rows = 1", "rows = ("))
    assert error.message.line == 4  # as Python counts
    assert source.step_at(4) == 1 and source.step_at(5) == 1 and source.step_at(2) is None


@pytest.mark.parametrize(
    ("problem_id", "step", "outputs", "part", "starts"),
    [
        ("p08", 3, {"dq"}, "", ("dq =", "scores =", "scores =", "p =", "dp =", "ds =")),
        ("p08", 3, {"dq"}, "weights", ("p =", "scores =", "scores =")),
        ("p08", 4, {"dk", "dv"}, "", ("dv =", "scores_t =", "log2_p_t =", "p_t =")),
        ("p08", 1, {"dk"}, "", ("dk[", "scores =", "p =", "dp =", "delta =", "ds =")),
        ("p08", 1, {"dq", "dk"}, "", None),  # several statements
        ("p08", 7, {"dk"}, "", ("begin =",)),  # the only one
        ("p09", 7, {"dsink_logits"}, "", ("dsink_logits =", "sink_p =")),
        ("p09", 1, {"out"}, "", None),
    ],
)
def test_the_statement_that_makes_a_result_is_found_in_its_step(
    problem_id, step, outputs, part, starts
):
    text = model_answer(problem_id)
    found = Source(problem_id, text.encode()).statement_of_step(step, outputs, part)
    lines = text.splitlines()
    own = found and [lines[n - 1].strip() for n in (found[0], *found[1])]
    assert (own is None) == (starts is None)
    for line, start in zip(own or (), starts or (), strict=True):
        assert line.startswith(start)


def test_one_step_left_is_no_stub():
    """It costs what depends on it, and no more."""
    answer = (ROOT / "solutions" / "p03" / P03.file).read_text("utf-8")
    stub = filled(P03, 0)
    left = answer.replace(
        lines_between(answer, step_regions(answer)[1]), lines_between(stub, step_regions(stub)[1])
    )
    source = examined(left, P03)
    assert (source.verdict, source.next_step) == (None, 1)
    judged = judge(left, P03, checks={"row_logsumexp", "plain"})
    assert judged.of("row_logsumexp").verdict is Verdict.NOT_IMPLEMENTED
    assert judged.of("plain").verdict is Verdict.PASS


def test_a_kernel_beside_the_lines_of_the_stub_is_one():
    stub = filled(P04, 0)
    own = stub.replace("_attention_kernel[", "_mine[") + "\n\ndef _mine():\n    pass\n"
    assert examined(stub, P04).verdict is Verdict.NOT_IMPLEMENTED
    assert examined(own, P04).verdict is None


def test_a_stub_of_another_release_says_so():
    title = P04.steps[0].title
    stub = filled(P04, 0)
    old = stub.replace(f"# >>> step 1: {title}", "# >>> step 1: longest rows first")
    source = examined(old, P04)
    assert source.verdict is Verdict.NOT_IMPLEMENTED
    assert "another release: take the new stub; CHANGELOG.md" in source.message.headline
    assert source.next_step is None and source.message.step is None
    line = step_regions(old)[1][0] + 1
    assert source.step_at(line) is None and examined(stub, P04).step_at(line) == 1


@pytest.mark.parametrize("problem", map(load_problem, problem_ids()), ids=problem_ids())
def test_the_given_code_is_that_of_which_the_manifest_has_the_hash(problem):
    """Where it is as it was, what goes wrong there was made in a step."""
    for folder in (PROBLEMS, ROOT / "solutions"):
        text = (folder / problem.id / problem.file).read_text(encoding="utf-8")
        expected = f'{problem.id}: write given_code = "{given_digest(text)}" in problem.toml'
        assert problem.given_code == given_digest(text), expected


def test_a_stub_of_an_earlier_release_keeps_its_steps(monkeypatch):
    stub = (PROBLEMS / P04.id / P04.file).read_text("utf-8")
    text = stub.replace("import torch\n", "import torch  # as it was before\n", 1)
    source = submission.examine(P04, text.encode())
    assert not source.keeps_given
    before = P04.model_copy(update={"given_code_before": (given_digest(text),)})
    monkeypatch.setattr(submission, "load_problem", lambda id: before)
    assert source.keeps_given
