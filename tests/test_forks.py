"""Workers that are forked: the judge's own children, apart from each other, with a way without."""

import contextlib
import json
import os
import signal
import time

import pytest

from grader.isolate import forks, processes, reaper, usage
from grader.isolate.compiled import call_of, compile_calls, unavailable
from grader.isolate.processes import Children, Ending
from grader.isolate.sandbox import Sandbox, server_environment
from grader.source.submission import Source
from grader.spec.problem import ROOT, load_problem
from grader.spec.protocol import Status
from tests.forked import forked_workers, servers
from tests.harness import PROMPT_S, model_answer, until
from tests.shares import drawn
from tests.test_processes import PRELUDE

ANSWER = b"""
import os, sys, torch
torch.left_behind = getattr(torch, "left_behind", 0) + 1
print(torch.left_behind, os.getppid(), sys.argv)

def answer():
    pass
"""


def sandbox(source=ANSWER, device="cpu", **options):
    return Sandbox(source, "answer.py", "answer", device=device, **options)


@pytest.fixture
def server():
    with forked_workers():
        yield


@pytest.fixture(scope="module", autouse=True)
def _no_child_is_left():
    before = {*usage.children(os.getpid())} - servers()
    yield
    assert {*usage.children(os.getpid())} - servers() == before


@contextlib.contextmanager
def own_server():
    forks.open_server(server_environment())
    try:
        yield
    finally:
        forks.close_server()


def ends(process_id):
    return until(lambda: not os.path.exists(f"/proc/{process_id}"))


def test_a_worker_is_the_judges_child_and_has_seen_no_other(server):
    for _ in range(2):
        with sandbox() as worker:
            assert isinstance(worker._process, forks.Forked)
            assert worker.ready().status is Status.OK
            assert worker.output().split()[:2] == ["1", str(os.getpid())]
            assert worker.pid in usage.children(os.getpid())
            assert worker.pid in reaper.started() and os.getsid(worker.pid) == worker.pid
        assert ends(worker.pid) and worker.pid not in reaper.started()


def test_a_worker_for_a_gpu_is_forked_too(server):
    with sandbox(device="cuda") as worker:  # without a GPU it does not come far
        assert isinstance(worker._process, forks.Forked)


@pytest.mark.skipif(bool(unavailable()), reason=f"{unavailable()}")
def test_forked_workers_compile_what_fresh_ones_do(server):
    problem = load_problem("p02")
    source = Source("p02", model_answer("p02").encode())
    (case,) = problem.cases(problem.check("compiles"), "5eed").values()
    calls = [call_of(problem, case, problem.outputs)]
    forked = compile_calls(source, problem, calls, capabilities=(90,))
    forks.close_server()
    fresh = compile_calls(source, problem, calls, capabilities=(90,))

    def kernels(found):
        return [[k.kernel.model_copy(update={"compile_ms": 0}) for k in c.kernels] for c in found]

    assert kernels(forked) == kernels(fresh) and all(kernels(fresh))


def test_what_a_worker_started_ends_with_it(server):
    line = "os.fork() or (os.setsid(), os.write(1, b' %d ' % os.getpid()), time.sleep(600))"
    source = f"import os, time\n{line}\n".encode()  # written at once: both print to one pipe
    with sandbox(source + ANSWER) as worker:
        assert worker.ready().status is Status.OK

        def numbers():
            worker._read_output()
            found = [int(n) for n in worker.output().split() if n.isdigit()]
            return found if len(found) >= 3 else None

        started = {*until(numbers)} - {1, os.getpid()}
    assert len(started) == 1 and all(map(ends, started))


IMPORTED = b"""
import sys
ours = ("pytest", "grader.judge", "grader.causes", "reference")
known = {m for m in sys.modules if m.startswith(ours) and "._" not in m}
print(*sorted(known | {"sympy", "triton.experimental.gluon"} & sys.modules.keys()))

def answer():
    pass
"""


def imported():
    """What a worker for plans finds imported, which the first launch and gradient import else."""
    with Sandbox(IMPORTED, "answer.py", "answer", device="cpu", role="plan") as worker:
        assert worker.ready().status is Status.OK
        assert isinstance(worker._process, forks.Forked)
        return worker.output()


def test_of_what_tests_of_the_judge_import_no_worker_finds_any():
    with forked_workers():
        assert imported() == "sympy triton.experimental.gluon"


@pytest.mark.parametrize("harm", drawn([signal.SIGKILL, signal.SIGSTOP], 2))
def test_without_a_server_that_answers_workers_are_fresh(monkeypatch, harm):
    monkeypatch.setattr(forks, "_ANSWER_S", 0.5)
    with own_server():
        assert imported() == "triton.experimental.gluon"
        os.kill(forks._server._process.pid, harm)
        start = time.monotonic()
        assert forks.start(ROOT, server_environment(), 0) is None
        assert time.monotonic() - start < PROMPT_S  # the first answer may take longer
        assert forks._server._channel.fileno() == -1  # it was asked, and will not be again
        with sandbox() as worker:
            assert not isinstance(worker._process, forks.Forked)
            assert worker.ready().status is Status.OK


def test_a_worker_that_asks_for_it_is_fresh(server):
    with sandbox(fresh=True) as worker:
        assert not isinstance(worker._process, forks.Forked)


def test_only_a_child_of_the_judge_can_be_adopted():
    for pid in (0, 1, os.getpid(), os.getppid()):
        assert reaper.adopt(lambda pid=pid: pid) is None
        assert pid not in reaper.started()


WITH_WORKER = r"""
import os
from pathlib import Path
from grader.isolate import forks, sandbox, usage

secret = asked()
with sandbox.Sandbox(
    b"import os, sys\nprint(os.getppid(), sorted(m for m in sys.modules if 'grader' in m))\n"
    b"def answer(): pass",
    "answer.py", "answer", device="cpu",
) as worker:
    said = worker.ready()
    memory = Path(f"/proc/{forks._server._process.pid}/mem").open("rb", 0)
    known = 0
    for line in Path(f"/proc/{forks._server._process.pid}/maps").read_text().splitlines():
        first, last = (int(n, 16) for n in line.split()[0].split("-"))
        if "rw" in line and last - first < 2**26:
            memory.seek(first)
            known += memory.read(last - first).count(secret.encode())
    say(json.dumps({
        "worker": worker.output(), "pid": os.getpid(), "parent": os.getppid(),
        "session": os.getsid(0), "forked": isinstance(worker._process, forks.Forked),
        "child": worker.pid in usage.children(os.getpid()), "known": known, "said": said.status,
        "name": __name__, "environment": dict(os.environ), "arguments": sys.argv[1:-2],
    }))
print("the end")
sys.exit(7)
"""


@pytest.fixture
def children(tmp_path, monkeypatch):
    """Children whose module `child` is forked; its program is PRELUDE and what is written."""
    monkeypatch.setattr(processes, "_FORKED", ("child",))
    monkeypatch.setattr(processes, "ROOT", tmp_path)
    return Children()


def run(children, tmp_path, text, request=""):
    (tmp_path / "child.py").write_text(PRELUDE + text)
    ending = Ending()
    lines = children.events("child", ["--plain"], request, 30.0, ending)
    return [line.decode() for line in lines], ending


def test_a_forked_child_has_workers_that_know_nothing_of_it(
    server, children, tmp_path, monkeypatch
):
    children.open_server()
    monkeypatch.setenv("HARMLESS", "1")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    secret = os.urandom(16).hex()
    lines, ending = run(children, tmp_path, WITH_WORKER, secret)
    assert (ending.exit_code, ending.last_line) == (7, "the end"), ending.output
    found = json.loads(lines[0])
    assert found["parent"] == os.getpid() and found["session"] == found["pid"]
    assert found["forked"] and found["child"] and found["said"] == Status.OK
    parent, modules = found["worker"].split(maxsplit=1)
    assert int(parent) == found["pid"] and "worker" in modules and "manifest" not in modules
    assert found["known"] == 0  # times that the request is in the memory of what forks workers
    assert found["name"] == "__main__" and found["arguments"] == ["--plain"]
    assert found["environment"]["HARMLESS"] == "1"
    assert "TRITON_INTERPRET" not in found["environment"]
    assert not alive()


def alive():
    """Processes below this one, but for the server that tests share."""
    return set(usage.descendants(os.getpid())) - servers()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("pass", 0),
        ("sys.exit('no')", 1),
        ("raise ValueError", 1),
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("import atexit\natexit.register(say, 'at exit')\nsys.exit(2)", 2),
    ],
)
def test_how_a_forked_child_ended_is_seen(server, children, tmp_path, text, code):
    children.open_server()
    lines, ending = run(children, tmp_path, text + "\n")
    assert ending.exit_code == code and (lines == ["at exit"]) == ("atexit" in text)
    assert ("ValueError" in ending.output) == ("ValueError" in text)
    assert not alive()


@pytest.mark.parametrize("harm", drawn([signal.SIGKILL, signal.SIGSTOP], 2))
def test_without_a_server_that_answers_children_are_fresh(children, tmp_path, monkeypatch, harm):
    monkeypatch.setattr(forks, "_ANSWER_S", 0.5)
    children.open_server()
    text = "say('forked' if 'grader.isolate.forks' in sys.modules else 'fresh')\n"
    assert run(children, tmp_path, text)[0] == ["forked"]
    os.kill(children._server._process.pid, harm)
    for _ in range(2):
        lines, ending = run(children, tmp_path, text)
        assert lines == ["fresh"] and ending.exit_code == 0
    children.close()
