"""The roofline of a GPU, in the report and in a race: no kernel that does this work is faster.

Operations and bytes are those of grader/calibration/implied.py, rates those of the highest clocks
that the driver reports.
"""

from __future__ import annotations

import dataclasses

from grader.calibration.implied import DOTS, answer_counts, bandwidth, dot_rate
from grader.cases import Case
from grader.manifest import Problem
from grader.model import Environment

# Operations of 16-bit dots per multiprocessor and clock: NVIDIA's Turing architecture paper. Triton
# does not use these tensor cores, but the library's kernels do.
_TURING = {(7, 5): 1024}


def rates(environment: Environment) -> tuple[float, float] | None:
    """Return 16-bit dot operations and bytes per second; None where they are not known."""
    chip, capability = environment.chip, environment.capability
    if chip is None or capability is None or capability not in DOTS:
        return None
    dots = dot_rate(environment.device_name, capability, chip)
    if capability in _TURING:
        dots = _TURING[capability] * chip.multiprocessors * chip.clock_mhz * 1e6
    return dots, bandwidth(chip)


@dataclasses.dataclass(frozen=True)
class Roof:
    """Seconds that dots and bytes take at full rates; `rate` and `bandwidth` are per second."""

    operations: int
    rate: float
    bytes: int
    bandwidth: float

    @property
    def ms(self) -> float:
        """The larger of the two times."""
        return 1000.0 * max(self.operations / self.rate, self.bytes / self.bandwidth)


def roof(problem: Problem, case: Case, environment: Environment) -> Roof | None:
    """Return the roof; None where the rates of this GPU are not known."""
    known = rates(environment)
    if known is None:
        return None
    counts = answer_counts(problem, case)
    return Roof(counts.operations, known[0], counts.bytes, known[1])
