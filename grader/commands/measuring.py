"""Times files in a separate process of the judge, and reports its progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grader.isolate.processes import Children, Ending
from grader.spec.findings import MEASURE_S, Event, MeasureRequest, Phase, SourceFile, read_event
from grader.spec.grade_record import Environment


def measured(
    children: Children,
    module: str,
    files: Sequence[SourceFile],
    environment: Environment,
    on_phase: Callable[[Phase], None],
) -> tuple[list[Event], str]:
    """Return the events of `module` about `files`, and the reason to give for files without any."""
    ending, found = Ending(), []
    request = MeasureRequest(
        sources=tuple(files),
        device=environment.device,
        device_uuid=environment.device_uuid,
    )
    for line in children.events(module, [], request.model_dump_json(), MEASURE_S, ending):
        event = read_event(line, request.token)
        if isinstance(event, Phase):
            on_phase(event)
        else:
            found.append(event)
    return found, f"the measuring process ended early: {ending.last_line}"
