"""Right answers that do not look like the model answer: each must have full marks.

An answer is the model answer with other lines here and there, or with the functions of a file of
this folder put behind it, which take the place of those of the same name.
"""

import dataclasses
import re
from pathlib import Path

from tests.harness import edited
from tests.unusual.edits import EDITS

_FOLDER = Path(__file__).parent
_BLOCK_POINTERS = "Triton 3.9 has no block pointers"
_NEEDS_BLOCK_POINTERS = ("p03-block_pointers",)


@dataclasses.dataclass(frozen=True)
class Unusual:
    """A right answer: `edits` of the model answer, then the text of `file`, if any, behind it."""

    problem: str
    name: str
    edits: tuple[tuple, ...] = ()
    file: str | None = None

    @property
    def id(self) -> str:
        """Name of the test's case."""
        return f"{self.problem}-{self.name.replace(' ', '_')}"

    def applied_to(self, source: str) -> str:
        """Return the source of this answer, made from the model answer's.

        Raises:
            ValueError: the model answer has changed, so that an edit no longer fits.
        """
        source = edited(source, *self.edits)
        if self.file:
            source += "\n\n" + (_FOLDER / self.file).read_text("utf-8")
        return _reworded(source)

    def lacks(self) -> str | None:
        """Say what the Triton at hand does not have for it, None where it has all."""
        import triton

        version = tuple(int(n) for n in re.findall(r"\d+", triton.__version__)[:2])
        if self.id in _NEEDS_BLOCK_POINTERS and version >= (3, 9):
            return _BLOCK_POINTERS
        return None


def _reworded(source: str) -> str:
    """Let the errors of the argument checks begin with the name and go on in other words."""
    return re.sub(r'"(\{name\}|\w+): got ', r'"\1 cannot be used: ', source)


ANSWERS: tuple[Unusual, ...] = tuple(
    sorted(
        [
            *(Unusual(problem, name, edits) for problem, name, edits in EDITS),
            *(
                Unusual(path.stem[:3], path.stem[4:].replace("_", " "), file=path.name)
                for path in sorted(_FOLDER.glob("p[0-9][0-9]_*.py"))
            ),
        ],
        key=lambda answer: answer.id,
    )
)
