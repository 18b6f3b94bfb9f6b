"""Mistakes as students make them, in model answers and in unusual ones: which names may be given.

`python -m tests.golden diff mistake` judges them in all checks and says what has a wrong name;
tests/test_wrong_answers.py judges a share of those that are cheap.
"""

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Iterable

from tests.harness import edited, whole_answer
from tests.unusual import ANSWERS


@dataclasses.dataclass(frozen=True)
class Wrong:
    """One mistake in a right answer.

    Attributes:
        answer: id of a problem, whose model answer is changed, or of an answer of tests/unusual.
        name: what is wrong, for the test's id.
        edits: (old text, new text) or (old text, new text, how often the old text occurs).
        causes: the names that are true of it, one of which must be given; empty where none is.
        checks: those that `make test` judges it in; empty where it does not.
    """

    answer: str
    name: str
    edits: tuple[tuple, ...]
    causes: tuple[str, ...]
    checks: tuple[str, ...]

    @property
    def problem(self) -> str:
        """Id of the problem."""
        return self.answer[:3]

    @property
    def id(self) -> str:
        """Name of the test's case."""
        return f"{self.answer}-{self.name.replace(' ', '_')}"

    def source(self) -> str:
        """Return the wrong answer.

        Raises:
            ValueError: the right answer has changed, so that an edit no longer fits.
        """
        source = whole_answer(self.problem)
        if self.answer != self.problem:
            right = next(answer for answer in ANSWERS if answer.id == self.answer)
            source = right.applied_to(source)
        return edited(source, *self.edits)


def of(answer: str, *mistakes: tuple) -> Iterable[Wrong]:
    """Return mistakes of one answer: (name, checks, causes, edit, ...), the first three as text."""
    for name, checks, causes, *edits in mistakes:
        yield Wrong(answer, name, tuple(edits), tuple(causes.split()), tuple(checks.split()))


# Those of each problem, then those of several.
_NAMES = [module.name for module in pkgutil.iter_modules(__path__)]
_NAMES.sort(key=lambda name: not re.fullmatch(r"p\d\d", name))
WRONG: tuple[Wrong, ...] = tuple(
    wrong for name in _NAMES for wrong in importlib.import_module(f"{__name__}.{name}").WRONG
)
