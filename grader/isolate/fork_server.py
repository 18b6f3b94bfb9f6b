"""The process that others are forked from: `python -I -u grader/isolate/fork_server.py FD`.

It has imported torch, the tile machine and Triton's compiler, with what Triton imports at the first
launch: Gluon, a tenth of a second. With GRADER_DIFFERENTIATES it has what torch imports for the
first gradient: sympy, half a second. With GRADER_JUDGES it has what tests of the judge import, a
quarter of a second, which no worker finds. Each worker and child would take that time otherwise.
The server never has a submission: what it forks has seen nothing of another worker. It forks
workers, and children of a judge (grader/isolate/processes.py), each of which gets a server of its
own before it reads its request, so that its workers know nothing of that.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import socket
import sys
import time
import traceback
from typing import Any

# They import all of the judge that tests need, but for its plugin, which pytest itself imports.
_JUDGES = (
    *("grader.judge.pytest_run", "grader.judge.problem_run"),
    "grader.report.message",
)
_judges: set[str] = set()  # the modules that only a child of the judge's may find imported

_ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))


def _main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    sys.path[:] = [_ROOT, *filter(None, os.environ["GRADER_SYS_PATH"].split(os.pathsep))]
    gc.disable()  # each collection would look at all that is imported so far
    import torch

    from grader.isolate import compiling, executing, planning, worker

    del compiling, executing, planning  # imported once for all
    worker.import_ahead(gradients="GRADER_DIFFERENTIATES" in os.environ)
    if "GRADER_JUDGES" in os.environ:
        _import_judges()
    torch.set_num_threads(1)
    worker.end_with_parent()
    gc.freeze()  # memory that no collector writes to stays shared with what is forked
    gc.enable()
    _serve(channel)


def _import_judges() -> None:
    """Import what a child that runs tests imports, and note which modules no worker may find."""
    from _pytest.config import default_plugins

    before = set(sys.modules)
    for name in (*_JUDGES, *(f"_pytest.{plugin}" for plugin in default_plugins)):
        importlib.import_module(name)
    ours = ("grader.", "reference", "pytest", "_pytest")
    _judges.update(name for name in sys.modules.keys() - before if name.startswith(ours))


def _serve(channel: socket.socket) -> None:
    """Fork a process for each request and answer with its id, until the judge is gone."""
    while True:
        packet, fds, _, _ = socket.recv_fds(channel, 65536, 3)
        if not packet:
            return
        reader, writer = os.pipe()
        middle = os.fork()
        if middle == 0:
            # The judge adopts the new process when this one ends: it is then the judge's child.
            middle, pid = os.getpid(), os.fork()
            if pid == 0:
                while os.getppid() == middle:  # its end is not to count as the judge's
                    time.sleep(0.0005)
                for fd in (channel.fileno(), reader, writer):
                    os.close(fd)
                request = json.loads(packet)
                if "module" in request:
                    _become_child(request, *fds)
                _become_worker(request, *fds)
            os.write(writer, pid.to_bytes(8, "little"))
            os._exit(0)
        os.waitpid(middle, 0)
        answer = os.read(reader, 8)
        for fd in (reader, writer, *fds):
            os.close(fd)
        channel.send(answer)


def _become_child(request: dict, asked: int, events: int, log: int) -> None:
    """Run a module of the judge's as `python -m` would, with a fork server of its own."""
    import atexit

    from grader.isolate import forks, worker

    worker.end_with_parent()
    os.setsid()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = os.fork()
    if server == 0:
        worker.end_with_parent()
        ours.close()
        for fd in (asked, events, log):
            os.close(fd)
        _serve(theirs)
        os._exit(0)
    theirs.close()
    search_path = os.environ["GRADER_SYS_PATH"]
    _begin(request, log)
    sys.path[:] = [request["cwd"], *filter(None, search_path.split(os.pathsep))]
    fds = [f"--request-fd={asked}", f"--events-fd={events}"]
    sys.argv[:] = [request["module"], *request["arguments"], *fds]
    forks.inherit_server(server, ours)
    code: Any = 0
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    os._exit(code if isinstance(code, int) else 1 if code else 0)


def _begin(request: dict, output: int) -> None:
    """Take over the folder, environment and output of a request."""
    import tempfile

    os.chdir(request["cwd"])
    for target in (1, 2):
        os.dup2(output, target)
    os.close(output)
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None


def _become_worker(request: dict, channel: int, output: int) -> None:
    """Be a worker as a fresh interpreter would: session, folder, environment, output."""
    from grader.isolate import worker

    os.setsid()
    _begin(request, output)
    for name in _judges:
        sys.modules.pop(name, None)
    sys.argv[:] = ["worker.py", str(channel)]
    try:
        worker.main()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    _main()
