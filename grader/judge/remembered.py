"""Remembers from one run of a watch to the next which cases launch a kernel that others do not.

They are compiled in the same workers as the case that is always compiled, and at once, not when
one of them has run. Who finds another case here compiles it in vain, and it counts for nothing.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from grader.spec.cases import Case
from grader.spec.problem import ManifestError, Problem

_MOST = 8


def note(kernels: Path | None, places: Sequence[tuple[str, int]]) -> None:
    """Write down checks and numbers of such cases, beside the folder in which kernels are kept."""
    if kernels is not None:
        with contextlib.suppress(OSError):
            _file(kernels).write_text(json.dumps(places[:_MOST]), encoding="utf-8")


def cases(kernels: Path | None, problem: Problem, seed: str) -> list[Case]:
    """Return the cases that were written down, as they are with this seed; none without a file."""
    if kernels is None:
        return []
    try:
        places = json.loads(_file(kernels).read_text(encoding="utf-8"))
        found = [problem.cases(problem.check(id), seed).get(n) for id, n in places[:_MOST]]
    except (OSError, ValueError, TypeError, ManifestError):
        return []
    return [case for case in found if case is not None and case.invalid is None]


def _file(kernels: Path) -> Path:
    return kernels.with_name(kernels.name + ".json")
