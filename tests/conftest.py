"""As many test workers run as there are cores: each computes on one."""

import contextlib
import gc
import os
import sys
from pathlib import Path

import pytest
import torch

from grader.commands import cli
from grader.isolate import usage
from grader.timing import calibration as calibration_file
from tests import needs, once, shares

torch.set_num_threads(1)
once.begin()
gc.disable()  # until all is collected: what is read by then stays
# Hundreds of processes import the grader: each would compile it anew where this is set.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

collect_ignore = ["tenth"]  # files of a problem, which test_tenth_problem.py puts in their places


def pytest_collection_finish():
    """Have no garbage collector look at all modules and tests again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


# They take 5 to 40 seconds of a core each.
_LONGEST = (
    *("test_ten_steps_add_a_problem", "test_class_killed.py", "test_watch.py", "test_hostile.py"),
    *("test_measure.py", "test_package.py", "test_hint.py", "test_release.py", "test_answers.py"),
    *("test_class_stopped.py", "test_class_page.py", "test_official.py", "test_set.py"),
)


def pytest_collection_modifyitems(items):
    """Begin with the longest tests: at the end one worker would run them while the others wait."""
    last = len(_LONGEST)
    items.sort(key=lambda i: next((n for n in range(last) if _LONGEST[n] in i.nodeid), last))


@pytest.fixture(autouse=True, scope="module")
def no_zombies():
    """Bury what a module's tests have killed: its children are ours, who adopt orphans."""
    yield
    for pid in usage.descendants(os.getpid()):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


@pytest.fixture(autouse=True)
def no_calibration_of_this_machine(monkeypatch):
    """What somebody calibrated in this checkout changes no test."""
    monkeypatch.setattr(calibration_file, "FOLDER", Path("/no/such/folder"))


@pytest.fixture
def grader(monkeypatch, capfd):
    """Run a command of the grader in this process; return exit code, stdout and stderr."""
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)

    def run(*words):
        try:
            code = cli.main([*map(str, words)])
        except SystemExit as stop:
            code = stop.code
        return code, *capfd.readouterr()

    return run


def pytest_terminal_summary(terminalreporter):
    """Say which share of the corpora was judged, and what was skipped for want of a program."""
    terminalreporter.write_line(f"share of the corpora: SHARE={shares.SHARE}")
    skipped = terminalreporter.stats.get("skipped", ())
    reasons = (report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple))
    if line := needs.summary(reasons):
        terminalreporter.write_line(line)
