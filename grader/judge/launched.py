"""Which kernels ran in the calls of a problem, and in which of its cases.

What is judged on the machine has to be what a GPU runs: a kernel that runs in the one and
never on the other would be judged in its place, whether a file tells them apart or not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from grader.isolate.compiled import Compiled
from grader.isolate.evidence import CallEvidence
from grader.spec.cases import Case
from grader.spec.problem_tables import Check
from grader.spec.protocol import Reply

MOST = 8  # kernels that are compiled or called in another case than the one that compiles


@dataclasses.dataclass(frozen=True)
class Ran:
    """A case in which a kernel ran."""

    check: Check
    index: int
    case: Case


@dataclasses.dataclass
class Launched:
    """Kernels by their lines: the cases that ran them on the machine; those run on a GPU."""

    on_machine: dict[int, list[Ran]] = dataclasses.field(default_factory=dict)
    on_gpu: set[int] = dataclasses.field(default_factory=set)

    def note(
        self, evidence: CallEvidence, check: Check, index: int, case: Case, *, machine: bool
    ) -> None:
        """Note the kernels of a call that came back; the second call of a case adds nothing."""
        ran = Ran(check, index, case)
        for line in lines_of(evidence):
            if not machine:
                self.on_gpu.add(line)
            elif ran not in (runs := self.on_machine.setdefault(line, []))[-1:]:
                runs.append(ran)

    def waiting(self, lines: set[int]) -> list[tuple[int, list[Ran]]]:
        """Return the kernels that ran on the machine, but for those in `lines` or on a GPU."""
        left = self.on_machine.keys() - lines - self.on_gpu
        return [(line, self.on_machine[line]) for line in sorted(left)]


def lines_of(evidence: CallEvidence) -> set[int]:
    """Return the lines of the kernels that a call launched."""
    return set(evidence.result.kernels) if isinstance(evidence.result, Reply) else set()


def lines_compiled(compiled: Iterable[Compiled]) -> set[int]:
    """Return the lines of the kernels that were compiled, for any chip."""
    return {kernel.kernel.line for chip in compiled for kernel in chip.kernels}
