"""Defines the records of questions, and reads them from docs/quiz/level0.toml and hard.toml.

Each question has an `id`, a `title`, a `topic`, a `kind` (number, choice or open), the `question`
and an `explanation`, its worked answer. `see` names the problem whose handout treats the subject.
`python` recomputes figures: it sets `answer` for a number and asserts the other claims; `math` and
`torch` are imported for it. Only a test runs it.

Paragraphs are rewrapped, but for those indented by four blanks.
"""

from __future__ import annotations

import string
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from grader.spec.cases import ListOf, Table
from grader.spec.problem import ROOT, ManifestError, explained

FOLDER = ROOT / "docs" / "quiz"
LEVELS = ("level0", "hard")

Topic = Literal[
    "vectors",
    "softmax",
    "attention",
    "heads",
    "masks",
    "training",
    "gradients",
    "embeddings",
    "architecture",
    "generation",
    "systems",
]
TOPICS: tuple[str, ...] = get_args(Topic)
Prose = Annotated[str, Field(pattern=r"\S")]


class _Question(Table):
    id: Annotated[str, Field(pattern=r"^(Q\d+|dim|H\d+\.\d+)$")]
    title: Prose
    topic: Topic
    see: Annotated[str, Field(pattern=r"^p\d\d$")] | None = None
    question: Prose
    explanation: Prose
    python: str = ""

    @property
    def heading(self) -> str:
        """The heading of the question on a page."""
        return f"{self.id} {self.title}"


class Number(_Question):
    """Asks for a number in `unit`, right within a `relative` or an `absolute` tolerance."""

    kind: Literal["number"]
    answer: Annotated[float, Field(allow_inf_nan=False)]
    unit: str = ""
    relative: Annotated[float, Field(gt=0, lt=0.1)] | None = None
    absolute: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    python: Prose

    @model_validator(mode="after")
    def _one_tolerance(self) -> Number:
        if (self.relative is None) == (self.absolute is None):
            got = "neither" if self.relative is None else "both"
            raise ValueError(f"relative, absolute: got {got}, expected one of them")
        return self

    @property
    def tolerance(self) -> float:
        """How far a right answer may be from `answer`."""
        return self.absolute or self.relative * abs(self.answer)

    @property
    def shown(self) -> str:
        """The answer as people write it, with its unit."""
        digits = f"{self.answer:,.10g}"
        return f"{digits} {self.unit}".rstrip()


class Choice(_Question):
    """Offers `options`; `right` is the letter of the only right one."""

    kind: Literal["choice"]
    options: Annotated[ListOf[Prose], Field(min_length=2, max_length=6)]
    right: str

    @model_validator(mode="after")
    def _right_is_an_option(self) -> Choice:
        if self.right not in self.lettered:
            letters = ", ".join(self.lettered)
            raise ValueError(f"right: got {self.right!r}, expected one of {letters}")
        if len(set(self.options)) < len(self.options):
            raise ValueError("options: got one of them twice")
        return self

    @property
    def lettered(self) -> dict[str, str]:
        """Each option by its letter."""
        return dict(zip(string.ascii_lowercase, self.options, strict=False))

    @property
    def shown(self) -> str:
        """The right option with its letter."""
        return f"{self.right}) {self.lettered[self.right]}"


class Open(_Question):
    """Asks for sentences; the reader compares them with the model `answer`."""

    kind: Literal["open"]
    answer: Prose

    @property
    def shown(self) -> str:
        """The model answer."""
        return self.answer


Question = Number | Choice | Open
_KINDS: dict[Any, type[Question]] = {"number": Number, "choice": Choice, "open": Open}


class Level(Table):
    """One file of questions."""

    title: Prose
    intro: Prose
    questions: Annotated[ListOf[Number | Choice | Open], Field(min_length=1)]


def load_level(name: str) -> Level:
    """Read docs/quiz/<name>.toml.

    Raises:
        ManifestError: the file is missing, or a key is missing, unknown or out of range.
    """
    path = FOLDER / f"{name}.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path}: not valid TOML: {error}") from None
    tables = data.get("questions")
    if not isinstance(tables, list):
        raise ManifestError(f"{path}: questions: got {tables!r}, expected tables [[questions]]")
    questions = [_read_question(path, n, table) for n, table in enumerate(tables, start=1)]
    ids = [question.id for question in questions]
    for question_id in ids:
        if ids.count(question_id) > 1:
            raise ManifestError(f"{path}: {question_id}: got two questions of this id")
    try:
        return Level.model_validate(data | {"questions": questions})
    except ValidationError as error:
        raise ManifestError(f"{path}: {explained(error)}") from None


def _read_question(path: Path, number: int, table: Any) -> Question:
    if not isinstance(table, dict):
        raise ManifestError(f"{path}: questions: got {table!r}, expected a table [[questions]]")
    where = table.get("id", f"question {number}")
    kind = table.get("kind", "nothing")
    if not isinstance(kind, str) or kind not in _KINDS:
        known = ", ".join(_KINDS)
        raise ManifestError(f"{path}: {where}: kind: got {kind!r}, expected one of {known}")
    try:
        return _KINDS[kind].model_validate(table)
    except ValidationError as error:
        raise ManifestError(f"{path}: {where}: {explained(error)}") from None
