"""The output of a worker: bounded, its own, without the judge's frames, warnings and folders."""

import resource
import time

import pytest

from grader.checks import outcome
from grader.spec.protocol import Status
from tests import test_sandbox
from tests.harness import PROMPT_S
from tests.test_sandbox import in_and_out_of_jail

start = test_sandbox.start


def test_output_without_end_neither_blocks_nor_fills_memory(start):
    worker = start("r = started()\nwhile True:\n    os.write(1, b'spam ' * 200_000)\n")
    worker.ready()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ended = worker.ask("anything", 1.5)
    assert ended.timeout and ended.waited_s < 2.5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024
    assert len(worker.output()) <= 16 * 1024


@in_and_out_of_jail
def test_a_gigabyte_of_output_before_the_answer(start):
    worker = start(
        "r = started()\nfor _ in range(1000):\n    os.write(2, b'x' * 999_999 + b'\\n')\n"
        "os.write(1, b'the end\\n')\nsend(r['nonce'])\n"
    )
    worker.ready()
    assert worker.ask("anything", 60.0).status is Status.OK
    assert worker.output().endswith("the end")


def test_an_answer_counts_though_its_worker_ends_while_output_is_read(start, monkeypatch):
    worker = start("r = started()\nprint('busy', flush=True)\ntime.sleep(0.3)\nsend(r['nonce'])\n")
    worker.ready()
    read, reads = worker._read_output, []

    def read_slowly():
        reads.append("before the request" if not reads else "while waiting")
        if len(reads) == 2:
            worker._process.wait(PROMPT_S)
        read()

    monkeypatch.setattr(worker, "_read_output", read_slowly)
    assert worker.ask("anything", PROMPT_S).status is Status.OK
    assert len(reads) > 2


def test_output_is_that_of_the_last_request(start):
    worker = start(
        "r = started()\nfor text in 'one', 'two':\n    print(text, flush=True)\n"
        "    send(r['nonce'])\n    r = json.loads(channel.recv(65536))\n"
    )
    worker.ready()
    worker.ask("anything", PROMPT_S)
    assert worker.output() == "one"
    worker.ask("anything", PROMPT_S)
    assert worker.output() == "two"


def test_closed_output_costs_the_judge_no_time(start):
    worker = start(
        "r = started()\nos.close(1); os.close(2)\ntime.sleep(1)\nsend(r['nonce'])\n"
        "time.sleep(600)\n"
    )
    worker.ready()
    before = time.process_time()
    assert worker.ask("anything", PROMPT_S).status is Status.OK
    assert time.process_time() - before < 0.5


def test_the_temporary_folder_is_not_shown(start):
    worker = start(
        "r = started()\npath = os.getcwd() + '/answer.py'\nprint(path)\n"
        "send(r['nonce'], Status.EXCEPTION, text='in ' + path)\ntime.sleep(600)\n"
    )
    worker.ready()
    assert worker.ask("anything", PROMPT_S).text == "in answer.py"
    assert worker.output() == "answer.py"


@pytest.mark.parametrize("rows", [3, 4000], ids=["whole", "its beginning is lost"])
def test_the_kernel_that_the_assembler_refused_is_not_shown(start, rows):
    rule = 64 * "="
    dump = f"\n{rule}\n`ptxas` stderr:\nptxas fatal: x\nRepro command: /a/b\n" + "mov.u32\n" * rows
    dump += f"\n{rule}\nplease share the reproducer above with Triton project.\n"
    worker = start(f"started()\nprint('mine'); print({dump!r}); print('last')\ntime.sleep(600)\n")
    worker.ready()
    worker.ask("anything", 0.5)
    assert worker.output().split() == (["mine", "last"] if rows == 3 else ["last"])


@pytest.mark.parametrize("rows", [3, 3000])  # the second is longer than what is read of it
def test_no_dump_of_triton_s_ir_is_shown(start, rows):
    module = "module {\n" + "  %0 = arith.constant 0 : i32\n" * rows + "}\n\n{-#\n  x\n#-}\n"
    text = f"no pointer of a tile in a while loop\n{module}kernel.py:7:0: error: a pass failed\n"
    worker = start(f"r = started()\nprint({text!r}, flush=True)\nsend(r['nonce'])\n")
    worker.ready()
    worker.ask("anything", PROMPT_S)
    said = ["no pointer of a tile in a while loop"] if rows < 100 else []
    assert worker.output().splitlines() == [*said, "kernel.py:7:0: error: a pass failed"]


DUMP = (
    "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
    '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n'
    '  File "/tmp/x/grader/isolate/worker.py", line 133 in _evaluate\n'
    '  File "{folder}/answer.py", line {line} in answer\n'
    '  File "{folder}/answer.py", line 90 in <module>\n'
    "\nExtension modules: numpy.core._multiarray_umath, torch._C (total: 30)\n"
)


def crash(start, line):
    text = "text = TEXT.format(folder=os.getcwd(), line=LINE)\n"
    text = text.replace("TEXT", repr(DUMP)).replace("LINE", line)
    worker = start(text + "started()\nos.write(2, text.encode())\nos.kill(os.getpid(), 11)\n")
    worker.ready()
    return worker, worker.ask("anything", PROMPT_S)


@in_and_out_of_jail
def test_a_fatal_dump_tells_the_line_of_the_submission_and_shows_no_other_frame(start):
    worker, ended = crash(start, "71")
    assert (ended.signal_name, ended.line) == ("SIGSEGV", 71)
    output = worker.output()
    assert '  File "answer.py", line 71 in answer' in output
    assert "worker.py" not in output and "ctypes" not in output and "Extension" not in output
    assert "Fatal Python error: Segmentation fault" in output


@pytest.mark.parametrize("line", ["'9' * 5000", "-3", "'1e9'", "'\u0663'", "''", "'x' * 9000"])
def test_a_forged_dump_raises_nothing(start, line):
    _, ended = crash(start, line)
    assert ended.signal_name == "SIGSEGV"
    assert 0 <= ended.line < 10**7


@pytest.mark.parametrize(("times", "recursive"), [(1, False), (60, True)])
def test_a_line_that_a_dump_has_many_times_is_of_a_function_that_calls_itself(
    start, times, recursive
):
    frame = '  File "{folder}/answer.py", line 71 in answer\n'
    dump = DUMP.format(folder="{folder}", line=9).replace("\n  File", "\n" + frame * times, 1)
    lines = f"text = {dump!r}.format(folder=os.getcwd())\nstarted()\nos.write(2, text.encode())\n"
    worker = start(lines + "os.kill(os.getpid(), 11)\n")
    worker.ready()
    ended = worker.ask("anything", PROMPT_S)
    assert (ended.line, ended.recursive) == (71, recursive)
    told = outcome.of_result(ended).help
    assert (told == "a function calls itself without end") == recursive


TRACEBACK = (
    "printed\nTraceback (most recent call last):\n"
    '  File "/tmp/x/grader/isolate/worker.py", line 25, in _guarded\n'
    "    return handler(*args)\n           ^^^^^^^\n"
    "  [Previous line repeated 3 more times]\n"
    '  File "{folder}/answer.py", line 71, in answer\n    boom()\n    ^^^^\n'
    '  File "/usr/lib/torch/x.py", line 9, in add\n    raise Error\nError: text\n'
)


def test_of_a_traceback_only_the_submissions_frames_are_shown(start):
    text = (
        f"started()\ntext = {TRACEBACK!r}\nos.write(2, text.format(folder=os.getcwd()).encode())\n"
    )
    worker = start(text)
    worker.ready()
    worker.ask("anything", PROMPT_S)
    assert worker.output() == (
        'printed\nTraceback (most recent call last):\n  File "answer.py", line 71, in answer\n'
        "    boom()\n    ^^^^\nError: text"
    )


def test_what_a_submission_prints_of_other_files_is_its_own_business(start):
    worker = start(
        "r = started()\n"
        'print(\'  File "answer.py", line 3 in f\\nFile "other.py", line 3\')\n'
        "send(r['nonce'])\ntime.sleep(600)\n"
    )
    worker.ready()
    worker.ask("anything", PROMPT_S)
    assert len(worker.output().splitlines()) == 2


def test_warnings_of_a_library_are_not_the_submissions(start):
    text = (
        "import warnings\n"
        "warnings.warn_explicit('mine', UserWarning, os.getcwd() + '/answer.py', 7)\n"
        "warnings.warn_explicit('theirs', RuntimeWarning, '/usr/lib/interpreter.py', 491)\n"
        "os.write(1, b'printed\\n')\n"
    )
    worker = start(text)
    worker.ready()
    output = worker.output()
    assert "answer.py:7: UserWarning: mine" in output and "printed" in output
    assert "theirs" not in output and "interpreter.py" not in output
