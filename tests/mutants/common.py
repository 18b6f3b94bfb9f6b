"""A wrong kernel as data: a model answer with one mistake put in by text substitution."""

import dataclasses
import difflib

from grader.source.steps import step_regions
from tests.harness import edited
from tests.mutants.seen import SEEN

# What a headline says of a mistake that is caught otherwise than by its numbers.
READ_OUTSIDE = "read outside a tensor"
WRITE_OUTSIDE = "write outside a tensor"
OVERWRITTEN = "was overwritten"
NOT_DENSE = "expected a dense tensor"
NOT_WRITTEN = "was not written everywhere"
LEFT_OVER = "was made from memory that nobody wrote"
NAN = "was computed as NaN"
NO_KERNEL = "no Triton kernel was launched"
SECOND_CALL = "is wrong in a second call with other values of the same shape"
NOT_RETURNED = "got no such value"
WRONG_DTYPE = "got dtype"


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One wrong kernel and what must become of it.

    Attributes:
        problem: id of the problem whose model answer is changed.
        name: what is wrong, for the test's id.
        checks: the checks of problem.toml that must catch it, each of them.
        edits: (old text, new text) or (old text, new text, how often the old text occurs).
        expected_id: the known mistake that the judge must name, without the problem's prefix; None
            where no known mistake is exactly this one: then only what is `seen` may be named.
        step: the step that the judge must name; where None it may name any that the edits touch.
        caught_as: text of the headline for what is caught otherwise than by its numbers.
        keeps: the least share of the correctness points that is left; None where the mistake is at
            the core and may cost everything.
        earns_nothing: no correctness point is left.
    """

    problem: str
    name: str
    checks: tuple[str, ...]
    edits: tuple[tuple, ...]
    expected_id: str | None = None
    step: int | None = None
    caught_as: str | None = None
    keeps: float | None = None
    earns_nothing: bool = False

    @property
    def id(self) -> str:
        """Name of the test's case."""
        return f"{self.problem}-{self.name.replace(' ', '_')}"

    def applied_to(self, source: str) -> str:
        """Return the changed source.

        Raises:
            ValueError: the model answer has changed, so that an edit no longer fits.
        """
        return edited(source, *self.edits)

    @property
    def keeps_policy(self) -> bool:
        """Whether the source policy is in force for it; it refuses answers without a kernel."""
        return self.caught_as != NO_KERNEL

    @property
    def names(self) -> set[str]:
        """The causes of which the judge must name one, and no other."""
        return {name for name in (self.expected_id, SEEN.get(self.id)) if name is not None}

    def steps_touched(self, source: str) -> set[int]:
        """The marked steps in which the edits lie."""
        changed = self.applied_to(source)
        before, after = source.splitlines(), changed.splitlines()
        blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        # A line that is gone stood where the next one is now.
        lines = {n for tag, *_, i, j in blocks if tag != "equal" for n in range(i, max(j, i + 1))}
        regions = step_regions(changed).items()
        return {step for step, (a, b) in regions for n in lines if a <= n + 1 <= b}
