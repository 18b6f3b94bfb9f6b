"""Keeps what was answered, so that the quiz can be resumed."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from pathlib import Path

from grader.base import user_state

FILE = "quiz.json"


class AnswerState(enum.StrEnum):
    """What became of one question."""

    RIGHT = "right"
    PARTLY = "partly right"
    WRONG = "wrong"
    SKIPPED = "skipped"


def state_path(environment: Mapping[str, str]) -> Path | None:
    """Return where the outcomes belong, None if nowhere."""
    return user_state.state_path(environment, FILE)


class _Outcomes(user_state.State):
    """The file: what became of the questions, by their ids."""

    outcomes: dict[str, AnswerState]


class QuizProgress:
    """Outcomes by question id, kept in the file `path`; only in memory where there is none.

    `notices` holds what is to be told to the reader and is emptied by whoever tells it.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = user_state.StateFile(path, "what you answer", _Outcomes(outcomes={}))
        self.outcomes = self._file.state.outcomes

    @property
    def notices(self) -> list[str]:
        """What is to be told to the reader."""
        return self._file.notices

    @property
    def kept(self) -> bool:
        """Whether outcomes outlast this run."""
        return self._file.kept

    def add(self, question_id: str, outcome: AnswerState) -> None:
        """Note an outcome and write the file."""
        self.outcomes[question_id] = outcome
        self._file.write(_Outcomes(outcomes=self.outcomes))

    def forget(self, question_ids: Collection[str]) -> None:
        """Drop the outcomes of some questions and write the file."""
        self.outcomes = {id: o for id, o in self.outcomes.items() if id not in question_ids}
        self._file.write(_Outcomes(outcomes=self.outcomes))
