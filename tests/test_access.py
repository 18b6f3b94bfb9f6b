"""What the judge sees of kernels in the interpreter: TF32 dots, and where a pointer came from."""

from types import SimpleNamespace

import numpy as np
import pytest

from grader.kernel.observers.access import decoded
from grader.spec.grade_record import Verdict
from grader.spec.problem import load_problem
from tests import forked
from tests.harness import judge, model_answer

IEEE = ', input_precision="ieee"'
P03 = load_problem("p03")

_quick = forked.quick


def judged(source, *checks):
    return judge(source, P03, checks=checks, enough=lambda found: len(found) == len(checks))


@pytest.mark.parametrize("precision", ["", ', input_precision="tf32"', ", allow_tf32=True"])
def test_a_dot_that_is_tf32_on_a_gpu_fails_where_fp32_is_asked_for(precision):
    source = model_answer("p03").replace(IEEE, precision)
    found = judged(source, "ieee").of("ieee")
    lines = [n for n, line in enumerate(source.splitlines(), 1) if "tl.dot(" in line]
    assert found.verdict is Verdict.FAIL
    assert found.message.headline == "on a GPU this tl.dot rounds its fp32 operands to TF32"
    assert found.message.line == lines[0] and found.step == 4


def test_a_dot_of_three_products_of_bf16_is_named_as_such():
    source = model_answer("p03").replace(IEEE, ', input_precision="bf16x3"')
    message = judged(source, "ieee").of("ieee").message
    assert message.headline == "on a GPU this tl.dot rounds its fp32 operands to bf16x3"
    assert message.help.startswith("bf16x3 keeps about 16 of 23 fraction bits")


@pytest.mark.parametrize(
    "precision",
    [', input_precision="tf32x3"', ', input_precision="bf16x6"', ", allow_tf32=False"],
)
def test_other_ways_to_ask_for_fp32_pass(precision):
    found = judged(model_answer("p03").replace(IEEE, precision), "ieee").of("ieee")
    assert found.message is None or found.message.headline.startswith("not run")


def test_tf32_is_no_mistake_elsewhere_nor_in_16_bits():
    found = judged(model_answer("p03").replace(IEEE, ""), "plain", "half")
    assert found.wrong == {}


OUTSIDE = {
    "k_ptr + (1 << 34)": ("k_ptr", "past the end"),
    "v_ptr - (1 << 34)": ("v_ptr", "before the start"),
}


@pytest.mark.parametrize("pointer", OUTSIDE)
def test_a_read_far_outside_is_told_with_the_argument_it_came_from(pointer):
    name, side = OUTSIDE[pointer]
    source = model_answer("p03")
    old = f"load_keys({name} + "
    assert old in source
    found = judged(source.replace(old, f"load_keys({pointer} + "), "plain").of("plain")
    assert found.message.headline == f"read outside a tensor: {side} of argument {name}"


def test_a_pointer_before_a_tensor_that_lies_low_keeps_its_argument():
    pointers = [(3 << 48) + 4096 + offset for offset in (0, -(1 << 34))]
    addresses, numbers = decoded(SimpleNamespace(data=np.array(pointers, np.uint64)))
    assert addresses.tolist() == [4096, 4096 - (1 << 34)] and numbers.tolist() == [3, 3]
