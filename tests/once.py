"""Makes what several tests need once for all test processes of a run, not once in each of them."""

import atexit
import fcntl
import hashlib
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Made = TypeVar("Made")
_FOLDER = "PYTEST_ONCE"  # in the environment, which xdist's workers inherit


def begin() -> None:
    """Make the folder of this run, unless the process that started this one has made it."""
    if _FOLDER not in os.environ:
        os.environ[_FOLDER] = tempfile.mkdtemp(prefix="tests-once-")
        atexit.register(_remove, os.getpid(), os.environ[_FOLDER])


def _remove(pid: int, folder: str) -> None:
    if os.getpid() == pid:  # a fork inherits what is done at exit
        shutil.rmtree(folder, ignore_errors=True)


def once(name: str, make: Callable[[], Made]) -> Made:
    """Return what `make` returns, called by the first process that asks under this name."""
    begin()
    path = Path(os.environ[_FOLDER]) / hashlib.sha256(name.encode()).hexdigest()
    with open(path.with_suffix(".lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # who comes second waits for what the first one makes
        if not path.exists():
            partial = path.with_suffix(".new")
            partial.write_bytes(pickle.dumps(make()))
            os.replace(partial, path)
    return pickle.loads(path.read_bytes())


def folder(name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder that `make` makes, for the first process that asks under this name."""
    begin()
    path = Path(os.environ[_FOLDER]) / f"folder-{name}"
    once(f"folder {name}", lambda: make(path) and None)
    return path
