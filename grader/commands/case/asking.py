"""One case in the terminal: what is known, the two questions, and the explanation."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from grader.base.text import clean, plural, styled, wrap
from grader.commands.case.cases import Case, cause_text
from grader.commands.case.opened import SEED, folder_of
from grader.commands.quiz.asking import INDENT, AnswerState, Terminal
from grader.commands.trace.wanted import why_not
from grader.report.kernels import kernel_table, kernels_of
from grader.report.message import cause_of, message_lines
from grader.spec.grade_record import ProblemResult, Verdict
from grader.spec.trace_record import TRACED

LINE, LETTER = "the line of the bug: ", "your letter: "


@dataclasses.dataclass(frozen=True)
class Asked:
    """A case that is asked about; `reads` raises EOFError at the end of input and for q."""

    case: Case
    result: ProblemResult
    terminal: Terminal

    def show(self, solved: str) -> None:
        """Write what is known of the case, and how to find out more."""
        case, terminal = self.case, self.terminal
        terminal.line(f"Case {case.id}: {case.problem.title}  ({solved})", "strong")
        terminal.line()
        terminal.text(case.story)
        terminal.line()
        terminal.text(f"A finished kernel with one bug: {self._file}")
        terminal.line()
        for row in self._found():
            terminal.line(row)
        terminal.line()
        terminal.text("Look for it in another terminal. The report names no bug there, either:")
        for command in self._commands():
            terminal.line(INDENT + command)
        terminal.text("? shows the answer. q stops: make case comes back to this one.")
        terminal.line()

    @property
    def _file(self) -> str:
        return str(folder_of(self.case) / self.case.id[:3] / self.case.problem.file)

    def _found(self) -> Iterator[str]:
        """Return what the judge has seen: of one check its message, of the others their names."""
        width, case, result = self.terminal.width, self.case, self.result
        failed = [c.id for c in result.checks if c.verdict not in (Verdict.PASS, Verdict.SKIPPED)]
        if not case.fails:
            yield from styled([kernel_table(kernels_of(result))], width, color=False).splitlines()
            yield ""
            yield from wrap(" ".join(case.figures.split()), width)
            return
        check = next(check for check in result.checks if check.id == case.fails[0])
        message = check.message and check.message.model_copy(update={"tiles": None})
        shown = cause_of(result, [check.model_copy(update={"message": message})])
        yield from message_lines(result.id, shown, width)
        others = plural(len(result.checks) - len(failed), "check")
        yield from wrap(", ".join(failed), width, "fails:    ")
        yield from wrap(f"{others} of {len(result.checks)}", width, "no fault: ")

    def _commands(self) -> Iterator[str]:
        id, folder = self.case.id[:3], folder_of(self.case)
        of_case = f"SUBMISSION={folder} P={id} SEED={SEED}"
        fails = self.case.fails
        if fails and id in TRACED and why_not(self.case.problem.check(fails[0])) is None:
            yield f"make trace {of_case} CASE={fails[0]}"
        yield f"make grade {of_case} MAP=1 REPORT=no"

    def ask(self) -> AnswerState:
        """Ask for line and cause, and explain; return what became of it.

        Raises:
            EOFError: there is no more input, or q was typed.
        """
        outcome = AnswerState.SKIPPED
        if self._line():
            outcome = self._cause()
        if outcome is AnswerState.SKIPPED:
            lines = ", ".join(map(str, sorted(self.case.wrong_lines())))
            self.terminal.line(f"answer: line {lines}")
            self.terminal.text(self._option(self.case.cause), "answer: ", "        ")
        self._explain()
        return outcome

    def _line(self) -> bool:
        """Read lines until one is right; False where the answer was asked for."""
        source, terminal = self.case.text().splitlines(), self.terminal
        wrong, feeding = self.case.wrong_lines(), self.case.feeding_lines()
        while (typed := self._read(LINE)) != "?":
            match = re.fullmatch(r"(?:line )?(\d{1,5})", typed.lower())
            number = int(match[1]) if match else 0
            if not 1 <= number <= len(source):
                terminal.text(f"got {clean(typed, 40)!r}, expected a line from 1 to {len(source)}")
                continue
            code = f"line {number}: {clean(source[number - 1].strip())}"
            if number in wrong | feeding:
                feeds = f", which feeds line {min(wrong)}" if number in feeding else ""
                terminal.text(f"right: {code}{feeds}", "", INDENT)
                return True
            terminal.text(f"not there: {code}", "", INDENT)
        return False

    def _cause(self) -> AnswerState:
        options, terminal = self.case.lettered, self.terminal
        terminal.line()
        for letter, name in options.items():
            terminal.text(self._title(name), f"{INDENT}{letter}) ", INDENT + "   ")
        terminal.line()
        while (typed := self._read(LETTER)) != "?":
            letter = typed.strip("().").lower()
            if letter not in options:
                expected = ", ".join(options)
                terminal.text(f"got {clean(typed, 40)!r}, expected one of {expected}")
                continue
            if options[letter] == self.case.cause:
                terminal.text(self._option(self.case.cause), "right: ", "       ")
                return AnswerState.RIGHT
            terminal.line(f"wrong: got {letter}", "wrong")
            terminal.text(self._option(self.case.cause), "answer: ", "        ")
            return AnswerState.WRONG
        return AnswerState.SKIPPED

    def _option(self, name: str) -> str:
        letters = {cause: letter for letter, cause in self.case.lettered.items()}
        return f"{letters[name]}) {self._title(name)}"

    def _title(self, name: str) -> str:
        text = cause_text(name)
        return text.title if text else name

    def _explain(self) -> None:
        case, terminal, text = self.case, self.terminal, cause_text(self.case.cause)
        terminal.line()
        if text is not None:
            terminal.text(text.note, INDENT)
            terminal.line()
        for line in case.mend():
            color = {"-": "wrong", "+": "right"}.get(line[0])
            for row in wrap(line[1:], terminal.width, f"{INDENT}{line[0]} ", INDENT + " " * 6):
                terminal.line(row, color)
        terminal.line()
        terminal.text(case.explanation, INDENT)
        terminal.line()
        terminal.line(f"{INDENT}seen in {case.thread}:")
        terminal.line(f"{INDENT}{case.source}")
        if text is not None:
            terminal.line(f"{INDENT}make explain ID={case.id[:3].upper()}-{case.cause}")
        terminal.line()

    def _read(self, prompt: str) -> str:
        typed = self.terminal.read(prompt).strip()
        if typed.lower() in ("q", "quit"):
            raise EOFError
        return typed
