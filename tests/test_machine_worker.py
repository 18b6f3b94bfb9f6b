"""Calls of submissions on the machine in a worker: verdicts, words and lines of what is seen."""

from unittest import mock

import pytest

from grader.isolate import far
from grader.isolate.session import Budget, Session
from grader.source.submission import Source
from grader.spec.grade_record import Verdict
from grader.spec.inputs import make_inputs
from grader.spec.problem import load_problem
from grader.spec.protocol import Status
from tests import forked
from tests.harness import cases_of, edited, judge, model_answer
from tests.hostile.inside import RACES
from tests.hostile.reaching import RACES as HIDDEN_RACES
from tests.shares import drawn

IEEE = ', input_precision="ieee"'
P02, P03 = load_problem("p02"), load_problem("p03")

_quick = forked.quick


def judged(source: str, *checks: str):
    return judge(source, P03, checks=checks, enough=lambda found: len(found) == len(checks))


@pytest.mark.parametrize("problem_id", ["p02", "p04"])
def test_a_call_says_which_kernels_it_launched(problem_id: str) -> None:
    problem, text = load_problem(problem_id), model_answer(problem_id)
    ((_, _, case),) = cases_of(problem, ["plain"])[:1]
    source = Source(problem_id, text.encode(), policy=True)
    session = Session(problem, source, device="cpu", machine=True, budget=Budget(problem.limits))
    try:
        reply = session.call(case, make_inputs(problem, case, 0), problem.outputs).result
    finally:
        session.close()
    lines = text.splitlines()
    kernel = max(n for n, line in enumerate(lines, 1) if line == "@triton.jit")
    assert (reply.status, reply.launches) == (Status.OK, 1)
    assert reply.kernels == (kernel + 1,) and lines[kernel].startswith("def ")


def test_an_access_outside_is_refused_with_its_line() -> None:
    lines = model_answer("p02").split("\n")
    at = next(n for n, line in enumerate(lines) if "tl.store(" in line)
    lines[at] = lines[at].split(", mask=")[0] + ")"
    found = judge("\n".join(lines), P02, checks={"ragged_rows"}, enough=lambda found: True)
    message = found.of("ragged_rows").message
    assert message.headline == "write outside a tensor: past the end of argument y_ptr"
    assert message.line == at + 1


OUTSIDE = {
    "k_ptr + (1 << 34)": ("k_ptr", "past the end"),
    "v_ptr - (1 << 34)": ("v_ptr", "before the start"),
}


@pytest.mark.parametrize("pointer", OUTSIDE)
def test_a_read_far_outside_is_told_with_the_argument_it_came_from(pointer: str) -> None:
    name, side = OUTSIDE[pointer]
    source, old = model_answer("p03"), f"load_keys({name} + "
    assert old in source
    found = judged(source.replace(old, f"load_keys({pointer} + "), "plain").of("plain")
    assert found.message.headline == f"read outside a tensor: {side} of argument {name}"


@pytest.mark.parametrize("race", drawn([*RACES, *HIDDEN_RACES], 3), ids=lambda race: race.name)
def test_programs_that_race_fail(race) -> None:
    found = judge(race.source, P02, checks={"one_program"}).of("one_program")
    assert found.verdict is Verdict.FAIL
    headline = found.message.headline
    assert race not in RACES or headline.startswith("programs of one launch race for s_ptr")


@pytest.mark.parametrize(
    "precision", drawn(["", ', input_precision="tf32"', ", allow_tf32=True"], 2)
)
def test_a_dot_that_is_tf32_on_a_gpu_fails_where_fp32_is_asked_for(precision: str) -> None:
    source = model_answer("p03").replace(IEEE, precision)
    found = judged(source, "ieee").of("ieee")
    lines = [n for n, line in enumerate(source.splitlines(), 1) if "tl.dot(" in line]
    assert found.verdict is Verdict.FAIL
    assert found.message.headline == "on a GPU this tl.dot rounds its fp32 operands to TF32"
    assert found.message.line == lines[0] and found.step == 4
    assert found.message.extent == f"a GPU rounds that of line {lines[1]}, too"


def test_a_dot_of_three_products_of_bf16_is_named_as_such() -> None:
    source = model_answer("p03").replace(IEEE, ', input_precision="bf16x3"')
    message = judged(source, "ieee").of("ieee").message
    assert message.headline == "on a GPU this tl.dot rounds its fp32 operands to bf16x3"
    assert message.help.startswith("bf16x3 keeps about 16 of 23 fraction bits")


@pytest.mark.parametrize(
    "precision",
    drawn([', input_precision="tf32x3"', ', input_precision="bf16x6"', ", allow_tf32=False"], 3),
)
def test_other_ways_to_ask_for_fp32_pass(precision: str) -> None:
    found = judged(model_answer("p03").replace(IEEE, precision), "ieee")
    assert found.wrong == {}


def test_tf32_is_no_mistake_elsewhere_nor_in_16_bits() -> None:
    found = judged(model_answer("p03").replace(IEEE, ""), "plain", "half")
    assert found.wrong == {}


def test_an_access_of_one_number_outside_is_named() -> None:
    line = "        acc += products\n"
    one = f"{line}        acc += tl.load(w_ptr + 10**6)\n"
    finding = judge(model_answer("p02").replace(line, one), P02, checks={"plain"}).wrong["plain", 0]
    assert finding.verdict is Verdict.FAIL
    assert finding.message.headline == "read outside a tensor: past the end of argument w_ptr"
    assert finding.message.extent == (
        "program (0, 0, 0): 1 element, the first of them 999,872 past the end, where"
        " w_ptr[1000000] would be; its shape is (128,)"
    )


def test_a_load_that_relies_on_lanes_it_leaves_out_is_told_so() -> None:
    source = model_answer("p02")
    assert source.count(", other=0.0") == 2
    judged = judge(
        source.replace(", other=0.0", ""), load_problem("p02"), checks={"plain", "ragged_cols"}
    )
    headlines = {finding.message.headline for finding in judged.wrong.values()}
    assert headlines == {"y depends on lanes that a load without other= left undefined"}


@pytest.mark.parametrize("problem", ["p02", "p08"])
def test_an_offset_of_32_bits_that_wraps_around_is_named_with_its_line(problem: str) -> None:
    source = model_answer(problem)
    assert ".to(tl.int64)" in source
    narrow = source.replace(".to(tl.int64)", "").replace("tl.int64", "tl.int32")
    check = "far_rows" if problem == "p02" else "far_strides"
    judged = judge(narrow, load_problem(problem), checks={"plain", check})
    ((place, finding),) = judged.wrong.items()
    assert place == (check, 0)
    assert finding.message.headline == "a 32-bit offset overflows"
    assert "stride" in source.splitlines()[finding.message.line - 1]
    assert ".to(tl.int64)" in finding.message.help


def test_an_operation_that_is_not_modelled_is_not_measured_unless_other_cases_run() -> None:
    odd = '"mov.b32 $0, $1;", "=r,r", [products], tl.float32, True, 1'
    line = "        acc += products\n"
    source = model_answer("p02")
    always = edited(source, (line, f"        acc += tl.inline_asm_elementwise({odd})\n"))
    judged = judge(always, P02, checks={"plain", "ragged_cols"})
    assert {f.verdict for f in judged.wrong.values()} == {Verdict.NOT_MEASURED}
    assert judged.correctness.points.available < 6.0
    some = f"        if cols % 16:\n            acc += tl.inline_asm_elementwise({odd})\n"
    some += "        else:\n            acc += products\n"
    judged = judge(source.replace(line, some), P02, checks={"plain", "ragged_cols"})
    assert {f.verdict for f in judged.wrong.values()} == {Verdict.ERROR}


def test_without_addresses_to_spare_the_far_case_is_not_measured(monkeypatch) -> None:
    monkeypatch.setattr(far.mmap, "mmap", mock.Mock(side_effect=OSError("cannot allocate")))
    assert far.reserve() is None
    with pytest.raises(far.NoRoom, match="no 4 GiB of addresses"):
        far.spread(None, {})


def test_what_a_kernel_prints_is_shown_beside_a_wrong_result() -> None:
    line = "        acc += products\n"
    source = model_answer("p02").replace(
        line, f'{line}        acc *= 2\n        print("acc", cols)\n'
    )
    number = source[: source.index('print("acc"')].count("\n") + 1
    finding = judge(source, P02, checks={"plain"}).wrong["plain", 0]
    assert finding.verdict is Verdict.FAIL
    assert f"line {number}, program (0, 0, 0): acc" in finding.message.output


_SCALED = """

def _times(number: tl.constexpr):
    @triton.jit
    def scaled(x):
        return x * number

    return scaled


_TWICE, _HALF = _times(tl.constexpr(2)), _times(tl.constexpr(0.5))


@triton.jit
def _scale(y_ptr, n: tl.constexpr, F: tl.constexpr):
    ids = tl.arange(0, n)
    tl.store(y_ptr + ids, F(tl.load(y_ptr + ids)))


_summed = weighted_row_sum


def weighted_row_sum(x, w):
    y = _summed(x, w)
    _scale[(1,)](y, y.shape[0], _TWICE)
    _scale[(1,)](y, y.shape[0], _HALF)
    return y
"""


def test_two_functions_of_one_name_are_two_constants() -> None:
    judged = judge(model_answer("p02") + _SCALED, P02, checks={"plain"})
    assert {p: f.message.headline for p, f in judged.wrong.items()} == {}
    assert judged.findings.cases
