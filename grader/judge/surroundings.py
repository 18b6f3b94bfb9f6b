"""Probes what a grading runs on: the machine, its speed targets, room for workers, and the jail."""

from __future__ import annotations

from pathlib import Path

from grader.isolate import capacity, cgroup, inspection
from grader.spec.environment import EnvironmentFault, probe
from grader.spec.grade_record import Environment
from grader.spec.problem import problem_ids
from grader.timing.calibration import Calibration, changed_versions
from grader.timing.calibration import find as find_calibration

# What one problem takes, without and with a jail: right answers passed in containers of this size.
_LEAST_BYTES = {False: 600 * 2**20, True: 960 * 2**20}


def surroundings(
    device: str, calibration_file: Path | None = None, *, jailed: bool
) -> tuple[Environment, Calibration | None]:
    """Look at this machine, find its speed targets, and see that no submission can break out.

    `device` is auto, cpu or cuda; without a file the targets are those of this GPU, if any.

    Raises:
        EnvironmentFault: one could, or memory is short; nothing is graded for credit then.
    """
    environment = probe(device)
    expect_memory(jailed=jailed)
    calibration = find_calibration(calibration_file, environment)
    if calibration:
        notes = (*environment.notes, *changed_versions(calibration, environment))
        environment = environment.model_copy(update={"notes": notes})
    try:
        if jailed:
            inspection.inspect(gpu=environment.device_uuid)
            environment = environment.model_copy(
                update={"notes": (*environment.notes, *memory_of_a_jail())}
            )
    except inspection.JailFault as fault:
        raise EnvironmentFault(
            f"no submission can be jailed on this machine: {fault}; without --official or --jail it"
            " can be graded, not for credit"
        ) from None
    return environment, calibration


def memory_of_a_jail() -> tuple[str, ...]:
    """Return a note if no control group limits the memory of a jail."""
    reason = cgroup.limits()
    if reason is None:
        return ()
    return (f"memory of a jail is watched, and not limited by a control group: {reason}",)


def expect_memory(*, jailed: bool) -> None:
    """Refuse a machine on which the kernel would end right answers for want of memory.

    Raises:
        EnvironmentFault: less is free than one problem takes.
    """
    free, least = capacity.free_bytes(), _LEAST_BYTES[jailed]
    if free < least:
        what = " for workers in a jail" if jailed else ""
        raise EnvironmentFault(
            f"got {free >> 20} MiB of free memory, expected {least >> 20} MiB or more{what}"
        )


def jobs(environment: Environment) -> int:
    """Return how many problems cores and memory carry side by side.

    On a GPU, most time goes to compilation. Host memory is that of a pytest and its workers, GPU
    memory that of a CUDA context and small tensors.
    """
    cores, free = int(capacity.cores()), capacity.free_bytes()
    if environment.device == "cpu":
        return max(1, min(cores, 4, free // 2**30))
    device_bytes = environment.device_bytes or 2**31
    problems = len(problem_ids())
    return max(1, min(cores, problems, free // (3 * 2**30), device_bytes // (2 * 2**30)))
