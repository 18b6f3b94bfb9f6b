"""What a test needs that `make` does not install: the test is skipped, and one line says so."""

import functools
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from typing import NoReturn

import pytest

from grader.isolate import inspection
from tests import browser

BROWSER = "a browser (apt-get install chromium)"
GPU = "a CUDA GPU"
KUBERNETES = "Kubernetes' client (pip install kubernetes)"
SLURM = "Slurm (apt-get install slurm-wlm munge)"
_SKIPPED = re.compile(r"(?:Skipped: )?needs (.+)", re.DOTALL)


def skip(need: str) -> NoReturn:
    """Skip the test that calls it, since `need` is missing on this machine."""
    pytest.skip(f"needs {need}")


def a_jail() -> None:
    """Skip the test that calls it where no jail can be made.

    A jail that can be made and has a hole fails the test instead.
    """
    fault = _jail_fault()
    if fault is not None and "does not hold" in fault:
        pytest.fail(fault)
    if fault is not None and shutil.which("bwrap") is None:
        skip("bubblewrap (apt-get install bubblewrap)")
    if fault is not None:
        skip(f"a machine on which bubblewrap works: {fault}")


def a_browser() -> str:
    """Return the path of a browser; skip the test that calls it where there is none."""
    return browser.installed() or skip(BROWSER)


@functools.cache
def _jail_fault() -> str | None:
    try:
        inspection.inspect(gpu=None)
    except inspection.JailFault as fault:
        return str(fault)
    return None


def summary(reasons: Iterable[str]) -> str | None:
    """Return one line about the tests that were skipped for a need, None where there were none."""
    found = Counter(match[1] for reason in reasons if (match := _SKIPPED.match(reason)))
    if not found:
        return None
    parts = [f"{count} need{'s' * (count == 1)} {need}" for need, count in found.most_common()]
    return f"not tested on this machine: {'; '.join(parts)}"
