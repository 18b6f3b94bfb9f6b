"""The cases of a problem, from solutions/pNN/cases.toml: handed out with its answer, never before.

    [p06-1]
    story = "..."           what is asked, beside what the judge reports
    edits = [["old", "new"]]    what makes the case of the answer; each old text occurs once
    fails = ["window"]      the checks that fail, the one to show first; none: only speed is lost
    cause = "WINDOW-ONE-LARGER"     in grader/spec/causes, without the problem's prefix
    others = ["..."]        wrong causes to choose from
    figures = "..."         of a case of speed: what was measured
    explanation = "..."     why, after the answer
    source = "https://github.com/OWNER/REPO/issues/1"   the thread in which real code had this bug

The causes of a case of speed are sentences, for the catalogue names none of them.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import string
import tomllib
from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from grader.source.feeding import lines_feeding
from grader.spec.cases import ListOf, Table
from grader.spec.causes import Text, entries, entry_of
from grader.spec.problem import ROOT, ManifestError, Problem, explained, load_problem, problem_ids

FILE = "cases.toml"
Prose = Annotated[str, Field(pattern=r"\S")]


class CaseError(ManifestError):
    """A case that cannot be opened; the message says what was got, expected, and what to do."""


class Case(Table):
    """One finished kernel with one bug; see the head of this file."""

    id: Annotated[str, Field(pattern=r"^p\d\d-\d{1,2}$")]
    story: Prose
    edits: Annotated[ListOf[ListOf[str]], Field(min_length=1)]
    fails: ListOf[str] = ()
    cause: Prose
    others: Annotated[ListOf[Prose], Field(min_length=2, max_length=5)]
    figures: str = ""
    explanation: Prose
    source: Annotated[
        str, Field(pattern=r"^https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+$")
    ]

    @model_validator(mode="after")
    def _speed_has_figures(self) -> Case:
        if bool(self.figures) == bool(self.fails):
            raise ValueError("fails, figures: got both or neither, expected one of them")
        return self

    @property
    def problem(self) -> Problem:
        """The problem whose answer has the bug."""
        return load_problem(self.id[:3])

    @property
    def lettered(self) -> dict[str, str]:
        """The causes to choose from, by letter, in an order that tells nothing."""
        found = sorted([self.cause, *self.others], key=lambda c: _digest(f"{self.id} {c}"))
        return dict(zip(string.ascii_lowercase, found, strict=False))

    @property
    def thread(self) -> str:
        """The source as people write it: OWNER/REPO#1."""
        owner, repository, _, number = self.source.removeprefix("https://github.com/").split("/")
        return f"{owner}/{repository}#{number}"

    def text(self) -> str:
        """Return the file of the case.

        Raises:
            CaseError: the answer is not there, or an edit does not fit it.
        """
        text = self.answer()
        for old, new in self.edits:
            if text.count(old) != 1:
                raise CaseError(
                    f"{self.id}: got {text.count(old)} times {old!r} in the answer, expected it"
                    f" once: copy solutions/{self.id[:3]} from the release again"
                )
            text = text.replace(old, new)
        return text

    def answer(self) -> str:
        """Return the answer that the case is made of."""
        path = ROOT / "solutions" / self.id[:3] / self.problem.file
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CaseError(f"{path}: cannot be read: {error}") from None

    def mend(self) -> list[str]:
        """Return the difference to the answer, wrong lines first."""
        before, after = self.text().splitlines(), self.answer().splitlines()
        lines = [line for line in difflib.ndiff(before, after) if line[0] in "-+"]
        indent = min(len(line) - len(line[1:].lstrip()) for line in lines)
        return [line[0] + line[indent:] for line in lines]

    def wrong_lines(self) -> set[int]:
        """Return the lines that the bug changed; around one that it took away, its neighbours."""
        before, after = self.answer().splitlines(), self.text().splitlines()
        blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        return {
            n + 1
            for tag, *_, first, end in blocks
            if tag != "equal"
            for n in (range(first, end) if end > first else (first - 1, first))
        }

    def feeding_lines(self) -> set[int]:
        """Return the lines that make what a wrong line works with."""
        tree, wrong = ast.parse(self.text()), self.wrong_lines()
        found = (lines_feeding(tree, line, lambda number: True) for line in sorted(wrong))
        return set().union(*found) - wrong


def cause_text(name: str) -> Text | None:
    """Return what the catalogue says of a cause; None for a cause of speed, which is a sentence."""
    return entry_of(name).text if name in entries() else None


def cases_of(problem_id: str) -> list[Case]:
    """Return the cases of a problem, none where its answer is not handed out.

    Raises:
        CaseError: they cannot be read.
    """
    path = ROOT / "solutions" / problem_id / FILE
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        return [Case.model_validate({"id": id, **table}) for id, table in tables.items()]
    except FileNotFoundError:
        return []
    except ValidationError as error:
        raise CaseError(f"{path}: {explained(error)}") from None
    except (OSError, ValueError, TypeError) as error:
        raise CaseError(f"{path}: cannot be read: {error}") from None


def all_cases() -> list[Case]:
    """Return the cases of all problems, in order."""
    return [case for id in problem_ids() for case in cases_of(id)]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
