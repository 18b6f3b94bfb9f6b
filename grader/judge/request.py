"""What is to be graded, and how."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from grader.spec.grade_record import Environment
from grader.spec.problem import load_problem
from grader.timing.calibration import Calibration


@dataclasses.dataclass(frozen=True)
class Request:
    """What to grade and how; `jobs` problems are tested side by side on `cores`.

    `quick` leaves speed and memory out, `exit_first` ends a problem at its first failure. Without
    `policy` a file may contain anything. Only what is `jailed` can be `official`, for credit.
    `calibration` has speed targets of this machine. The cases of the checks in `first` run before
    the others. Kernels are compiled for `chips` too, for no points.
    """

    submission: Path
    shown_as: str
    problems: tuple[str, ...]
    environment: Environment
    seed: str
    jobs: int = 2
    cores: int = 1
    quick: bool = False
    exit_first: bool = False
    policy: bool = True
    jailed: bool = False
    official: bool = False
    calibration: Calibration | None = None
    first: tuple[str, ...] = ()
    chips: tuple[int, ...] = ()

    def of_child(self) -> dict[str, Any]:
        """Return what the request to each process of the judge has, see `ChildRequest`."""
        capability = self.environment.capability
        return {
            "device": self.environment.device,
            "device_uuid": self.environment.device_uuid,
            "capability": 10 * capability[0] + capability[1] if capability else None,
            "policy": self.policy,
            "jailed": self.jailed,
        }

    def num_cases(self) -> dict[str, int]:
        return {
            p.id: sum(len(p.cases(check, self.seed)) for check in p.checks)
            for p in map(load_problem, self.problems)
        }
