"""The predictions for a problem's kernels, and how the lanes of a warp access memory."""

from __future__ import annotations

from types import SimpleNamespace

from grader.base.text import clean
from grader.report.html.grids import request_grid
from grader.report.html.measured import Table
from grader.report.predicted import (
    BAND,
    GPU_NAMES,
    call_of,
    facts_of,
    is_apart,
    time_cells,
)
from grader.spec.grade_record import ProblemResult
from grader.spec.kernel_report import Access, PredictedCall

_MOST_CARDS = 2
_NEVER = "A model predicts these times from the machine code. No points depend on them. "


def predicted(problem: ProblemResult) -> SimpleNamespace | None:
    """Return a table of times, facts per kernel and maps of requests; None without a prediction.

    Where no launch is predicted, the table has no rows, and `unknown` says why.
    """
    call = call_of(problem)
    if call is None:
        return None
    rows = [(clean(launch.kernel, 60), *time_cells([launch])) for launch in call.launches]
    if len(rows) > 1:
        rows.append(("all kernels", *time_cells(call.launches)))
    facts = [(clean(launch.kernel, 60), list(facts_of(launch))) for launch in call.launches]
    return SimpleNamespace(
        table=Table("Predicted", call.shape, ("kernel", *GPU_NAMES), rows, _NEVER + BAND),
        facts=facts,
        unknown="" if rows else call.unknown,
        cards=[request_grid(access) for access in _shown(call)],
    )


def _shown(call: PredictedCall) -> list[Access]:
    """Return the accesses with most needless sectors, or else the largest; they come sorted."""
    every = [access for launch in call.launches for access in launch.accesses]
    return [access for access in every if is_apart(access)][:_MOST_CARDS] or every[:1]
