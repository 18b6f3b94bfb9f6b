"""One case in the terminal: the judge's report, the two questions, and the explanation."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from grader.base.text import clean, styled, wrap
from grader.commands.asking import INDENT, Terminal
from grader.commands.case.cases import Case, cause_text
from grader.commands.case.opened import FOLDER, SEED
from grader.commands.quiz.asking import AnswerState
from grader.commands.trace.wanted import why_not
from grader.report.kernels import kernel_table, kernels_of
from grader.report.message import NOT_REPORTED, cause_of, message_lines
from grader.spec.grade_record import ProblemResult, Verdict
from grader.spec.trace_record import TRACED

LINE, LETTER = "the line of the bug: ", "your letter: "


@dataclasses.dataclass(frozen=True)
class Asked:
    """A case, the judge's result for it, and the terminal to ask in."""

    case: Case
    result: ProblemResult
    terminal: Terminal

    def show(self) -> None:
        """Write the story, the judge's report without the cause, and commands that show more."""
        case, terminal, problem = self.case, self.terminal, self.case.problem
        terminal.line(f"Case {case.id}: {problem.title}", "strong")
        terminal.line()
        terminal.text(case.story)
        terminal.line()
        terminal.text(f"The kernel with the bug: {FOLDER / case.id / problem.id / problem.file}")
        terminal.line()
        for row in self._seen():
            terminal.line(row)
        terminal.line()
        terminal.text("Look for it in another terminal, where the report does not name it either:")
        for command in self._commands():
            terminal.line(INDENT + command)
        terminal.text("? shows the answer; q stops, and make case comes back to it.")
        terminal.line()

    def _seen(self) -> Iterator[str]:
        """Give the judge's report: the message of one check and the names of the others."""
        width, result = self.terminal.width, self.result
        if not self.case.fails:
            yield from styled([kernel_table(kernels_of(result))], width, color=False).splitlines()
            yield ""
            yield from wrap(self.case.figures.strip(), width)
            return
        check = next(check for check in result.checks if check.id == self.case.fails[0])
        less = check.message and check.message.model_copy(update={"tiles": None, "trace": None})
        shown = cause_of(result, [check.model_copy(update={"message": less})])
        yield from message_lines(result.id, shown, width)
        passed = [c.id for c in result.checks if c.verdict is Verdict.PASS]
        failed = [c.id for c in result.checks if c.verdict not in NOT_REPORTED]
        yield from wrap(", ".join(failed), width, "  fail    ")
        yield from wrap(", ".join(passed), width, "  pass    ")

    def _commands(self) -> Iterator[str]:
        problem, fails = self.case.problem, self.case.fails
        where = f"SUBMISSION={FOLDER / self.case.id} P={problem.id} SEED={SEED}"
        if fails and problem.id in TRACED and why_not(problem.check(fails[0])) is None:
            yield f"make trace {where} CASE={fails[0]}"
        yield f"make grade {where} MAP=1 REPORT=no"

    def ask(self) -> AnswerState:
        """Ask for the bug's line and cause, then explain them; return how the user did.

        Raises:
            EOFError: there is no more input, or q was typed.
        """
        outcome = AnswerState.SKIPPED if not self._finds_line() else self._names_cause()
        case, terminal, text = self.case, self.terminal, cause_text(self.case.cause)
        letter = next(key for key, cause in case.options.items() if cause == case.cause)
        lines = " and ".join(f"line {number}" for number in sorted(case.wrong_lines()))
        label = "right: " if outcome is AnswerState.RIGHT else "answer: "
        terminal.text(f"{lines}; {letter}) {_title(case.cause)}", label, " " * len(label))
        terminal.line()
        for line in case.mend():
            color = "wrong" if line[0] == "-" else "right"
            for row in wrap(line[1:], terminal.width, f"{INDENT}{line[0]} ", INDENT * 4):
                terminal.line(row, color)
        for paragraphs in filter(None, (text and text.note, case.explanation)):
            terminal.line()
            terminal.text(paragraphs, INDENT)
        owner, name, _, number = case.source.split("/")[-4:]
        terminal.line()
        terminal.text(f"{owner}/{name}#{number}: {case.source}", INDENT)
        if text:
            terminal.line(f"{INDENT}make explain ID={case.problem.id.upper()}-{case.cause}")
        terminal.line()
        return outcome

    def _finds_line(self) -> bool:
        """Read line numbers until one is right; return False if the user asks for the answer."""
        source, terminal = self.case.text().splitlines(), self.terminal
        wrong, feeding = self.case.wrong_lines(), self.case.feeding_lines()
        while (typed := terminal.ask(LINE).lower()) != "?":
            match = re.fullmatch(r"(?:line )?(\d{1,5})", typed)
            number = int(match[1]) if match else 0
            if not 1 <= number <= len(source):
                terminal.text(f"got {clean(typed, 40)!r}, expected a line from 1 to {len(source)}")
                continue
            said = "right" if number in wrong | feeding else "not there"
            fed = ", on which the one with the bug depends" if number in feeding else ""
            code = clean(source[number - 1].strip())
            terminal.text(f"{said}: line {number}{fed}: {code}", "", INDENT)
            if number in wrong | feeding:
                return True
        return False

    def _names_cause(self) -> AnswerState:
        options, terminal = self.case.options, self.terminal
        terminal.line()
        for letter, cause in options.items():
            terminal.text(_title(cause), f"{INDENT}{letter}) ", INDENT + "   ")
        terminal.line()
        while (typed := terminal.ask(LETTER).lower()) != "?":
            letter = typed.strip("().")
            if letter not in options:
                expected = ", ".join(options)
                terminal.text(f"got {clean(typed, 40)!r}, expected one of {expected}")
            elif options[letter] == self.case.cause:
                return AnswerState.RIGHT
            else:
                terminal.line(f"wrong: got {letter}", "wrong")
                return AnswerState.WRONG
        return AnswerState.SKIPPED


def _title(cause: str) -> str:
    text = cause_text(cause)
    return text.title if text else cause
