"""The cases of a problem, from solutions/pNN/cases.toml, which is handed out with its answer.

[p06-1]
story = "..."                   the question, shown above the judge's report
edits = [["old", "new"]]        turn the answer into the case; each old text occurs once
fails = ["window"]              the checks that fail, first the one to show; none: it is slow
cause = "WINDOW-ONE-LARGER"     in grader/spec/causes, without the problem's prefix
others = ["WINDOW-SHIFTED"]     wrong causes to choose from
figures = "..."                 measurements of a slow kernel; its causes are sentences, not ids
explanation = "..."             shown after the answer
source = "https://github.com/OWNER/REPO/issues/1"   where real code had this bug
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import string
import tomllib
from typing import Annotated

from pydantic import Field, ValidationError

from grader.source.feeding import Spot, lines_feeding
from grader.spec.cases import ListOf, Table
from grader.spec.causes import Text, entries
from grader.spec.problem import ROOT, ManifestError, Problem, explained, load_problem

FILE = "cases.toml"
_Prose = Annotated[str, Field(pattern=r"\S")]


class Case(Table):
    """One finished kernel with one bug; see the head of this file."""

    id: Annotated[str, Field(pattern=r"^p\d\d-\d{1,2}$")]
    story: _Prose
    edits: Annotated[ListOf[ListOf[str]], Field(min_length=1)]
    fails: ListOf[str] = ()
    cause: _Prose
    others: Annotated[ListOf[_Prose], Field(min_length=2, max_length=5)]
    figures: str = ""
    explanation: _Prose
    source: Annotated[
        str, Field(pattern=r"^https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+$")
    ]

    @property
    def problem(self) -> Problem:
        """The problem whose answer has the bug."""
        return load_problem(self.id[:3])

    @property
    def options(self) -> dict[str, str]:
        """The causes to choose from, by letter, in an order that does not hint at the answer."""
        causes = sorted(
            [self.cause, *self.others],
            key=lambda cause: hashlib.sha256(f"{self.id} {cause}".encode()).digest(),
        )
        return dict(zip(string.ascii_lowercase, causes, strict=False))

    def answer(self) -> str:
        """Return the text of the model answer, which the edits turn into the case."""
        return (ROOT / "solutions" / self.problem.id / self.problem.file).read_text("utf-8")

    def text(self) -> str:
        """Return the text of the kernel with the bug.

        Raises:
            ManifestError: an edit does not fit the answer.
        """
        text = self.answer()
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ManifestError(
                    f"{self.id}: got {text.count(old)} times {old!r} in the answer, expected it"
                    f" once: copy solutions/{self.problem.id} from the release again"
                )
            text = text.replace(old, new)
        return text

    def mend(self) -> list[str]:
        """Return the lines to remove (-) and to add (+) for the answer, dedented."""
        lines = [line for line in self._compared() if line[0] != " "]
        indent = min(len(line) - len(line[1:].lstrip()) for line in lines)
        return [line[0] + line[indent:] for line in lines]

    def wrong_lines(self) -> set[int]:
        """Return the lines that the bug changed."""
        lines = (line for line in self._compared() if line[0] != "+")
        return {number for number, line in enumerate(lines, start=1) if line[0] == "-"}

    def feeding_lines(self) -> set[int]:
        """Return the lines that compute the operands of a wrong line."""
        tree, wrong = ast.parse(self.text()), self.wrong_lines()
        return set().union(*(lines_feeding(tree, Spot(n), lambda _: 1) for n in wrong)) - wrong

    def _compared(self) -> list[str]:
        before, after = self.text().splitlines(), self.answer().splitlines()
        return [line for line in difflib.ndiff(before, after) if line[0] != "?"]


def cause_text(name: str) -> Text | None:
    """Return the catalogue's text on a cause; None for a slow kernel's, which is a sentence."""
    entry = entries().get(name)
    return entry.text if entry else None


def cases_of(problem_id: str) -> list[Case]:
    """Return the cases of a problem; none while its answer is not handed out.

    Raises:
        ManifestError: the file cannot be read or used.
    """
    path = ROOT / "solutions" / problem_id / FILE
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        return [Case.model_validate({"id": id, **table}) for id, table in tables.items()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        why = explained(error) if isinstance(error, ValidationError) else error
        raise ManifestError(f"{path}: {why}; copy the file from the release again") from None
