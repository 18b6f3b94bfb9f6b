"""Asks one question after the other, shows whether the answer is right, and saves the outcome."""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Sequence, Set
from pathlib import Path

from grader.base import user_state
from grader.base.text import clean, plural
from grader.commands.asking import INDENT, Terminal
from grader.commands.quiz.answers import Unreadable, is_right, letter
from grader.commands.quiz.questions import Choice, Number, Open, Question

STATE = "quiz.json"  # in the user's state folder, to resume the quiz from


class AnswerState(enum.StrEnum):
    """How the user did at one question."""

    RIGHT = "right"
    PARTLY = "partly right"
    WRONG = "wrong"
    SKIPPED = "skipped"


class _Outcomes(user_state.State):
    """The contents of the file: how the user did, by question id."""

    outcomes: dict[str, AnswerState]


class QuizProgress(user_state.StateFile[_Outcomes]):
    """Saves outcomes by question id in the file `path` (None: in memory alone)."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(path, "what you answer", _Outcomes(outcomes={}))
        self.outcomes = self.state.outcomes

    def add(self, question_id: str, outcome: AnswerState) -> None:
        """Note an outcome and write the file."""
        self.outcomes[question_id] = outcome
        self.write()

    def forget(self, question_ids: Set[str]) -> None:
        """Drop the outcomes of some questions and write the file."""
        for id in question_ids:
            self.outcomes.pop(id, None)
        self.write()


PROMPTS = {
    "number": "your number{unit}: ",
    "choice": "your letter: ",
    "open": "think, then press Enter for the model answer: ",
}
HAD_IT = "did you have it? y/n/partly: "
VERDICTS = {
    **dict.fromkeys(("y", "yes"), AnswerState.RIGHT),
    **dict.fromkeys(("n", "no"), AnswerState.WRONG),
    **dict.fromkeys(("p", "partly"), AnswerState.PARTLY),
    "?": AnswerState.SKIPPED,
}


@dataclasses.dataclass
class Quiz:
    """Asks those of `questions` without an answer or, if there are none, those not right yet."""

    questions: Sequence[Question]
    progress: QuizProgress
    terminal: Terminal
    resume: str = "make quiz"  # the command that goes on

    def run(self) -> bool:
        """Ask until no question is left, q, or the end of input; return False on Ctrl-C."""
        asked: Counter[AnswerState] = Counter()
        whole = True
        try:
            self._greet()
            self.terminal.notes(self.progress.notices)
            pending = self._pending()
            for number, question in enumerate(pending, start=1):
                outcome = self._ask(question, f"{number} of {len(pending)}")
                asked[outcome] += 1
                self.terminal.notes(self.progress.notices)
        except (EOFError, KeyboardInterrupt) as end:
            self.terminal.line()
            whole = isinstance(end, EOFError)
        self._close(asked)
        return whole

    def _pending(self) -> list[Question]:
        done = self.progress.outcomes
        new = [q for q in self.questions if q.id not in done]
        return new or [q for q in self.questions if done[q.id] is not AnswerState.RIGHT]

    def _greet(self) -> None:
        done = [q for q in self.questions if q.id in self.progress.outcomes]
        greeting = f"Quiz: {plural(len(self.questions), 'question')}"
        if done:
            greeting += f", {len(done)} of them done before"
        self.terminal.text(
            f"{greeting}. Nothing is scored. ? skips a question and shows its answer; q stops."
        )
        if done and len(done) == len(self.questions) and self._pending():
            self.terminal.line("Now the ones that you did not have right.")

    def _ask(self, question: Question, place: str) -> AnswerState:
        terminal = self.terminal
        terminal.line()
        head = f"{question.id}  {question.title}"
        terminal.line(f"{head}  ({question.topic}, {place})", "strong")
        terminal.line()
        terminal.text(question.question)
        if isinstance(question, Choice):
            terminal.line()
            for key, option in question.lettered.items():
                terminal.text(option, first=f"{INDENT}{key}) ", rest=INDENT + "   ")
        terminal.line()
        outcome = self._outcome(question)
        self.progress.add(question.id, outcome)
        terminal.line()
        terminal.text(question.explanation, first=INDENT)
        if question.see:
            terminal.line()
            terminal.line(f"{INDENT}see problems/{question.see}/README.md")
        return outcome

    def _outcome(self, question: Question) -> AnswerState:
        """Read until there is an answer, show whether it is right, and return the outcome."""
        unit = f" ({question.unit})" if isinstance(question, Number) and question.unit else ""
        while True:
            typed = self.terminal.ask(PROMPTS[question.kind].format(unit=unit))
            if typed == "?":
                self._show(question)
                return AnswerState.SKIPPED
            if isinstance(question, Open):
                self._show(question)
                return self._self_assessed()
            try:
                right = (
                    is_right(question, typed)
                    if isinstance(question, Number)
                    else letter(question, typed) == question.right
                )
            except Unreadable as error:
                self.terminal.text(f"{clean(error)} (? shows the answer, q stops)")
                continue
            if right:
                self.terminal.line(f"right: {question.shown}", "right")
                return AnswerState.RIGHT
            self.terminal.line(f"wrong: got {clean(typed, 60)}", "wrong")
            self._show(question)
            return AnswerState.WRONG

    def _self_assessed(self) -> AnswerState:
        while True:
            typed = self.terminal.ask(HAD_IT)
            if verdict := VERDICTS.get(typed.lower()):
                return verdict
            self.terminal.line(f"got {clean(typed, 30)!r}, expected y, n or partly")

    def _show(self, question: Question) -> None:
        self.terminal.text(question.shown, first="answer: ", rest="        ")

    def _close(self, asked: Counter[AnswerState]) -> None:
        self.terminal.line()
        now = ", ".join(f"{asked[outcome]} {outcome}" for outcome in AnswerState if asked[outcome])
        if now:
            self.terminal.line(f"This time: {now}.")
        outcomes = self.progress.outcomes
        done = [outcomes[question.id] for question in self.questions if question.id in outcomes]
        right, count = done.count(AnswerState.RIGHT), plural(len(self.questions), "question")
        self.terminal.line(f"In all: {len(done)} of {count} done, {right} right.")
        if right == len(self.questions):
            self.terminal.line(f"You have them all. To start over: {self.resume} RESTART=1")
        elif self.progress.kept:
            self.terminal.line(f"Go on: {self.resume}")
