"""Mistakes of tests/wrong get no name that is not true of them, and one where one is known.

A share of one of each name and problem; `python -m tests.golden diff mistake` judges all of them,
in all checks.
"""

import pytest

from grader.spec.problem import load_problem
from tests import forked
from tests.harness import judge
from tests.shares import drawn, of_all
from tests.trials import last_is_wrong, right_answers, untrue
from tests.wrong import WRONG, Wrong, unusual

ONE_OF_EACH = {
    (wrong.problem, wrong.causes): wrong for wrong in reversed(WRONG) if wrong.checks
}.values()

_quick = forked.quick


@pytest.mark.parametrize("wrong", drawn(ONE_OF_EACH, 40, of_all), ids=lambda wrong: wrong.id)
def test_a_mistake_is_named_truly_or_not_at_all(wrong: Wrong) -> None:
    # Of kernels that look like no model answer the first wrong case tells: a name that it allows
    # may be lost where more cases are seen.
    judged = judge(
        wrong.source(),
        load_problem(wrong.problem),
        checks=wrong.checks,
        enough=lambda found: wrong in unusual.WRONG and last_is_wrong(found),
    )
    assert untrue(wrong, judged) == []


def test_keys_of_the_first_sequence_are_no_heads_that_a_gradient_leaves_out() -> None:
    source = right_answers("unusual")["p05-one_row_of_tokens"][1]
    wrong = source.replace("k_ptr + (row[None, :] *", "k_ptr + (kpos[None, :] *")
    judged = judge(wrong, load_problem("p05"), checks=("batch_heads",), enough=last_is_wrong)
    assert wrong != source and judged.wrong and "HEADS-LEFT-OUT" not in judged.named


def test_a_clamped_row_is_no_mistake_where_its_weight_is_zero() -> None:
    source = right_answers("unusual")["p03-clamped_indices"][1].replace(
        "tl.log(den) + top", "tl.log(den)"
    )
    judged = judge(source, load_problem("p03"), checks=("ragged", "lse"))
    assert judged.named == {"LSE-WITHOUT-MAX"}


def test_lanes_that_a_block_pointer_leaves_undefined_are_the_mistake_and_not_their_state() -> None:
    found = right_answers("unusual").get("p03-block_pointers")
    if found is None:
        pytest.skip("Triton 3.9 has no block pointers")
    old = 'tl.load(v_tiles, boundary_check=(0,), padding_option="zero")'
    wrong = found[1].replace(old, "tl.load(v_tiles, boundary_check=(0,))")
    judged = judge(wrong, load_problem("p03"), checks=("ragged",))
    (headline,) = {finding.message.headline for finding in judged.wrong.values()}
    assert "a load without padding_option= left undefined" in headline and not judged.named
