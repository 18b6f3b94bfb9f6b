"""Which kernels ran in the calls of a problem, and which of them nobody has compiled yet.

What is judged in Triton's interpreter has to be what a GPU runs: a kernel that runs in the one and
never on the other would be judged in its place, whether a file tells them apart or not.
"""

from __future__ import annotations

import dataclasses

from grader.cases import Case
from grader.manifest import Check
from grader.running.evidence import CallEvidence
from grader.running.protocol import Reply

MOST = 8  # cases that are compiled for the kernels that they alone launch


@dataclasses.dataclass(frozen=True)
class First:
    """The first case in which a kernel ran."""

    check: Check
    index: int
    case: Case


@dataclasses.dataclass
class Launched:
    """Lines of the kernels that ran, each with its first case: interpreted, and on a GPU."""

    interpreted: dict[int, First] = dataclasses.field(default_factory=dict)
    on_gpu: dict[int, First] = dataclasses.field(default_factory=dict)

    def note(
        self, evidence: CallEvidence, check: Check, index: int, case: Case, *, interpret: bool
    ) -> None:
        """Note the kernels of a call that came back."""
        known = self.interpreted if interpret else self.on_gpu
        for line in lines_of(evidence):
            known.setdefault(line, First(check, index, case))

    def waiting(self, lines: set[int]) -> list[tuple[int, First]]:
        """Return the kernels that were interpreted, but for those in `lines` or on a GPU."""
        left = self.interpreted.keys() - lines - self.on_gpu.keys()
        return [(line, self.interpreted[line]) for line in sorted(left)]


def lines_of(evidence: CallEvidence) -> set[int]:
    """Return the lines of the kernels that a call launched."""
    return set(evidence.result.kernels) if isinstance(evidence.result, Reply) else set()
