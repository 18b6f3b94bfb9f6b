"""Which lines of steps feed a line of given code."""

import ast
import re
import time

import pytest

from grader.source import functions
from grader.source.feeding import MOST_FEEDING, Follow, Spot, lines_feeding
from grader.source.submission import Source
from grader.spec.causes import entries
from tests.harness import model_answer

TEXT = """\
def kernel(x_ptr, n, begin):
    x_ptr += offset(n)  # step
    start, end = begin, n
    for i in range(start, end):
        a = load(x_ptr, i)
        b = a * 2
        c: int = b  # step
        store(x_ptr + c)
    while c < n:
        c += step(n)
    return helper(c)

def helper(value):
    return value + 1

def launch(x):
    rows = x.shape[0]  # step
    first = 0
    if rows:
        first = rows // 2  # step
    kernel[(1,)](x, begin=first, n=rows)
    kernel[(1,)](*x)
"""
STEPS = {n: 1 for n, line in enumerate(TEXT.splitlines(), 1) if line.endswith("  # step")}


@pytest.mark.parametrize(
    ("line", "feeds"),
    [
        (4, {17, 20}),  # a loop: through parameters, by name, to the launch
        (5, {2}),  # what is loaded: its pointer; of a launch only where nothing is nearer
        (8, {2, 7}),  # what changes later counts, too
        (9, {7}),  # the head of a loop alone
        (14, {7}),  # a helper's parameter
        (18, set()),
        (1, set()),
        (99, set()),
    ],
)
def test_the_lines_that_feed_one_are_found_through_names_and_calls(line, feeds):
    assert lines_feeding(ast.parse(TEXT), Spot(line), STEPS.get).keys() == feeds


TWO_CALLERS = """\
def add(begin):
    for i in range(begin, 9):
        pass

def one():
    a = 1
    add(a)

def other():
    b = 2
    add(b)
"""


@pytest.mark.parametrize(("through", "feeds"), [((), {6, 10}), ((5,), {6}), ((2, 11), {10})])
def test_of_two_callers_the_one_it_came_through_feeds_a_line(through, feeds):
    spot = Spot(2, part="bounds", through=through)
    assert lines_feeding(ast.parse(TWO_CALLERS), spot, {6: 1, 10: 1}.get).keys() == feeds


def test_names_that_feed_each_other_end():
    tree = ast.parse("def f(a, b):\n    for i in range(a):\n        a, b = b, a\n        f(b, a)\n")
    assert lines_feeding(tree, Spot(2), lambda line: None) == {}


def test_the_step_of_a_line_of_given_code_is_the_one_that_feeds_it():
    text = model_answer("p08")
    source = Source("p08", text.encode())
    lines = text.splitlines()
    (loop,) = (n for n, line in enumerate(lines, 1) if "in tl.range(begin, end, BLOCK_M" in line)
    (begin,) = (n for n, line in enumerate(lines, 1) if line == "        begin = key_start")
    assert source.step_at(loop) is None and source.fed_by(Spot(loop), Follow.NEAREST) == (begin,)
    assert source.step_behind(Spot(loop, located=True)) == source.step_behind(Spot(loop)) == 7
    assert source.step_behind(Spot(begin, located=True)) == source.step_behind(Spot(begin)) == 7
    assert (
        source.fed_by(Spot(begin), Follow.NEAREST) == ()
        and source.fed_by(Spot(0), Follow.NEAREST) == ()
    )
    (load,) = (n for n, line in enumerate(lines, 1) if "q = load_head_rows(q_rows" in line)
    assert (
        len(source.fed_by(Spot(load), Follow.NEAREST)) == 2
        and source.step_behind(Spot(load)) is None
    )


def test_the_bounds_of_a_loop_in_a_step_may_be_those_of_another_step():
    text = model_answer("p06")
    source, lines = Source("p06", text.encode()), text.splitlines()
    (loop,) = (n for n, line in enumerate(lines, 1) if "in range(first_key, end_key" in line)
    assert {source.step_at(line) for line in source.fed_by(Spot(loop), Follow.NEAREST)} == {3}
    assert [lines[n - 1].split()[0] for n in source.fed_by(Spot(loop), Follow.NEAREST)] == [
        "first_key",
        "end_key",
    ]
    assert (
        source.fed_by(Spot(loop + 1), Follow.NEAREST) == ()
        and source.step_behind(Spot(loop)) is None
    )


@pytest.mark.parametrize(
    ("problem", "text", "fed_by", "step"),
    [
        ("p05", "tl.store(lse_ptr + queries", ("lse_ptr +=", "query_start ="), 1),
        ("p05", "store_tile(out_ptr, ", ("out_ptr +=", "query_start ="), 1),  # as the helper stores
        ("p05", "running_max, running_sum, acc = causal_loop(", None, None),  # of steps 1 and 2
        ("p02", "tl.store(y_ptr + row_ids", ("row_ids =", "row_mask ="), None),  # steps 2 and 3
        ("p04", "k = load_keys(k_ptr", (), 1),  # in a step, and of it alone
        ("p04", "for key_start in range(", ("end_key =",), None),  # in step 1, to an end of step 2
    ],
)
def test_a_store_is_fed_by_its_address_and_a_line_of_a_step_by_other_steps(
    problem, text, fed_by, step
):
    lines = model_answer(problem).splitlines()
    source = Source(problem, model_answer(problem).encode())
    (line,) = (n for n, of in enumerate(lines, 1) if of.strip().startswith(text))
    assert source.step_behind(Spot(line)) == step
    found = [lines[n - 1].strip() for n in source.fed_by(Spot(line), Follow.NEAREST)]
    assert fed_by is None or sorted(of[: of.index("=") + 1] for of in found) == sorted(fed_by)


@pytest.mark.parametrize(
    ("new", "found"),
    [
        ("mask=tile_mask", (21, "other")),
        ("boundary_check=(0, 1)", (21, "padding_option")),
        ('boundary_check=(0, 1), padding_option="zero"', (0, "other")),
        ("mask=tile_mask, other=0.0", (0, "other")),
    ],
)
def test_the_one_load_that_leaves_lanes_undefined_is_found(new, found):
    source = model_answer("p02").replace("mask=tile_mask, other=0.0", new)
    assert Source("p02", source.encode()).bare_load() == found


def test_a_file_that_is_no_python_has_no_such_lines():
    source = Source("p08", b"# >>> step 1: a\ndef f(:\n# <<< step 1\n")
    assert source.fed_by(Spot(2), Follow.NEAREST) == () and source.step_of_loops_at(2) is None


@pytest.mark.parametrize(
    ("problem", "at", "part", "of", "fed_by", "step"),
    [
        ("p02", "x_tile = tl.load(", "address", "x", ("x_ptrs = x_ptr + row_ids",), 5),
        ("p02", "x_tile = tl.load(", "mask", "x", ("row_mask =", "col_mask ="), None),
        ("p02", "tl.store(y_ptr + row_ids", "address+grid", "y", ("row_ids =",), 2),
        ("p03", "q = tl.load(q_ptrs", "mask", "", (), 3),  # it is made there
        (
            "p03",
            "k = load_keys(k_ptr",
            "mask",
            "",
            ("num_q_heads, seqlen_q,", "HEAD_DIM=head_dim, IS_EVEN="),
            2,
        ),
        ("p05", "running_max, running_sum, acc = causal_loop(", "pointer", "v", ("v_ptr +=",), 2),
        ("p06", "scores = tl.dot(q, tl.trans(k)", "bounds", "", ("first_key =", "end_key ="), 3),
        (
            "p06",
            "scores = tl.dot(q, tl.trans(k)",
            "branch",
            "",
            ("full_start =", "full_end ="),
            None,
        ),
        ("p08", "ds_t = p_t * (dp_t", "pointer", "delta", ("head_delta_ptr = delta_ptr",), 6),
        ("p08", "ds_t = p_t * (dp_t", "pointer", "dout", ("head_dout_ptr = dout_ptr",), 6),
        ("p08", "q, k, v, out, lse = ctx", "", "", ("ctx.save_for_backward(", "ctx.softmax"), 2),
    ],
)
def test_a_part_of_a_line_is_made_by_the_lines_of_that_part(problem, at, part, of, fed_by, step):
    lines = model_answer(problem).splitlines()
    source = Source(problem, model_answer(problem).encode())
    line = next(n for n, text in enumerate(lines, 1) if text.strip().startswith(at))
    spot = Spot(line, part=part, of=of)
    found = [lines[n - 1].strip() for n in source.fed_by(spot, Follow.NEAREST)]
    assert all(any(text.startswith(one) for text in found) for one in fed_by), found
    assert len(found) == len(fed_by), found
    assert source.step_behind(spot) == step


@pytest.mark.parametrize(
    ("problem", "at", "part", "of", "fed_by"),
    [
        ("p03", "q = tl.load(q_ptrs", "offset", "q", ("queries =", "offs_d =", "q_ptrs =")),
        ("p04", "v = load_keys(", "address", "v", ("v_ptr +=",)),
        (
            "p05",
            "running_max, running_sum, acc = causal",
            "pointer",
            "v",
            ("kv_head =", "v_ptr +="),
        ),
        ("p06", "visible =", "mask", "", ("keys =",)),
        ("p04", "scores = tl.where(", "mask", "", ("keys =", "visible =")),
        ("p01", "scores = scores.masked_fill_(", "mask", "", ("query =", "key =")),
        ("p05", "store_tile(out_ptr", "pointer|address", "out", ("batch, q_head =", "out_ptr +=")),
    ],
)
def test_a_line_of_a_step_depends_on_others_of_that_step(problem, at, part, of, fed_by):
    lines = model_answer(problem).splitlines()
    source = Source(problem, model_answer(problem).encode())
    line = next(n for n, text in enumerate(lines, 1) if text.strip().startswith(at))
    found = source.fed_by(Spot(line, located=part == "mask", part=part, of=of))
    assert len(found) == len(fed_by) <= MOST_FEEDING
    assert all(lines[n - 1].strip().startswith(fed_by) for n in found)


def test_of_many_lines_none_that_are_as_far_away_as_others_left_out_are_shown():
    text = model_answer("p03")
    line = next(n for n, of in enumerate(text.splitlines(), 1) if "q = tl.load(q_ptrs" in of)
    source, spot = Source("p03", text.encode()), Spot(line, part="address", of="q")
    every = lines_feeding(source.tree, spot, source.step_making, Follow.STEP)
    shown = source.fed_by(spot)
    assert len(every) > MOST_FEEDING >= len(shown)
    assert max(every[n] for n in shown) < min(every[n] for n in every.keys() - {*shown, line})


def test_a_pointer_that_is_left_where_it_was_is_moved_in_the_step_of_the_others():
    text = model_answer("p03")
    moved = "    v_ptr += batch * v_strides[0] + head * v_strides[1]\n"
    source = Source("p03", text.replace(moved, "").encode())
    lines = text.replace(moved, "").splitlines()
    line = next(n for n, of in enumerate(lines, 1) if "v = load_keys(v_ptr" in of)
    spot = Spot(line, part="pointer", of="v")
    assert source.step_behind(spot) == 3
    assert any("k_ptr += batch" in lines[n - 1] for n in source.fed_by(spot))


def test_a_product_of_the_weights_alone_stands_where_that_of_x_is_due():
    text = model_answer("p02").replace("x_tile.to(tl.float32) *", "w_tile.to(tl.float32) *")
    line = next(n for n, of in enumerate(text.splitlines(), 1) if "products = w_tile" in of)
    spot = Spot(part="pointer", of="x_ptr")
    assert Source("p02", text.encode()).replacing(spot) == line
    assert Source("p02", model_answer("p02").encode()).replacing(spot) == 0


_IF = "\n        if not is_full:"
_BRANCH = "if (key_start < full_start) | (key_start >= full_end):"


@pytest.mark.parametrize(
    ("test", "part", "fed_by", "step"),
    [
        (_BRANCH, "before", "full_start =", 3),
        (_BRANCH, "after", "full_end =", 3),
        ("if full_start > key_start or full_end <= key_start:", "before", "full_start =", 3),
        ("if key_start < full_start:", "after", "if key_start <", 1),
        ("if (key_start < full_start) | (key_start > full_end):", "after", "if (key_start <", 1),
        ("if (key_start < full_start) & (key_start >= full_end):", "after", "full_", None),
        ("if (key_start < full_start) | (key_start >= end_key):", "after", "if (key_start <", 1),
        (
            f"is_full = (key_start >= full_start) & (full_end > key_start){_IF}",
            "after",
            "full_end",
            3,
        ),
        (
            f"is_full = (key_start >= full_start) & (full_end > key_start){_IF}",
            "before",
            "full_st",
            3,
        ),
    ],
)
def test_a_branch_shows_whether_its_test_or_a_bound_is_wrong(test, part, fed_by, step):
    text = model_answer("p06").replace(_BRANCH, test)
    lines, source = text.splitlines(), Source("p06", text.encode())
    line = next(n for n, of in enumerate(lines, 1) if "scores = tl.dot(q, tl.trans(k)" in of)
    spot = Spot(line, part=f"branch+{part}")
    assert all(lines[n - 1].strip().startswith(fed_by) for n in source.fed_by(spot, Follow.NEAREST))
    assert source.fed_by(spot, Follow.NEAREST) and source.step_behind(spot) == step


def test_a_branch_that_changes_nothing_is_wrong_itself():
    masked = 'scores = tl.where(visible, scores, float("-inf"))'
    text = model_answer("p06").replace(masked, "pass")
    lines, source = text.splitlines(), Source("p06", text.encode())
    line = next(n for n, of in enumerate(lines, 1) if "scores = tl.dot(q, tl.trans(k)" in of)
    spot = Spot(line, part="branch+after")
    assert [lines[n - 1].strip() for n in source.fed_by(spot)] == [
        next(of.strip() for of in lines if of.strip().startswith(_BRANCH))
    ]
    assert source.step_behind(spot) == 1


@pytest.mark.parametrize("range", ["range", "tl.range"])
def test_a_tile_outside_may_be_that_of_the_bounds_of_a_plain_range(range):
    text = model_answer("p06").replace("in range(", f"in {range}(")
    lines, source = text.splitlines(), Source("p06", text.encode())
    line = next(n for n, of in enumerate(lines, 1) if "k = load_tile(k_ptr" in of)
    spot = Spot(line, part="address", of="k_ptr")
    found = [lines[n - 1].strip().partition(" ")[0] for n in source.fed_by(spot, Follow.NEAREST)]
    assert found == ["first_key", "end_key"] and source.step_behind(spot) is None


def test_what_reaches_a_line_is_followed_into_what_is_called():
    text = model_answer("p06")
    line = next(n for n, of in enumerate(text.splitlines(), 1) if "= add_tile(" in of)
    assert Source("p06", text.encode()).reaches(Spot(line), 2)
    other = text.replace("running_max, safe_max, running_sum", "running_max, new_max, running_sum")
    assert not Source("p06", other.encode()).reaches(Spot(line), 2)


def test_a_loop_in_which_a_helper_is_called_has_the_bounds():
    text = model_answer("p01")
    lines, source = text.splitlines(), Source("p01", text.encode())
    (line,) = (n for n, of in enumerate(lines, 1) if "scores = tile_matmul(" in of)
    spot = Spot(line, part="bounds")
    assert [lines[n - 1].strip() for n in source.fed_by(spot, Follow.NEAREST)] == ["stop = q_stop"]
    assert source.step_behind(spot) == 6


def test_a_file_of_calls_in_each_other_is_looked_into_for_a_while():
    text = "".join(
        f"def f{n}(p):\n" + f"    f{n + 1}(p)\n" * 60 + f"    q{n} = p\n" for n in range(12)
    )
    source = Source("p08", f"# >>> step 1: a (about 1 line)\n{text}# <<< step 1\n".encode())
    assert source.fed_by(Spot(3, part="address+mask", of="p"), Follow.NEAREST) == ()


def test_a_kernel_in_another_function_is_followed_to_its_launch():
    kernel = "    def kernel(p, n):\n        load(p + n)\n"
    text = f"def host(x):\n    n = 2\n{kernel}    kernel[(1,)](x, n)\n"
    tree = ast.parse(text)
    assert lines_feeding(tree, Spot(4, part="address"), {2: 1}.get).keys() == {2}


def test_what_of_a_line_a_cause_is_of_is_one_that_is_followed():
    parts = {"mask", "address", "pointer", "launch", "grid", "bounds", "branch"}
    parts |= {"before", "after", "offset", "stride", "weights", "scale", "product"}
    said = {part for entry in entries().values() for part in re.split(r"[+|]", entry.part)}
    assert said - {""} == parts


@pytest.mark.parametrize(
    ("passed", "pair"),
    [
        ("b, a, c", ("a", "b")),
        ("c=a, b=b, a=c", ("c", "a")),
        ("b, c, a", None),  # a rotation is no exchange
        ("a, b, c)\n    f(b, a, c", None),  # it may be meant for both
    ],
)
def test_two_arguments_that_stand_in_each_other_s_places(passed, pair):
    tree = ast.parse(f"def f(a, b, c): pass\ndef g():\n    f({passed})\n")
    found = functions.exchanged(tree)
    assert (found and (found.one, found.other)) == pair


def test_a_call_of_thousands_of_arguments_is_read_at_once():
    names = [f"a{n}" for n in range(20_000)]
    text = f"def f({', '.join(names)}): pass\ndef g():\n    f({', '.join(reversed(names))})\n"
    tree, start = ast.parse(text), time.process_time()
    assert functions.exchanged(tree) is None  # several pairs
    assert time.process_time() - start < 5.0
