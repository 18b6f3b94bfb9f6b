"""A kernel runs in Triton's interpreter as a compiler reads it: its own text, and constants."""

from __future__ import annotations

import ast

import numpy as np
import pytest

from grader.kernel.observers.access import AccessMonitor
from grader.kernel.observers.races import Races
from grader.source.policy.rules import violations
from grader.spec.problem import load_problem
from tests import forked
from tests.harness import judge, model_answer
from tests.hostile import classes, reaching
from tests.hostile.inside import LEAKS, RACES

P02 = load_problem("p02")
TOLD = {
    "the interpreter's names": "name 'np' is not defined",
    "a kernel in a text": "IndexError",
    "a kernel with another one's text": "IndexError",
    "a kernel in Triton's table": "IndexError",
    "a grid that loads": "by triton.language outside of a kernel",
    "a load after a launch": "by triton.language outside of a kernel",
    "a kernel that map() makes": "triton.jit makes a kernel of what the text does not show",
    "a kernel whose method is set": "rewrite is set on an object that is not this file's",
    "a kernel of a function's name": "rewrite is set on an object that is not this file's",
    "a method in a table": "TABLE[0]: got builtin_function_or_method, expected a constant",
    "a method in a default": "Other: got the class Row, expected a constant",
    "a method of a key": "unhashable type: 'Attributes'",
    "a launch in a kernel": "inner: got Heuristics, expected a constant",
    "the text of an assertion": "substring not found",
    "bit by bit in interrupts": "with the error of a kernel",
    "how often a constexpr function is called": "nothing was told",
    "attributes that a text for str.format names": ".format fills a text with attributes that it"
    " names",
    "a module that an error is about": ".inspect leads to modules and objects that the text does"
    " not name",
    "attributes that __match_args__ names": "the class that type(...) returns is kept: of which"
    " object, is not followed",
    "a class derived from a kernel's": "a class has a base that is not named as a class",
    "a class that a decorator swaps": "the class that type(...) returns is kept: of which object,"
    " is not followed",
    "a sequence that torch.tensor asks": "PyTorch asks Seq for its items",
    "a sequence that an index asks": "PyTorch asks Seq for its items",
    "a class that a metaclass swaps": "a class is made by what is no metaclass of Python's",
    "a metaclass among keywords": "a class is made by what is no metaclass of Python's",
    "a decorator whose name is bound again": "count is set on an object that is not this file's",
    "a base whose name is bound again": "a class has a base that is not named as a class",
    "a dataclass that begins on Triton's class": ".__init__ makes another object of one that is"
    " there",
    "a beginning that a pattern takes": ".__init__ makes another object of one that is there",
    "a method that begins on Triton's class": "change is called on a tensor, which is not an object"
    " of this file",
    "a partial that says it is Triton's": "sink: got partial, expected a constant",
    "a decorated function that says it is Triton's": "sink: got function, expected a constant",
    "numbers that a Flag keeps": "IndexError",
    "numbers that a Flag is joined with": "IndexError",
    "a method that prints": "write: a kernel gets constants alone",
}
_NO_METHOD = "take: a kernel gets constants alone, and no methods or functions of Python's"

_quick = forked.quick


# A loop's variable, what is made of it, and what a function is given of both, are scalars.
_CASTS = """
@triton.jit
def _row(x_ptr, start, stride, rows):
    at = start.to(tl.int64) * stride.to(start.dtype) + tl.arange(0, 16)
    return tl.load(x_ptr + at, mask=start < rows, other=0.0)


@triton.jit
def _sums(x_ptr, y_ptr, rows, cols, stride):
    for row in range(rows):
        total = tl.zeros((16,), tl.float32)
        for block in tl.range(0, tl.cdiv(cols, 16)):
            total += _row(x_ptr + (block * 16).to(tl.int64), row, stride, rows).to(tl.float32)
        tl.store(y_ptr + (row + 0).cast(tl.int64), tl.sum(total, 0))


def weighted_row_sum(x, w):
    x = (x * w).contiguous()
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    _sums[(1,)](x, y, *x.shape, x.stride(0))
    return y
"""


def test_numbers_in_a_kernel_have_the_methods_of_scalars():
    source = model_answer("p02") + _CASTS
    judged = judge(source, P02, checks=["one_program"], policy=False, enough=lambda found: True)
    assert judged.wrong == {} and judged.findings.cases


REACHED = (*classes.ENTRIES, *reaching.REACHING, *reaching.ASKED, *reaching.RACES)


def in_p02(entry):
    """What is refused wherever it stands names the function of any problem."""
    return entry.source.replace("def ENTRY(", f"def {P02.entry}(")


@pytest.mark.parametrize("entry", [*LEAKS, *RACES, *REACHED], ids=lambda entry: entry.name)
def test_no_check_is_passed_by_what_no_gpu_does(entry):
    source = in_p02(entry)
    refused = violations(P02, ast.parse(source))
    if refused:
        assert entry.verdicts == ("rejected",) and refused[0].text == TOLD[entry.name]
        return
    judged = judge(source, P02, checks={"one_program"}).of("one_program")
    told = TOLD.get(entry.name, _NO_METHOD if entry in LEAKS else "programs of one launch race")
    assert judged.verdict in entry.verdicts and told in judged.message.headline


def test_functions_of_triton_and_math_may_be_imported_by_their_names():
    names = "from math import sqrt\nfrom triton.language import sum as row_sum, cdiv\n"
    names += "from triton.language.extra.libdevice import exp2\n"
    source = model_answer("p02").replace("import torch\n", names + "import torch\n", 1)
    line = "y_tile = tl.sum(acc, axis=1)"
    assert line in source
    ones = "exp2(tl.zeros((BLOCK_M,), tl.float32)) * sqrt(1.0) * cdiv(1, 2)"
    source = source.replace(line, f"y_tile = row_sum(acc, axis=1) * {ones}")
    assert judge(source, P02, checks={"one_program"}).wrong == {}


# A launch replaces each of them where it lies, a class among them.
_NAMES = "range load store program_id arange zeros multiple_of float32 constexpr"
_NAMED = f"""
import triton.language as T
from triton.language import math as of_tiles, {_NAMES.replace(" ", ", ")}
from triton.language.math import exp as natural

two_to = T.constexpr(T.exp2)
loaded = load
hints = (multiple_of, T.max_contiguous)


@triton.jit
def _ones(x, EXP: constexpr = T.math.exp2):
    return EXP(x) * two_to(x) * natural(x) * of_tiles.cos(x)


@triton.jit
def _sums(x_ptr, w_ptr, y_ptr, rows, cols, stride, LOG: constexpr, BLOCK: constexpr):
    for row in range(program_id(0), rows, num_stages=1):
        total = zeros([BLOCK], float32)
        for start in range(0, cols, BLOCK):
            at = hints[0](start, BLOCK) + arange(0, BLOCK)
            w = load(w_ptr + at, mask=at < cols, other=0.0)
            total += w * loaded(x_ptr + row * stride + at, mask=at < cols, other=0.0)
        store(y_ptr + row, T.sum(total, 0) * T.sum(_ones(LOG(zeros([1], float32) + 1)), 0))


def weighted_row_sum(x, w):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    _sums[(1,)](x, w, y, *x.shape, x.stride(0), LOG=T.log, BLOCK=32)
    return y
"""


@pytest.mark.parametrize("policy", [True, False])
def test_what_a_launch_replaces_may_have_any_name(policy):
    source = f"import torch\nimport triton\n{_NAMED}"
    assert not violations(P02, ast.parse(source))
    judged = judge(source, P02, checks={"one_program"}, policy=policy)
    assert judged.wrong == {} and judged.findings.cases


def test_a_launch_runs_the_body_of_a_kernel_alone():
    """Whatever the text says: a class of the file may have its own way to find a body."""
    source = next(in_p02(e) for e in REACHED if e.name == "a class derived from a kernel's")
    judged = judge(source, P02, checks={"one_program"}).of("one_program")
    assert "a launch runs what is not the body of a kernel" in judged.message.headline


HONEST = '''
@triton.constexpr_function
def twice(n):
    return _doubled(n)


@functools.cache
def _doubled(n):
    return 2 * n if torch.float16.itemsize == 2 and SCALES["row"] == [1] else 0


SCALES = {"row": [1]}
ONE = 1.0


def _made(number):
    @triton.jit
    def scaled(x, DTYPE: tl.constexpr = tl.float32):
        """Multiplies.

        def scaled(x): is what it is not.
        """
        return x.to(DTYPE) * number * ONE

    return scaled


_scaled = _made(twice(4))


@triton.jit
def _sum(a, b):
    return a + b * ONE
'''


def test_honest_kernels_have_all_that_compilers_give_them():
    source = model_answer("p02").replace("import torch\n", "import functools\nimport torch\n", 1)
    source = source.replace("\n\n@triton.jit", f"\n{HONEST}\n\n@triton.jit", 1)
    source = source.replace(
        "tl.sum(acc, axis=1)", "tl.reduce(_scaled(acc), 1, _sum) / twice(twice(2))"
    )
    assert judge(source, P02, checks={"plain", "ragged_rows"}).wrong == {}


def test_triton_language_may_hide_in_triton():
    source = model_answer("p02").replace("tl.", "triton.language.")
    source = source.replace("import triton.language as tl", "import triton.language")
    assert judge(source, P02, checks={"plain"}).wrong == {}


# -- races ----------------------------------------------------------------------------------------

AT = np.arange(4) * 4 + 64
ONES = np.ones(4, np.float32)


def _raced(*steps) -> str:
    """What is found in steps of programs: program, what it does, and to which addresses."""
    races = Races(lambda: 7)
    races.launched()
    running = None
    for program, does, addresses, *value in steps:
        if program != running:
            races.begins((program, 0, 0))
        running = program
        if does == "stores":
            races.stored(64, 128, "y", addresses, *value)
        elif does == "waited":
            races.waited(*addresses, 4)
        elif does in ("updated", "adds"):  # whole numbers, or others
            start, places = addresses
            races.updated(start, "y", places, 4, whole=does == "updated")
        else:
            getattr(races, does)(*addresses[:1], "y", *addresses[1:], 4)
    assert races.found is None or races.found[0] == 7
    return races.found[1] if races.found else ""


STORED = (0, "stores", AT, ONES)
CANCELS = np.array([1e-4, -2.0, 1e-6, 1.0], np.float32)  # beside larger numbers
LOCK, OTHER = ("updated", (128, AT[:1] + 64)), ("updated", (128, AT[1:2] + 64))
UNLOCKS, FLAG = (0, *LOCK), (0, "stores", AT[:1] + 32, ONES[:1])
BOUNDS = np.array([np.inf, -np.inf, np.nan, 0.0], np.float32)


@pytest.mark.parametrize(
    "steps",
    [
        (STORED, (1, "stores", AT, ONES)),
        (STORED, (1, "stores", AT, ONES * np.float32(1 + 2e-7))),  # another order of sums
        (STORED, (1, "stores", AT, np.array([1, 1.007, 1, 0.993], np.float32))),  # of bf16
        ((0, "stores", AT, CANCELS), (1, "stores", AT, CANCELS + np.float32(1e-3))),
        ((0, "stores", AT, BOUNDS), (1, "stores", AT, BOUNDS)),
        (STORED, (1, "stores", AT + 16, 2 * ONES)),
        (STORED, (0, "loaded", (64, AT))),
        (STORED, (1, "loaded", (64, AT + 16))),
        (STORED, (1, "loaded", (128, AT + 64))),
        (STORED, UNLOCKS, (1, *LOCK), (1, "loaded", (64, AT))),
        (STORED, UNLOCKS, (1, *LOCK), (1, "stores", AT, 2 * ONES)),
        (STORED, UNLOCKS, (1, *LOCK), (2, *LOCK), (2, "loaded", (64, AT))),
        (STORED, UNLOCKS, (1, "waited", (128, AT[:1] + 64)), (1, "loaded", (64, AT))),
        # From the first to the second by one flag, from there to the third by another.
        (STORED, UNLOCKS, (1, *LOCK), (1, *OTHER), (2, *OTHER), (2, "loaded", (64, AT))),
        (STORED, FLAG, (1, "waited", (64, AT[:1] + 32)), (1, "loaded", (64, AT))),
        ((0, "adds", (64, AT)), (1, "adds", (64, AT))),
        ((0, "updated", (64, AT)), (1, "updated", (64, AT))),
    ],
)
def test_programs_that_keep_apart_or_wait_do_not_race(steps):
    assert _raced(*steps) == ""


@pytest.mark.parametrize(
    ("second", "does"),
    [
        ((1, "stores", AT + 12, 2 * ONES), "stores to"),
        ((1, "stores", AT, np.float32(1.03) * ONES), "stores to"),
        ((1, "stores", AT, np.inf * ONES), "stores to"),
        ((1, "loaded", (64, AT + 12)), "reads"),
        ((1, "updated", (64, AT[:2])), "updates"),
    ],
)
def test_programs_that_use_what_another_stores_race(second, does):
    assert _raced(STORED, second) == (
        f"programs of one launch race for y; program (1, 0, 0) {does} an element that program"
        " (0, 0, 0) stores to"
    )


@pytest.mark.parametrize(
    "steps",
    [
        (STORED, (1, *LOCK)),  # the first has not come to it
        (UNLOCKS, STORED, (1, *LOCK)),  # it has, before
        (STORED, UNLOCKS),  # and the second has not
        (STORED, UNLOCKS, (1, *OTHER)),
        (STORED, UNLOCKS, (1, "adds", (128, AT[:1] + 64))),
        (STORED, (1, "waited", (128, AT + 64))),
        (STORED, FLAG, (1, "waited", (64, AT[1:2] + 32))),
    ],
)
def test_a_lock_that_two_programs_do_not_share_orders_nothing(steps):
    last = steps[-1][0] or 1
    assert "reads an element that program (0, 0, 0)" in _raced(*steps, (last, "loaded", (64, AT)))


def test_a_launch_forgets_the_one_before():
    races = Races(lambda: 7)
    for program in (0, 1):
        races.launched()
        races.begins((program, 0, 0))
        races.stored(64, 128, "y", AT, ONES * program)
    assert races.found is None
    races.reset()
    assert AccessMonitor("answer.py").races.found is None
