"""What is found out from a submission's bytes alone, and that reading them never hangs or runs."""

import ast
import hashlib
import os
import time

import pytest

from grader.base.functions import walk
from grader.source import reading, submission
from grader.source.submission import MAX_SOURCE_BYTES, examine, read_source
from grader.spec.grade_record import Verdict
from grader.spec.problem import load_problem
from tests.harness import whole_answer
from tests.hostile.texts import REFUSED
from tests.shares import drawn

P02 = load_problem("p02")
P03, P04, P07 = map(load_problem, ("p03", "p04", "p07"))
SHOWN = "p02/weighted_row_sum.py"
ENTRY = "def weighted_row_sum(x, w):\n    return x\n"
BODY = ":\n    return x\n"


def write(folder, data, problem=P02):
    path = folder / problem.id / problem.file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def examined(data, problem=P02, *, policy=True):
    return examine(problem, data.encode() if isinstance(data, str) else data, policy=policy)


def cpu_s():
    """Seconds of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def test_what_was_read_is_what_is_graded_hashed_and_recorded(tmp_path):
    data = ENTRY.encode() + b"\r\n# \xc3\xa9\r"
    path = write(tmp_path, data)
    source = read_source(P02, tmp_path)
    path.write_text("raise SystemExit\n")
    assert source.data == data
    assert source.sha256 == hashlib.sha256(data).hexdigest()
    assert (source.problem_id, source.verdict, source.message) == ("p02", None, None)


def test_a_missing_file_is_named(tmp_path):
    source = read_source(P02, tmp_path)
    assert source.verdict is Verdict.ERROR
    assert source.message.headline == f"file not found: expected {SHOWN} in the submission"


@pytest.mark.parametrize("kind", ["folder", "pipe", "socket", "file for a folder"])
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
    elif kind == "socket":
        os.mknod(path, 0o140600)
    source = read_source(P02, tmp_path)
    assert source.verdict is Verdict.ERROR
    assert SHOWN in source.message.headline
    assert source.data == b""


@pytest.mark.parametrize("target", ["answer", "device", "nothing", "itself"])
def test_a_link_is_refused_whatever_it_leads_to(tmp_path, target):
    path = write(tmp_path, ENTRY)
    answer = path.rename(tmp_path / "answer.py")
    targets = {"answer": answer, "device": "/dev/zero", "nothing": "no/such", "itself": path}
    path.symlink_to(targets[target])
    source = read_source(P02, tmp_path)
    assert source.verdict is Verdict.ERROR and source.data == b""
    expected = f"{SHOWN} is a link, expected a regular file: copy it there"
    assert source.message.headline == expected


@pytest.mark.parametrize("target", ["answers/p02", "nothing", "p02"])
def test_a_folder_that_is_a_link_is_refused_whatever_it_leads_to(tmp_path, target):
    (tmp_path / "answers").mkdir()
    write(tmp_path / "answers", ENTRY)
    (tmp_path / "p02").symlink_to(tmp_path / target)
    source = read_source(P02, tmp_path)
    assert source.verdict is Verdict.ERROR and source.data == b""
    assert source.message.headline == "p02 is a link, expected a folder: copy it there"


def test_the_folder_of_a_submission_may_itself_be_a_link(tmp_path):
    (tmp_path / "answers").mkdir()
    write(tmp_path / "answers", ENTRY)
    (tmp_path / "mine").symlink_to("answers")
    assert read_source(P02, tmp_path / "mine").data == ENTRY.encode()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read_is_named(tmp_path):
    write(tmp_path, ENTRY).chmod(0)
    source = read_source(P02, tmp_path)
    assert source.message.headline == f"cannot read {SHOWN}: Permission denied"


def test_a_file_without_end_is_read_no_further_than_the_limit(tmp_path):
    path = write(tmp_path, "")
    with open(path, "r+b") as file:
        file.truncate(2**40)  # sparse: a terabyte of NUL
    begin = time.process_time()
    source = read_source(P02, tmp_path)
    assert source.message.headline == f"{SHOWN} is too long, expected at most 128 KiB of source"
    assert time.process_time() - begin < 1.0


# What the file holds, the headline, and the line it is shown at.
UNUSABLE = {
    "empty": (b"", f"{SHOWN} is empty: copy the stub back and fill it in", None),
    "only white space": (b"\n  \n", f"{SHOWN} is empty", None),
    "a byte too many": (b"#" * (MAX_SOURCE_BYTES + 1), f"{SHOWN} is too long, expected", None),
    "not text": (b"x = '\xff\xfe'\n", "is not UTF-8 text: byte 5", None),
    "UTF-16": ("x = 1\n".encode("utf-16"), "is not UTF-8 text: byte 0", None),
    "null byte": (b"x = 1\0\n", "null byte", None),
    "only NUL": (b"\0" * 4096, "null byte", None),
    "syntax error": ("import torch\n\ndef f(:\n    pass\n", "syntax error: invalid syntax", 3),
    "indentation": ("def f():\nreturn 1\n", "syntax error: expected an indented block", 2),
    "unclosed": ("x = 1\ny = (1,\n", "syntax error: '(' was never closed", 2),
    "old line ends": ("import torch\r\rdef f(:\r    pass\r", "syntax error: invalid syntax", 3),
    "no function": ("x = 1\n", "no function 'weighted_row_sum': got no functions, expected", None),
    "a look-alike": (
        "def f(): ...\ndef weighted_r\u043ew_sum(x, w): ...\n",
        "the \u043e in weighted_r\u043ew_sum is U+043E (Cyrillic small letter o), expected o",
        None,
    ),
    "other functions": (
        "def f(): ...\ndef g(): ...\n",
        "no function 'weighted_row_sum': got f, g, expected weighted_row_sum(x, w)",
        None,
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_bytes_that_cannot_be_used_say_why_and_where(name):
    data, headline, line = UNUSABLE[name]
    source = examined(data)
    assert source.verdict is Verdict.ERROR
    assert headline in source.message.headline
    assert (source.message.file, source.message.line) == (SHOWN, line)


USABLE = {
    "the longest": ENTRY.encode() + b"#" * (MAX_SOURCE_BYTES - len(ENTRY)),
    "a byte order mark": b"\xef\xbb\xbf" + ENTRY.encode(),
    "Windows line ends": ENTRY.replace("\n", "\r\n").encode(),
    "old line ends": ENTRY.replace("\n", "\r").encode(),
    "no line end": ENTRY.rstrip().encode(),
    "letters of any script": ("# é 漢 \U0001f600\n" + ENTRY).encode(),
    "a form feed": b"\f\n" + ENTRY.encode(),
}


@pytest.mark.parametrize("name", USABLE)
def test_bytes_that_can_be_used_are_kept_as_they_are(name):
    source = examined(USABLE[name])
    assert source.verdict is None, source.message
    assert source.data == USABLE[name]


COOKIES = [
    ("# -*- coding: utf-7 -*-\n", 1),
    ("#!/usr/bin/env python\n# vim: set fileencoding=latin-1 :\n", 2),
    ("# coding=UTF-16\n", 1),
    ("\f# coding: cp037\n", 1),
    ("# coding: " + "9" * 5000 + "\n", 1),
]
COOKIES_OF_UTF8 = [
    *("# coding: utf-8\n", "#!/bin/sh\n# -*- coding: UTF8 -*-\n", "# coding=utf_8\n"),
    *("# -*- coding: utf-8-unix -*-\n", "# coding: UTF_8-dos\n", "# coding: utf-8-sig\n"),
]


@pytest.mark.parametrize(("cookie", "line"), COOKIES)
def test_a_coding_other_than_utf8_is_refused(cookie, line):
    # In UTF-7 this is a call, to a reader of UTF-8 a comment.
    source = examined(cookie + "#+AAo-raise SystemExit\n" + ENTRY)
    assert source.verdict is Verdict.ERROR
    assert source.message.headline.startswith(f"{SHOWN}: got coding ")
    assert source.message.headline.endswith(", expected utf-8")
    assert source.message.line == line


@pytest.mark.parametrize("cookie", COOKIES_OF_UTF8)
def test_a_coding_of_utf8_is_no_matter(cookie):
    assert examined(cookie + ENTRY).verdict is None
    compile((cookie + ENTRY).encode(), SHOWN, "exec")  # nor to Python


def test_a_cookie_counts_in_the_first_two_lines_only():
    assert examined("import torch\n\n# coding: utf-7\n" + ENTRY).verdict is None


BOMBS = {
    "brackets": "x = " + "(" * 100_000,
    "signs": "x = " + "-" * 100_000 + "1\n",
    "indices": "x = y" + "[0]" * 40_000 + "\n",
    "lambdas": "x = " + "lambda: " * 15_000 + "1\n",
    "branches": "if 1:\n    pass\n" + "elif 1:\n    pass\n" * 7_000,
    "digits": "x = " + "9" * 100_000 + "\n",
    "an f-string": 'x = f"' + "{y}" * 42_000 + '"\n',
    "a step of 5,000 digits": f"# >>> step {'9' * 5000}\n# <<< step {'9' * 5000}\n",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_for_the_parser_costs_seconds_at_most_and_raises_nothing(name):
    begin = cpu_s()
    source = examined(BOMBS[name] + ENTRY)
    assert cpu_s() - begin < 8.0
    assert source.verdict in (None, Verdict.ERROR, Verdict.REJECTED)
    assert source.message is None or len(source.message.headline) < 300


def test_a_parser_that_takes_too_long_or_crashes_is_stopped(monkeypatch):
    monkeypatch.setattr(reading, "PARSE_S", 1)
    monkeypatch.setattr(reading, "_PARSE", reading._PARSE + "while True: pass\n")
    source = examined(ENTRY)
    assert source.verdict is Verdict.REJECTED and source.data == ENTRY.encode()
    told = f"{SHOWN} takes Python's parser more than 1 s: shorten its longest names"
    assert source.message.headline.startswith(told)
    monkeypatch.setattr(reading, "_PARSE", "import os\nos.abort()\n")
    source = examined(ENTRY)
    assert source.verdict is Verdict.REJECTED and "crashes Python's" in source.message.headline
    monkeypatch.setattr(reading, "_PARSE", "import os\nos.kill(os.getpid(), 9)\n")
    assert examined(ENTRY).verdict is None  # ended by the machine: no fault of the text


def test_a_policy_that_takes_too_long_is_stopped(monkeypatch):
    def endless(*_):
        while True:
            pass

    monkeypatch.setattr(reading, "LOOK_S", 0.1)
    monkeypatch.setattr(submission, "violations", endless)
    source = examined(ENTRY)
    assert source.verdict is Verdict.REJECTED
    assert f"{SHOWN} takes more than 0.1 s to look through" in source.message.headline


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
def test_a_signature_that_takes_the_call(line):
    assert examined(line + BODY).verdict is None


@pytest.mark.parametrize("line", DIFFERENT)
def test_a_signature_that_does_not_take_the_call(line):
    source = examined("import torch\n" + line + BODY)
    assert source.verdict is Verdict.ERROR
    assert source.message.headline.startswith("wrong signature of weighted_row_sum: ")
    assert DIFFERENT[line] in source.message.headline
    assert (source.message.file, source.message.line) == (SHOWN, 2)


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
def test_options_of_a_signature(parameters, difference):
    source = examined(f"def attention({parameters}):\n    return q\n", P07)
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
def test_an_entry_point_bound_in_another_way_is_left_to_the_worker(text):
    assert examined(text, policy=False).verdict is None


def test_the_last_of_two_definitions_counts():
    assert examined("def weighted_row_sum(x):\n    pass\n" + ENTRY).verdict is None


def test_nothing_runs_while_reading(tmp_path):
    mark = tmp_path / "ran"
    assert examined(f"open({str(mark)!r}, 'w')\n" + ENTRY).verdict is Verdict.REJECTED
    assert not mark.exists()


def test_warnings_of_the_students_text_are_not_shown(recwarn):
    assert examined("path = '\\d'\n" + ENTRY).verdict is None
    assert not recwarn.list


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
def test_only_a_certain_end_is_not_implemented(body, verdict):
    assert examined("def weighted_row_sum(x, w):\n" + body).verdict is verdict


@pytest.mark.parametrize("value", ["0x" + "f" * 5000, "b'x'", "1e5", "...", "None", "'\\ud800'"])
def test_any_constant_may_be_raised_with(value):
    source = examined(f"def weighted_row_sum(x, w):\n    raise NotImplementedError({value})\n")
    assert source.verdict is Verdict.NOT_IMPLEMENTED
    assert source.message.headline in ("weighted_row_sum is not implemented", "\\ud800")


def test_what_nobody_thought_of_stays_with_its_file(tmp_path, monkeypatch):
    def fail(*rest):
        raise RuntimeError("not thought of")

    write(tmp_path, ENTRY)
    monkeypatch.setattr(submission, "bad_import", fail)
    source = read_source(P02, tmp_path)
    assert source.verdict is Verdict.ERROR and source.data == ENTRY.encode()
    told = f"{SHOWN} cannot be looked through: RuntimeError: not thought of"
    assert source.message.headline == told


@pytest.mark.parametrize("entry", drawn(REFUSED, 4), ids=lambda entry: entry.name)
def test_a_text_that_is_hard_to_read_is_refused_in_a_moment(entry):
    text = entry.source
    if isinstance(text, str):
        text = text.replace("ENTRY", P04.entry).encode("utf-8", "surrogatepass")
    begin = cpu_s()
    source = examine(P04, text)
    assert source.verdict is not None and str(source.verdict) in entry.verdicts
    assert cpu_s() - begin < 8.0


def test_the_nodes_of_a_text_are_those_of_python_in_its_order():
    tree = ast.parse(whole_answer("p09"))
    assert walk(tree) == [*ast.walk(tree)]
