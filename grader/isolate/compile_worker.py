"""The process in which kernels are compiled: `python -I -u grader/isolate/compile_worker.py FD`.

It imports one submitted file as if the machine had a GPU, and makes calls that launch nothing.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import sys


def _main() -> None:
    faulthandler.enable(all_threads=False)
    channel = socket.socket(fileno=int(sys.argv[1]))
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    search_path = os.environ.pop("GRADER_SYS_PATH", "").split(os.pathsep)
    sys.path[:] = [root, *filter(None, search_path)]
    from grader.isolate import compiling, worker

    sys.path.remove(root)
    worker._confine()
    compiling.serve(channel)


if __name__ == "__main__":
    _main()
