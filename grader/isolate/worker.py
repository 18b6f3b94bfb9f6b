"""The process in which a submission runs: `python -I -u grader/isolate/worker.py FD`.

It serves the judge's requests on a socket: it calls the submission on data (serving.py), has it
plan a call (planning.py) or carries out such a plan (executing.py), or compiles for a chip that is
not there (compiling.py). It knows no reference, no seed and no score.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import os
import resource
import signal
import socket
import sys

_MAX_FILE_BYTES = 2**30
_PR_SET_PDEATHSIG = 1
_ROLES = {
    "call": ("grader.isolate.serving", "Worker"),
    "plan": ("grader.isolate.planning", "Planner"),
    "carry out": ("grader.isolate.executing", "Executor"),
    "compile": ("grader.isolate.compiling", "CompileWorker"),
}


def main() -> None:
    """Serve one submitted file until the judge closes the channel."""
    faulthandler.enable(all_threads=False)
    _confine()
    channel = socket.socket(fileno=int(sys.argv[1]))
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    search_path = os.environ.pop("GRADER_SYS_PATH", "").split(os.pathsep)
    sys.path[:] = [root, *filter(None, search_path)]
    from grader.isolate import serving

    held, gradients = (os.environ.pop(f"GRADER_{w}", "") for w in ("HELD", "DIFFERENTIATES"))
    if held:
        import_ahead(gradients=bool(gradients))
    settings = serving.begin(channel)
    module, name = _ROLES[settings["role"]]
    worker = getattr(importlib.import_module(module), name)
    sys.path.remove(root)
    worker(channel, settings).serve()


def import_ahead(*, gradients: bool) -> None:
    """Do what Triton does at the first launch, and import what torch does for `gradients`.

    Triton's keys of its cache hold a digest of all its own files: hundreds of megabytes.
    """
    with contextlib.suppress(Exception):  # no kernel of a submission needs it done ahead
        importlib.import_module("triton.compiler.code_generator")
        importlib.import_module("triton.experimental.gluon.nvidia.hopper")
        importlib.import_module("triton.runtime.cache").triton_key()
    if gradients:
        importlib.import_module("torch.fx.experimental.symbolic_shapes")


def _confine() -> None:
    """Write no large file and no core dump, end with the judge, and first when memory is out."""
    end_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE_BYTES, _MAX_FILE_BYTES))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def end_with_parent() -> None:
    """Be killed when the thread ends that started this process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
