"""`given`, what stubs and answers import: plumbing, who may import what, whose copy runs."""

import ast
import itertools

import pytest
import torch

from grader.commands import cli
from grader.kernel.given import offer_given
from grader.source.given_imports import bad_import
from grader.source.submission import examine
from grader.spec.grade_record import Verdict
from grader.spec.problem import GIVEN, load_problem, problem_ids
from tests import forked
from tests.harness import judge, model_answer, whole_answer
from tests.records import in_this_process, write_answers

offer_given()
from given.arguments import check_attention, default_scale, positive_scale  # noqa: E402
from given.launch import grid_of_queries, l2_group_size  # noqa: E402

P03, P04 = load_problem("p03"), load_problem("p04")

_quick = forked.quick


@pytest.mark.parametrize("scale", [0.125, -0.5, 0.0, 3.0])
def test_a_positive_scale_gives_the_same_scores(scale):
    q = torch.randn(1, 2, 3, 16, dtype=torch.float64)
    turned, positive = positive_scale(q, scale)
    assert positive > 0
    torch.testing.assert_close(positive * turned, scale * q, atol=1e-25, rtol=0)


def test_the_scale_by_default():
    assert default_scale(None, 64) == 0.125 and default_scale(2, 64) == 2.0


def test_l2_groups_divide_the_heads_and_are_as_small_as_they_may_be():
    for num_heads, head_bytes, num_tiles in itertools.product(
        (1, 6, 12, 256), (1, 2**19, 2**26), (1, 16, 600)
    ):
        size = l2_group_size(num_heads, head_bytes, num_tiles)
        assert 1 <= size <= num_heads and num_heads % size == 0
    # 16 MiB of K and V, but never fewer than 512 programs while there are heads.
    assert l2_group_size(256, 512 * 2**10, 16) == 32
    assert l2_group_size(256, 2**30, 600) == 1
    assert l2_group_size(256, 2**30, 4) == 128
    assert l2_group_size(100_000, 2**30, 600) == 100_000  # more groups than axis 2 can have


def test_the_heads_of_a_group_are_never_apart():
    q, k = torch.empty(2, 12, 4096, 128), torch.empty(2, 4, 4096, 128)
    section, num_tiles, sections = grid_of_queries(q, k, 64)
    assert section % 3 == 0 and section * sections == 24 and num_tiles == 64 and sections > 1


def test_lengths_may_differ_only_without_a_causal_mask():
    q, k = torch.empty(1, 2, 3, 16), torch.empty(1, 2, 5, 16)
    check_attention(q, k, k, causal=False)
    with pytest.raises(ValueError, match=r"^seqlen: got 3 in q and 5 in k, expected the same"):
        check_attention(q, k, k)


def test_equal_heads_unless_grouped():
    q, k = torch.empty(1, 4, 3, 16), torch.empty(1, 2, 3, 16)
    check_attention(q, k, k, grouped=True)
    with pytest.raises(ValueError, match=r"^k: got shape"):
        check_attention(q, k, k)
    with pytest.raises(ValueError, match=r"^num_kv_heads: got 3, expected a divisor of"):
        check_attention(q, torch.empty(1, 3, 3, 16), k, grouped=True)


@pytest.mark.parametrize("problem_id", problem_ids())
def test_a_problem_lists_what_its_answer_imports(problem_id):
    problem = load_problem(problem_id)
    used = {
        str(node.module).removeprefix("given.")
        for node in ast.walk(ast.parse(model_answer(problem_id)))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("given.")
    }
    assert used <= set(problem.given)
    assert set(problem.given) <= {path.stem for path in GIVEN.glob("[a-z]*.py")}


@pytest.mark.parametrize(
    ("line", "verdict", "said"),
    [
        ("from given.softmax import add_tile", Verdict.REJECTED, "given.softmax opens with p04"),
        ("from given import softmax", Verdict.REJECTED, "given.softmax opens with p04"),
        ("import given.softmax as s", Verdict.REJECTED, "given.softmax opens with p04"),
        ("from given.tile import load", Verdict.ERROR, "no module given.tile: expected one of arg"),
        ("from given.tiles import load_kees", Verdict.ERROR, "given.tiles has no 'load_kees'"),
    ],
)
def test_a_wrong_import_is_told_with_its_line(line, verdict, said):
    source = examine(P03, f"import torch\n{line}\n\n{model_answer('p03')}".encode())
    assert source.verdict is verdict and source.message.line == 2
    assert source.message.headline.startswith(said)
    if verdict is Verdict.ERROR:
        assert "another release? CHANGELOG.md" in source.message.headline


@pytest.mark.parametrize(
    "line", ["import given", "from given.units import *", "from .given import x", "import givens"]
)
def test_other_imports_are_none_of_its_business(line):
    assert bad_import(P03, ast.parse(line)) is None


def test_an_answer_with_given_written_out_in_it_is_right():
    text = whole_answer("p04")
    assert "from given" not in text and "def add_tile(" in text
    assert judge(text, P04, checks={"plain", "ragged"}).wrong == {}


@pytest.mark.parametrize(
    ("id", "now", "before"),
    [
        ("p05", "given.loops import causal_loop", "given.walks import causal_walk as causal_loop"),
        ("p06", "import add_tile", "import fold_tile as add_tile"),
        ("p09", "sink_window_loop\n", "sink_window_walk as sink_window_loop\n"),
    ],
)
def test_a_right_file_of_release_0_25_is_right(id, now, before):
    text = model_answer(id)
    assert now in text
    assert judge(text.replace(now, before), load_problem(id), checks={"plain"}).wrong == {}


def test_given_in_a_submission_is_not_used_and_the_report_says_so(tmp_path, capfd):
    (tmp_path / "given").mkdir()
    for module in GIVEN.glob("*.py"):
        (tmp_path / "given" / module.name).write_text("raise SystemExit('mine')\n")
    assert "\nfrom given." in model_answer("p02")
    write_answers(tmp_path, {"p02": model_answer("p02")})
    options = ["--submission", tmp_path, "--only", "p02", "--device", "cpu", "--quick", "-x"]
    with in_this_process():
        assert cli.main(["grade", *map(str, options)]) == 0
    out = capfd.readouterr().out
    assert "given/ in the submission is not used: the judge has its own copy" in out
    assert "p02 Weighted row sum           pass" in out
