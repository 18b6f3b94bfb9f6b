"""The judge's side of a worker: deadlines, deaths, garbage on the channel, and what is left behind.

Most tests replace the worker by a few lines that speak (or break) the protocol: they start at once
and can do what a submission could do to its worker.
"""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from grader.checks import outcome
from grader.isolate import jail, reaper, sandbox, usage
from grader.isolate.sandbox import Sandbox
from grader.spec import protocol
from grader.spec.grade_record import Verdict
from grader.spec.problem import ROOT
from grader.spec.protocol import REPLY, STARTED, Ended, Reply, Status
from tests import needs
from tests.harness import PROMPT_S, alive
from tests.shares import drawn

PRELUDE = f"""
import json, os, signal, socket, sys, time
sys.path.insert(0, {str(ROOT)!r})
from grader.spec.protocol import Reply, STARTED, Status
channel = socket.socket(fileno=int(sys.argv[1]))
settings = json.loads(channel.recv(65536))

def send(nonce, status=Status.OK, **fields):
    channel.send(Reply(nonce, status, **fields).pack())

def started():
    send(STARTED)
    send(settings["nonce"])
    return json.loads(channel.recv(65536))

def daemon(path):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            open(path, "w").write(str(os.getpid()))
            time.sleep(600)
        os._exit(0)
    while not os.path.exists(path) or not open(path).read():
        time.sleep(0.01)
"""


@pytest.fixture
def start(request, tmp_path, monkeypatch):
    """Start a worker whose program is PRELUDE and `text`, in a jail if a test's parameter says so.

    `in_and_out_of_jail` has a test run both ways.
    """
    running = []
    if getattr(request, "param", None) == "jailed":
        needs.a_jail()
        monkeypatch.setattr(jail, "_kernels", tmp_path / "kernels")
        (tmp_path / "kernels").mkdir()

    def start_worker(text, **options):
        path = tmp_path / "worker.py"
        path.write_text(PRELUDE + text)
        monkeypatch.setattr(sandbox, "_WORKER", path)
        options = {"device": "cpu"} | options
        running.append(Sandbox(b"", "answer.py", "answer", **options))
        return running[-1]

    yield start_worker
    for worker in running:
        worker.close()


in_and_out_of_jail = pytest.mark.parametrize("start", drawn(["plain", "jailed"], 2), indirect=True)


@in_and_out_of_jail
def test_a_reply_comes_back(start):
    worker = start(
        "r = started()\nsend(r['nonce'], Status.EXCEPTION, line=7, launches=3, text='no')\n"
    )
    assert worker.ready().status is Status.OK
    reply = worker.ask("anything", PROMPT_S)
    assert (reply.status, reply.line, reply.text) == (Status.EXCEPTION, 7, "no")
    assert reply.launches == 3


@in_and_out_of_jail
def test_no_reply_in_time(start):
    worker = start("started()\nprint('busy')\ntime.sleep(600)\n")
    worker.ready()
    begin = time.monotonic()
    ended = worker.ask("anything", 0.5)
    assert ended.timeout and ended.started and ended.signal_name is None
    assert 0.5 <= ended.waited_s < 1.0
    assert time.monotonic() - begin < PROMPT_S
    assert not alive(worker.pid)
    assert worker.output() == "busy"


BUSY = "end = time.process_time() + 0.5\nwhile time.process_time() < end: pass\n"
ONE_CORE = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"


@in_and_out_of_jail
@pytest.mark.parametrize(("patience", "comes_back"), [(60.0, True), (1.0, False), (1.2, None)])
def test_a_worker_that_waits_for_a_core_has_more_time(start, patience, comes_back):
    """It needs 0.5 s, may take 1.5 s, and is one of five on its core."""
    command = [sys.executable, "-c", f"import os\n{ONE_CORE}while True: pass"]
    others = [reaper.start(command, start_new_session=True) for _ in range(4)]
    try:
        worker = start(f"r = started()\n{ONE_CORE}{BUSY}send(r['nonce'])\ntime.sleep(600)\n")
        worker.ready()
        found = worker.ask("anything", 1.5, patience=patience)
    finally:
        for other in others:
            other.kill()
            other.wait()
            reaper.ended(other)
    assert isinstance(found, Reply) == bool(comes_back)
    if comes_back is None:
        assert found.timeout and found.waited_s < 1.5 < found.waited_s + found.starved_s
        assert outcome.of_result(found).verdict is Verdict.NOT_MEASURED
    elif not comes_back:
        assert outcome.of_result(found).verdict is Verdict.TIMEOUT


@in_and_out_of_jail
@pytest.mark.parametrize("text", ["time.sleep(600)", "while True: pass"])
def test_who_sleeps_or_computes_does_not_wait_for_a_core(start, text):
    worker = start(f"started()\n{text}\n")
    worker.ready()
    ended = worker.ask("anything", 1.0, patience=20.0)
    assert ended.timeout and not ended.starved_s and ended.waited_s == 1.0


@in_and_out_of_jail
@pytest.mark.parametrize("where", ["triton/compiler/compiler.py", "triton/runtime/jit.py"])
def test_no_reply_in_time_because_triton_compiles(start, where):
    worker = start(
        f"code = compile('time.sleep(600)', '/somewhere/{where}', 'exec')\n"
        "import faulthandler; faulthandler.enable()\nstarted()\nexec(code)\n"
    )
    worker.ready()
    assert worker.ask("anything", 0.5).compiling == ("compiler" in where)


@in_and_out_of_jail
def test_a_worker_that_ignores_signals_is_ended_all_the_same(start):
    worker = start(
        "for n in (signal.SIGABRT, signal.SIGTERM, signal.SIGINT):\n"
        "    signal.signal(n, signal.SIG_IGN)\n"
        "started()\ntime.sleep(600)\n"
    )
    worker.ready()
    assert worker.ask("anything", 0.2).timeout
    assert not alive(worker.pid)


@in_and_out_of_jail
@pytest.mark.parametrize(
    ("text", "code", "name"),
    [
        ("os._exit(0)", 0, None),
        ("os._exit(3)", 3, None),
        ("raise ValueError", 1, None),
        ("os.abort()", -6, "SIGABRT"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, "SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -11, "SIGSEGV"),
        ("os.kill(os.getpid(), 35)", -35, "signal 35"),
        ("channel.close(); time.sleep(600)", None, None),
        ("channel.send(b''); time.sleep(600)", None, None),
    ],
)
def test_a_death_says_how(start, text, code, name):
    worker = start(f"started()\n{text}\n")
    worker.ready()
    ended = worker.ask("anything", PROMPT_S)
    assert isinstance(ended, Ended) and not ended.timeout and ended.started
    assert (ended.exit_code, ended.signal_name) == (code, name)
    assert not alive(worker.pid)


@in_and_out_of_jail
def test_a_worker_that_never_started_is_not_the_submissions_fault(start, monkeypatch):
    assert start("os._exit(1)\n").ready().started is False
    monkeypatch.setattr(sandbox, "START_TIMEOUT_S", 0.3)
    ended = start("time.sleep(600)\n").ready()
    assert ended.timeout and ended.started is False


def test_an_import_without_end_is(start, monkeypatch):
    monkeypatch.setattr(sandbox, "IMPORT_TIMEOUT_S", 0.3)
    ended = start("send(STARTED)\ntime.sleep(600)\n").ready()
    assert ended.timeout and ended.started is True


GARBAGE = {
    "noise": "channel.send(os.urandom(100))",
    "one byte": "channel.send(b'x')",
    "truncated": "channel.send(Reply(r['nonce'], Status.OK).pack()[:-1])",
    "too long": "channel.send(Reply(r['nonce'], Status.OK).pack() + b'x')",
    "huge": "channel.send(b'x' * 150_000)",
    "JSON": "channel.send(json.dumps({'nonce': r['nonce'], 'status': 0}).encode())",
    "wrong magic": "channel.send(b'grader1\\0' + Reply(r['nonce'], Status.OK).pack()[8:])",
    "unknown status": "p = Reply(0, Status.OK).pack(); channel.send(p[:16] + b'c' + p[17:])",
    "guessed nonce": "send(0); send(1); send(2**63 - 1); send(settings['nonce'])",
    "descriptors": "socket.send_fds(channel, [b'x'], [0, 1, 2])",
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_what_is_no_answer_is_ignored(start, garbage):
    worker = start(f"r = started()\n{GARBAGE[garbage]}\nsend(r['nonce'], Status.EXITED)\n")
    worker.ready()
    before = len(os.listdir("/proc/self/fd"))
    assert worker.ask("anything", PROMPT_S).status is Status.EXITED
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "text",
    [
        # Answers that are given before the question are none.
        "send(STARTED)\nsend(settings['nonce'])\nfor n in range(50):\n    send(n)\n"
        "r = json.loads(channel.recv(65536))\ntime.sleep(600)\n",
        "started()\nwhile True:\n    send(5)\n",
    ],
    ids=["early", "without end"],
)
def test_what_is_no_answer_does_not_move_the_deadline(start, text):
    worker = start(text)
    assert worker.ready().status is Status.OK
    ended = worker.ask("anything", 0.5)
    assert ended.timeout and ended.waited_s < 1.5


@in_and_out_of_jail
@pytest.mark.parametrize("how", ["time.sleep(600)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_processes_left_behind_are_killed(start, tmp_path, how):
    path, before = tmp_path / "pid", set(usage.descendants(os.getpid()))
    worker = start(f"started()\ndaemon({str(path)!r})\n{how}\n")
    worker.ready()
    begin = time.monotonic()
    ended = worker.ask("anything", 2.0)  # the daemon holds the channel and stdout open
    assert ended.timeout == ("sleep" in how)
    worker.close()
    assert time.monotonic() - begin < PROMPT_S
    assert not list(filter(alive, set(usage.descendants(os.getpid())) - before))
    assert path.exists() == (jail.kernels() is None)  # what a jailed one writes goes with it
    assert not path.exists() or not alive(int(path.read_text()))


def test_a_child_of_the_judges_own_is_left_alone(start):
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    start("time.sleep(600)\n").close()
    assert alive(child)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@in_and_out_of_jail
def test_closing_ends_the_worker_and_removes_its_folder(start):
    worker = start("started()\nprint(os.getcwd())\ntime.sleep(600)\n")
    worker.ready()
    folder = Path(os.readlink(f"/proc/{worker.pid}/cwd"))
    assert (folder / "answer.py").exists()
    worker.close()
    assert not folder.exists() and not alive(worker.pid)


def test_a_reply_fits_into_its_packet_whatever_it_says():
    text = "b" + "\ud800 é \0" * 10_000 + "e"
    large = Reply(2**63 - 1, Status.EXCEPTION, 2**40, 2**40, error_type=text, text=text)
    assert len(large.pack()) == REPLY.size
    back = Reply.unpack(large.pack())
    assert back.nonce == large.nonce and back.line == back.launches == 2**31
    assert len(back.text) <= 2048 and len(back.error_type) <= 64
    middle = Reply.unpack(Reply(1, Status.EXCEPTION, text="b" + "x" * 9000 + "e").pack())
    assert middle.text.startswith("bxx") and middle.text.endswith("xxe") and " ... " in middle.text
    reply = Reply(7, Status.OUT_OF_BOUNDS, 71, 12, "OutOfBounds", "read outside of é")
    assert Reply.unpack(reply.pack()) == reply
    negative = Reply(7, Status.OK, line=-5, launches=-1)
    assert Reply.unpack(negative.pack()) == Reply(7, Status.OK)
    assert Reply.unpack(b"") is None and Reply.unpack(reply.pack()[1:]) is None
    assert STARTED == 0 and protocol.MAX_REQUEST_BYTES > 16 * 1024
