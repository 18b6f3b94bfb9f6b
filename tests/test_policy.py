"""What is found out from a submission's text alone, and that reading it never hangs or runs it."""

import os

import pytest

from grader.manifest import PROBLEMS, load_problem, problem_ids
from grader.model import Verdict
from grader.policy import MAX_SOURCE_BYTES, read_source, step_regions

P02 = load_problem("p02")
P07 = load_problem("p07")
SHOWN = "p02/weighted_row_sum.py"
BODY = ":\n    return x\n"


def source_of(folder, data, problem=P02):
    path = folder / problem.id / problem.file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return read_source(problem, folder)


# What the file holds, the headline, and the line it is shown at.
UNUSABLE = {
    "empty": (b"", f"{SHOWN} is empty: copy the stub back and fill it in", None),
    "only white space": (b"\n  \n", f"{SHOWN} is empty", None),
    "too large": (b"#" * (MAX_SOURCE_BYTES + 1), "got more than 1000000 bytes", None),
    "not text": (b"x = '\xff\xfe'\n", "is not UTF-8 text: byte 5", None),
    "null byte": (b"x = 1\0\n", "null byte", None),
    "syntax error": ("import torch\n\ndef f(:\n    pass\n", "syntax error: invalid syntax", 3),
    "indentation": ("def f():\nreturn 1\n", "syntax error: expected an indented block", 2),
    "unclosed": ("x = 1\ny = (1,\n", "syntax error: '(' was never closed", 2),
    "nested too deeply": ("x = " + "-" * 100_000 + "1\n", "", None),
    "no function": ("x = 1\n", "no function 'weighted_row_sum': got no functions, expected", None),
    "other functions": (
        "def f(): ...\ndef g(): ...\n",
        "no function 'weighted_row_sum': got f, g, expected weighted_row_sum(x, w)",
        None,
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_file_that_cannot_be_used(tmp_path, name):
    data, headline, line = UNUSABLE[name]
    source = source_of(tmp_path, data)
    assert source.verdict is Verdict.ERROR
    assert headline in source.message.headline
    assert source.message.where == SHOWN + (f" line {line}" if line else "")
    assert str(tmp_path) not in source.message.headline


def test_a_missing_file_is_named(tmp_path):
    source = read_source(P02, tmp_path)
    assert source.verdict is Verdict.ERROR
    assert source.message.headline == f"file not found: expected {SHOWN} in the submission"


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "dangling link", "file for a folder"])
def test_what_is_no_file_is_not_read(tmp_path, kind):
    path = tmp_path / "p02" / P02.file
    if kind == "file for a folder":
        path.parent.write_text("")
    else:
        path.parent.mkdir()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "dangling link":
        path.symlink_to(tmp_path / "nowhere.py")
    source = read_source(P02, tmp_path)
    assert source.verdict is Verdict.ERROR
    assert SHOWN in source.message.headline
    assert source.data == b""


SAME = [
    "def weighted_row_sum(x, w)",
    "def weighted_row_sum(x, w, block=128)",
    "def weighted_row_sum(x, w, *, num_warps=4)",
    "def weighted_row_sum(x: 'Tensor', w: 'Tensor') -> 'Tensor'",
    "def weighted_row_sum(*args, **kwargs)",
    "def weighted_row_sum(x, **rest)",
]
DIFFERENT = {
    "def weighted_row_sum(x)": "got (x, ...), expected weighted_row_sum(x, w)",
    "def weighted_row_sum(w, x)": "got (w, x, ...), expected weighted_row_sum(x, w)",
    "def weighted_row_sum(x, w, block)": "block has no default, expected weighted_row_sum(x, w)",
    "def weighted_row_sum(x, w, *, block)": "block has no default",
    "def weighted_row_sum(x, w, /)": "x, w: got positional-only",
    "async def weighted_row_sum(x, w)": "got an async function",
    "def weighted_row_sum(a, b)": "got (a, b, ...)",
}


@pytest.mark.parametrize("line", SAME)
def test_a_signature_that_takes_the_call(tmp_path, line):
    assert source_of(tmp_path, line + BODY).verdict is None


@pytest.mark.parametrize("line", DIFFERENT)
def test_a_signature_that_does_not_take_the_call(tmp_path, line):
    source = source_of(tmp_path, "import torch\n" + line + BODY)
    assert source.verdict is Verdict.ERROR
    assert source.message.headline.startswith("wrong signature of weighted_row_sum: ")
    assert DIFFERENT[line] in source.message.headline
    assert source.message.where == f"{SHOWN} line 2"


@pytest.mark.parametrize(
    ("parameters", "difference"),
    [
        ("q, k, v, *, num_sink_tokens=0, softmax_scale=None", "missing window_size"),
        ("q, k, v, *, window_size", "missing num_sink_tokens, softmax_scale"),
        ("q, k, v, *, window_size, num_sink_tokens, softmax_scale=None", "num_sink_tokens has no"),
        ("q, k, v, window_size, num_sink_tokens=0, softmax_scale=None", ""),
        ("q, k, v, *, window_size=1, num_sink_tokens=0, softmax_scale=None", ""),
    ],
)
def test_options_of_a_signature(tmp_path, parameters, difference):
    source = source_of(tmp_path, f"def attention({parameters}):\n    return q\n", P07)
    assert (source.verdict is None) == (difference == "")
    if difference:
        assert difference in source.message.headline
        assert source.message.headline.endswith(f"expected {P07.signature}")


@pytest.mark.parametrize(
    "text",
    [
        "weighted_row_sum = lambda x, w: x\n",
        "from somewhere import weighted_row_sum\n",
        "from somewhere import *\n",
        "if True:\n    def weighted_row_sum(x, w):\n        return x\n",
        "class weighted_row_sum:\n    pass\n",
    ],
)
def test_an_entry_point_bound_in_another_way_is_left_to_the_worker(tmp_path, text):
    assert source_of(tmp_path, text).verdict is None


def test_the_last_of_two_definitions_counts(tmp_path):
    text = "def weighted_row_sum(x):\n    pass\ndef weighted_row_sum(x, w):\n    return x\n"
    assert source_of(tmp_path, text).verdict is None


def test_nothing_runs_while_reading(tmp_path):
    mark = tmp_path / "ran"
    text = f"open({str(mark)!r}, 'w')\ndef weighted_row_sum(x, w):\n    return x\n"
    assert source_of(tmp_path, text).verdict is None
    assert not mark.exists()


def test_warnings_of_the_students_text_are_not_shown(tmp_path, recwarn):
    source = source_of(tmp_path, "path = '\\d'\ndef weighted_row_sum(x, w):\n    return x\n")
    assert source.verdict is None
    assert not recwarn.list


@pytest.mark.parametrize("problem_id", problem_ids())
def test_a_stub_is_not_implemented_and_names_its_first_step(problem_id):
    source = read_source(load_problem(problem_id), PROBLEMS)
    if source.verdict is None:
        pytest.skip("problems/ holds an answer here")
    assert source.verdict is Verdict.NOT_IMPLEMENTED
    assert source.next_step == 1
    assert f"{problem_id} step 1" in source.message.headline
    assert " line " in source.message.where


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        ("    raise NotImplementedError\n", Verdict.NOT_IMPLEMENTED),
        ("    y = x\n    raise NotImplementedError('step 3')\n", Verdict.NOT_IMPLEMENTED),
        ("    if x is w:\n        return x\n    raise NotImplementedError\n", None),
        ("    return x\n    raise NotImplementedError\n", None),
        ("    if x is w:\n        raise NotImplementedError\n    return x\n", None),
    ],
)
def test_only_a_certain_end_is_not_implemented(tmp_path, body, verdict):
    assert source_of(tmp_path, "def weighted_row_sum(x, w):\n" + body).verdict is verdict


REGIONS = """def weighted_row_sum(x, w):
    # >>> step 1: rows (about 1 line)
    rows = 1
    # <<< step 1
    # >>> step 2: sum (about 1 line)
    # Say how.
    # <<< step 2
    # >>> step 3: never closed
    return rows
# <<< step 9
"""


def test_step_regions_are_the_lines_of_the_markers(tmp_path):
    assert step_regions(REGIONS) == {1: (2, 4), 2: (5, 7)}
    assert source_of(tmp_path, REGIONS).next_step == 2
