"""Of an error the judge says which tensor has another shape than its step asks for."""

import pytest

from grader.checks.outcome import CaseOutcome
from grader.checks.raised import of_error
from grader.source.submission import Source
from grader.spec.grade_record import Verdict
from grader.spec.problem import load_problem, problem_ids
from grader.spec.protocol import Reply, Status
from tests import forked
from tests.harness import edited, judge, model_answer

_quick = forked.quick

_APART = "tl.zeros((4,), tl.float32) + tl.zeros((8,), tl.float32)"


def _headline(problem, old, new):
    text = edited(model_answer(problem), (old, new))
    judged = judge(text, load_problem(problem), checks=["plain"], enough=lambda findings: True)
    message = judged.of("plain").message
    return message.headline, message.step, text.splitlines()[message.line - 1].strip()


@pytest.mark.parametrize(
    ("problem", "old", "new", "says", "step"),
    [
        ("p01", "v_heads[:, k_start:k_stop]", "v_heads[:, k_start + 1 : k_stop]", "v_tile has", 1),
        ("p01", "weights.sum(dim=-1, keepdim=True)", "weights.sum(dim=-1)", "tile_sum has", 2),
        ("p02", "tl.load(w_ptrs, mask=col_mask,", "tl.load(w_ptrs, mask=tile_mask,", "w_tile", 1),
        (
            "p01",
            "weights.sum(dim=-1, keepdim=True)",
            "weights.max(-1)",
            "tile_sum is a tuple, e",
            2,
        ),
    ],
)
def test_the_line_is_named_that_made_the_shape_and_not_the_one_that_fails(
    problem, old, new, says, step
):
    headline, found, line = _headline(problem, old, new)
    assert headline.startswith(says) and "expected" in headline
    assert found == step and new in line


@pytest.mark.parametrize(
    ("problem", "old", "new", "says", "step"),
    [
        ("p05", "    k_ptr += batch", "    k_ptr = batch", "k_ptr is a number", 2),
        ("p08", "= delta_ptr + q_head * seqlen", "= q_head * seqlen", "head_delta_ptr is", 6),
        ("p03", "        q, k, v, out, lse, q", "        8, k, v, out, lse, q", "Triton cannot", 2),
        (
            "p03",
            "    lse = torch.empty((batch",
            "    lses = torch.empty((batch",
            "lse is None: step 2 does",
            2,
        ),
        ("p02", "tl.load(w_ptrs, mask", "tl.load(col_mask, mask", "Triton cannot", 1),
        ("p06", "+ 1, 0) // BLOCK_N *", "+ 1, 0) / BLOCK_N *", "Triton cannot", 3),
        ("p01", "tile_sum = weights", "tile_sums = weights", "tile_sum is not set in step 2", 2),
        ("p01", "scores = tile_matmul", "score = tile_matmul", "scores is not set in step 1", 1),
    ],
)
def test_what_is_no_tensor_or_no_pointer_is_named_where_it_became_that(
    problem, old, new, says, step
):
    headline, found, _ = _headline(problem, old, new)
    assert headline.startswith(says) and found == step


def test_a_gradient_of_another_shape_is_named_where_it_is_made():
    text = model_answer("p09").replace(
        "(sink_p * delta).sum((0, 2))", "(sink_p * delta).sum((0, 1))"
    )
    judged = judge(text, load_problem("p09"), checks=["dsink_logits"])
    message = judged.of("dsink_logits").message
    assert message.headline == "dsink_logits has another shape than its input"
    assert message.step == 7 and ".sum((0, 1))" in text.splitlines()[message.line - 1]


@pytest.mark.parametrize(
    ("problem", "old", "new"),
    [
        ("p01", "        # <<< step 4\n", "        torch.zeros(2) + torch.zeros(3)\n"),
        ("p02", "    return x_tile, w_tile\n", f"    {_APART}\n    return x_tile, w_tile\n"),
        (
            "p04",
            "        running_max = new_max\n",
            f"        running_max = new_max\n        {_APART}\n",
        ),
    ],
)
def test_an_error_of_its_own_stays_what_it_is(problem, old, new):
    new = new if "<<<" not in old else new + old
    headline, _, line = _headline(problem, old, new)
    assert " has shape " not in headline
    assert "zeros(" in line


@pytest.mark.parametrize(
    "shapes",
    [
        *("", "[[", "[" * 1500, '[[1,{"x":1}]]', "[1]", '[[9,{"k_tile":["x"]}]]'),
        *('[[Infinity,{"k_tile":[1]}]]', "[[1e999,{}]]", '[[9,{"q_tile":"text"}]]', "[[9,[[1]]]]"),
    ],
)
def test_what_a_submission_has_tampered_with_names_nothing(shapes):
    reply = Reply(1, Status.EXCEPTION, line=9, error_type="RuntimeError", shapes=shapes)
    source = Source("p01", model_answer("p01").encode())
    assert (
        of_error(CaseOutcome(Verdict.ERROR, "it fails"), reply, load_problem("p01"), source) is None
    )


def test_shapes_travel_with_a_text_of_any_length():
    reply = Reply(1, Status.EXCEPTION, text="x" * 1000, shapes="[]")
    assert Reply.unpack(reply.pack()) == reply


def test_each_shape_is_of_a_name_that_its_step_sets():
    for problem in map(load_problem, problem_ids()):
        source = Source(problem.id, model_answer(problem.id).encode())
        for number, step in enumerate(problem.steps, 1):
            first, last = source.lines_of_step(number)
            code = "\n".join(model_answer(problem.id).splitlines()[first - 1 : last])
            assert all(name in code for name in step.shapes), (problem.id, number)


@pytest.mark.parametrize("left", ["pass", "pass  # later"])
def test_a_name_that_a_step_leaves_as_it_was_given_leads_to_the_step(left):
    made = "tile_acc = tile_matmul(weights.to(v.dtype), v_tile)"
    text = edited(model_answer("p01"), (made, left))
    judged = judge(text, load_problem("p01"), checks=["plain"])
    plain = judged.of("plain")
    assert plain.step == 2 and "set tile_acc in step 2" in plain.message.help


def test_a_step_of_one_pass_with_a_comment_is_empty():
    masked = 'safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)'
    text = edited(model_answer("p06"), (masked, "pass"))
    assert "pass  # (BLOCK_M,)" in text
    assert Source("p06", text.encode()).lines_of_step(2) is None


def test_what_raises_where_sizes_do_not_fit_is_wrong_in_that_step_where_they_do() -> None:
    change = "weights.to(v.dtype), v_tile)", "weights.to(v.dtype), tile_sum)"
    text = edited(model_answer("p01"), change)
    judged = judge(text, load_problem("p01"), checks=("one_tile", "ragged"))
    assert judged.of("ragged").verdict is Verdict.ERROR
    assert judged.of("one_tile").verdict is Verdict.FAIL
    assert judged.of("one_tile").step == 2 and judged.named == set()
