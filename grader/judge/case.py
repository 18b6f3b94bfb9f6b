"""A case of a check: what is asked of a submission there, and on which inputs."""

from __future__ import annotations

import dataclasses
import functools

from grader.spec.cases import Case
from grader.spec.inputs import Inputs, case_seed, make_inputs
from grader.spec.problem import Problem
from grader.spec.problem_tables import Check


@dataclasses.dataclass(frozen=True)
class CheckCase:
    """One case of one check of a problem, by its number in the check."""

    whole: Problem
    check: Check
    index: int
    case: Case

    @functools.cached_property
    def problem(self) -> Problem:
        """The problem as the check sees it: with the entry point that it calls."""
        return self.whole.of(self.check)

    @property
    def place(self) -> tuple[str, int]:
        """The check and the number, by which findings are kept."""
        return self.check.id, self.index

    @property
    def judged(self) -> tuple[str, ...]:
        return self.whole.judged(self.check)

    @property
    def names(self) -> tuple[str, ...]:
        """The outputs that a call returns.

        `out` is among them where gradients are judged: it shows mistakes of the forward pass.
        """
        if not self.problem.gradients:
            return self.judged
        return tuple(dict.fromkeys((*self.problem.returns[:1], *self.judged)))

    def on_machine(self) -> CheckCase:
        """Return the case with the sizes that the tile machine runs."""
        return dataclasses.replace(self, case=self.case.small)

    def inputs(self, seed: str, call: int = 0) -> Inputs:
        """Return the inputs of a call; they depend on the run's seed and the case alone."""
        place = (self.problem.id, *self.place, *([call] if call else []))
        return make_inputs(self.problem, self.case, case_seed(seed, *place))
