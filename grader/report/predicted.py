"""Predictions for kernels in words: times, bounds, the costliest lines, and memory requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from grader.base.text import clean, plural
from grader.spec.grade_record import ProblemResult
from grader.spec.kernel_report import Access, PredictedCall, Prediction

GPU_NAMES = ("A100", "H100", "H200")
BAND = (
    "docs/predict.md says how far predictions for an H100 were off; an A100 and an H200 were never"
    " measured. What PyTorch does beside the kernels is left out."
)
_APART = 1.5  # times the needed sectors, below which nothing is reported


def call_of(problem: ProblemResult) -> PredictedCall | None:
    """Return the prediction of a problem's compile check, None where there is none."""
    calls = (check.predicted for check in problem.checks)
    return next((call for call in calls if call is not None), None)


def time_cells(launches: Sequence[Prediction]) -> tuple[str, ...]:
    """Return the total time of these launches on each GPU, "-" where it is not known."""
    cells = []
    for name in GPU_NAMES:
        times = [
            time.ms * launch.launches
            for launch in launches
            for time in launch.times
            if time.gpu == name
        ]
        cells.append(f"{sum(times):.3g} ms" if len(times) == len(launches) else "-")
    return tuple(cells)


def facts_of(launch: Prediction) -> Iterator[str]:
    """Yield the bounds of a launch, its costliest lines, and requests with needless sectors."""
    if not launch.times:
        yield f"cannot tell: {clean(launch.unknown)}"
    for bound, group in groupby(launch.times, key=lambda time: time.bound):
        some = list(group)
        peak = f", {100 * some[0].peak:.0f} % of the peak of its dots" if some[0].peak else ""
        yield f"{', '.join(clean(t.gpu) for t in some)}: bound by {clean(bound)}{peak}"
    costs = [f"{place(cost.file, cost.line)} ({100 * cost.share:.0f} %)" for cost in launch.costs]
    if costs:
        yield f"costs most: {', '.join(costs)}"
    yield from map(request, filter(is_apart, launch.accesses))
    yield plural(launch.programs, "program")


def place(file: str, line: int) -> str:
    """Return the words for a line, with its file unless that is the answer's."""
    return f"{f'{clean(file)} ' if file else ''}line {line}"


def is_apart(access: Access) -> bool:
    """Whether requests take noticeably more sectors than if their bytes were contiguous."""
    return access.sectors >= _APART * access.least


def request(access: Access) -> str:
    """Return a sentence on the sectors per request of a line."""
    head = f"{place(access.file, access.line)}: {access.sectors:.3g} sectors per request"
    if not is_apart(access):
        return f"{head}, as its bytes need"
    lanes = f"neighbouring lanes are {plural(access.apart, 'byte')} apart"
    return f"{head}, {access.least:.3g} would do; {lanes}"


def lines(problems: Iterable[ProblemResult]) -> list[str]:
    """Return the sentences on a single problem, or one with the H100's times of several."""
    called = [(problem, call) for problem in problems if (call := call_of(problem)) is not None]
    if len(called) > 1:
        times = [(p, time_cells(call.launches)[1]) for p, call in called if call.launches]
        shown = [f"{clean(p.id)} {cell}" for p, cell in times if cell != "-"]
        head = "predicted for an H100, for other shapes than those timed, never counts"
        return [f"{head}: {', '.join(shown)}"] if shown else []
    return [line for _, call in called for line in _of_one(call)]


def _of_one(call: PredictedCall) -> Iterator[str]:
    if not call.launches:
        yield f"predicted: cannot tell: {clean(call.unknown, 300)}"
        return
    cells = time_cells(call.launches)
    times = [f"{name} {cell}" for name, cell in zip(GPU_NAMES, cells, strict=True) if cell != "-"]
    if times:
        yield f"predicted, never counts: {', '.join(times)}; {clean(call.shape)}"
    for launch in call.launches:
        first = next(facts_of(launch))
        yield f"{clean(launch.kernel, 60)}: {first}"
