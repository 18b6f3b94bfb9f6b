"""An option that is as large as 32 bits hold, to which a kernel adds a position."""

from __future__ import annotations

import dataclasses

from grader.causes.rules.sighting import Sighting
from grader.spec.cases import Case

_LARGEST = 2**31 - 1


def limited(case: Case) -> Case | None:
    """Return the case with smaller options that mean the same; None where all are small.

    Of a window, or of sinks, no query sees more than the sequence holds.
    """
    enough = 2 * max(case.seqlen_q, case.seqlen_k)
    options = tuple(
        (name, enough if isinstance(n, int) and n > _LARGEST - enough else n)
        for name, n in case.options
    )
    return dataclasses.replace(case, options=options) if options != case.options else None


def overflow(case: Case, right: Case) -> Sighting:
    """Say that a case is wrong, and right with smaller options that mean the same."""
    large = {name: n for name, n in case.options if n != right.kwargs[name]}
    shown = " and ".join(f"{name} {n}" for name, n in large.items())
    smaller = ", ".join(f"{name}={right.kwargs[name]}" for name in large)
    return Sighting("OPTION-OVERFLOWS", outright=True, shown=shown, smaller=smaller)
