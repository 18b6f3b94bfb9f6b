"""Whether this machine can jail a submission: tests of the jail are skipped where it cannot.

A jail that can be made and has a hole is no reason to skip anything.
"""

from __future__ import annotations

import functools

import pytest

from grader.running import inspection


@functools.cache
def _fault() -> str | None:
    try:
        inspection.inspect(gpu=None)
    except inspection.JailFault as fault:
        return str(fault)
    return None


def require_jail() -> None:
    """Skip the test that calls it where no jail can be made; the reason says why."""
    fault = _fault()
    if fault is not None and "does not hold" in fault:
        pytest.fail(fault)
    if fault is not None:
        pytest.skip(f"no submission can be jailed here: {fault}")
