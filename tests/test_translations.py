"""Raw messages of the Triton that is installed, and the sentence that goes with each."""

import functools
import json
import re
import subprocess
import sys

import pytest

from grader.checks import translations
from grader.checks.translations import translation
from grader.spec.problem import ROOT

# What the sentence says, by the case of tests/raw_messages.py.
SAID = {
    "bitcast": "bitcast keeps the bits",
    "shapes": "tiles of different shapes",
    "not_a_power": "power of two",
    "size_at_run_time": "tl.constexpr",
    "shape_at_run_time": "tl.constexpr",
    "type_changes": "keep its type and shape in a loop",
    "shape_changes": "keep its type and shape in a loop",
    "small_dot": "16 elements or more",
    "dot_of_an_axis_more": "same number of axes",
    "dot_not_transposed": "tl.trans",
    "dot_of_two_types": "both operands in one dtype",
    "dot_of_offsets": "whole numbers",
    "transposed_pointer": "this has one axis",
    "offset_with_a_fraction": "//, not /",
    "maximum_of_a_pointer": "has to be loaded first",
    "arguments_exchanged": "order of the arguments",
    "no_such_function": "Triton has no function of this name",
    "global_value": "pass the value as a parameter",
    "undefined": "a name in a kernel must be a parameter",
    "assigned_in_an_if": "on every path to this line",
    "helper_without_jit": "needs @triton.jit",
    "chained": "comparisons with &",
    "if_of_a_tile": "tl.where",
    "index": "cannot be indexed",
    "slice_of_a_tile": "cannot be indexed",
    "break_in_a_loop": "cannot leave a loop early",
    "return_from_a_loop": "cannot return from a loop",
    "list_of_tiles": "no lists",
    "load_of_a_number": "a number, not a pointer",
    "tile_to_one_pointer": "one pointer per element",
    "exponential_of_an_integer": ".to(tl.float32)",
    "bounds_of_fractions": "bounds of a loop must be integers",
    "dim_for_axis": "Triton calls it axis",
    "method_of_an_argument_that_is_1": "an argument equal to 1",
    "field_of_a_constexpr": "give it a name of its own",
    "recursion": "cannot call itself",
    "launch_without_a_grid": "launched with its grid",
    "grid_of_a_number": "a grid is a tuple",
    "function_of_tl_outside": "needs @triton.jit",
    "argument_left_out": "something here is None",
}


@functools.cache
def told():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.raw_messages"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", SAID)
def test_what_triton_says_is_translated(case):
    message, help = told()[case]
    assert help is not None and SAID[case] in help, message


def test_each_case_is_looked_at():
    assert told().keys() == SAID.keys()


# Of a GPU, of other versions, or of an assembler.
@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            "ValueError: Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)",
            "device=q.device",
        ),
        (
            "RuntimeError: Cannot call @triton.jit'd outside of the scope of a kernel",
            "launched with its grid",
        ),
        (
            "ValueError: Did you forget to add @triton.jit ? (`_semantic` argument must be provided"
            " outside of JIT functions.)",
            "needs @triton.jit",
        ),
        (
            "OutOfResources: out of resource: shared memory, Required: 1, Hardware limit: 0",
            "smaller",
        ),
        ("RuntimeError: 0 active drivers ([]). There should only be one.", "TRITON_INTERPRET=1"),
        ("CompilationError: Mask argument cannot be block type if ...", "one pointer per element"),
    ],
)
def test_messages_that_this_machine_cannot_make(message, words):
    assert words in translation(message)


@pytest.mark.parametrize(
    "message",
    [
        "ZeroDivisionError: division by zero",
        "NameError: name 'scale' is not defined",
        "AttributeError: 'builtin_function_or_method' object has no attribute 'item'",
        "RuntimeError: Boolean value of Tensor with more than one value is ambiguous",
        "",
    ],
)
def test_what_says_it_by_itself_is_left_alone(message):
    assert translation(message) is None


def test_a_sentence_is_short_and_no_pattern_hides_another():
    for pattern, help in translations._TRANSLATIONS:
        assert 20 < len(help) < 150 and not help.endswith(".")
        assert re.compile(pattern).search("") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("AssertionError: Torch not compiled with CUDA enabled", "device=q.device"),
        ("ValueError: Expected a cuda device, but got: cpu", "device=q.device"),
        ("NotImplementedError: inline_asm not supported in interpreter mode", "only on a GPU"),
        ("TypeError: unhashable type: 'list'", "one level of a tuple"),
    ],
)
def test_what_a_file_for_a_gpu_meets_without_one(text, said):
    assert said in translation(text)
