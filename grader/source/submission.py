"""Reads a submission's source once, and checks it without running it.

The bytes that are read here are those that are hashed, tested, timed and recorded. Nothing reads
the student's file again, so that saving it during a run changes nothing.
"""

from __future__ import annotations

import ast
import bisect
import dataclasses
import errno
import functools
import hashlib
import os
import re
import warnings
from collections.abc import Collection
from pathlib import Path

from grader.base.regular_file import open_below
from grader.source.entry_point import binds, look_alike, raised_at, signature_difference
from grader.source.feeding import MOST_FEEDING, Follow, Spot, is_decided, lines_feeding, works_with
from grader.source.functions import (
    Exchanged,
    altering,
    bare_loads,
    exchanged,
    functions_called,
    lines_setting,
)
from grader.source.given_imports import bad_import
from grader.source.loops import is_head_of_loop, is_turned, loops_around
from grader.source.origins import left_as_given, making, replacing
from grader.source.policy.rules import violations
from grader.source.policy.violation import Violation
from grader.source.reading import TooCostly, limited, other_coding, try_parser
from grader.source.steps import (
    code_of_steps,
    defaults_of_steps,
    first_empty_step,
    given_digest,
    lines_of_text,
    step_regions,
)
from grader.spec.grade_record import Message, Verdict
from grader.spec.problem import Problem, load_problem

# Three times the longest model answer.
MAX_SOURCE_BYTES = 128 * 1024
_TITLE = re.compile(r"^[ \t]*# >>> step (\d{1,3}): (.+) \(about ", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Source:
    """The exact bytes that are graded, and what is wrong with them (`verdict` None: nothing).

    `next_step` is the first step without code, None when every step has some. In a file of another
    release, whose markers have other titles, no line lies in a step. `violations` are all of the
    source policy; `message` describes the first. `policy` says whether that policy is in force:
    then calls are checked too.
    """

    problem_id: str
    data: bytes
    verdict: Verdict | None = None
    message: Message | None = None
    next_step: int | None = None
    other_release: bool = False
    violations: tuple[Violation, ...] = ()
    policy: bool = True

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def num_lines(self) -> int:
        """How many lines there are: a larger number of a line is made up."""
        return len(lines_of_text(self._text))

    @property
    def _text(self) -> str:
        return self.data.decode("utf-8-sig", "replace")

    @property
    def has_steps(self) -> bool:
        """Whether steps of this release are marked."""
        return not self.other_release and bool(step_regions(self._text))

    @property
    def keeps_given(self) -> bool:
        """Whether the code outside of all steps is that of the stub, of this release or before."""
        known = load_problem(self.problem_id)
        return given_digest(self._text) in (known.given_code, *known.given_code_before)

    def lines_of_step(self, step: int) -> tuple[int, int] | None:
        """Return the first and the last line of code of a step, None where it has none."""
        code = {} if self.other_release else code_of_steps(self._text)
        numbers = [number for number, _ in code.get(step, ())]
        return (numbers[0], numbers[-1]) if numbers else None

    def step_at(self, line: int) -> int | None:
        """Return the step whose markers enclose `line`, None where none does."""
        return self._step_of(range(line, line + 1))

    def step_making(self, line: int) -> int | None:
        """Return the step of a line, or the one that fails to replace what this given line sets."""
        return self.step_at(line) or self.left_as_given.get(line, (None,))[0]

    @functools.cached_property
    def left_as_given(self) -> dict[int, tuple[int, str]]:
        """The given lines that a step fails to replace, each with that step and the name."""
        if not self.has_steps or not self.tree:
            return {}
        steps = enumerate(load_problem(self.problem_id).steps, start=1)
        makes = {name: number for number, step in steps for name in step.shapes}
        starts = {step: first for step, (first, _) in step_regions(self._text).items()}
        return left_as_given(self.tree, defaults_of_steps(self._text), self.step_at, makes, starts)

    def step_of_loops_at(self, line: int) -> int | None:
        """Return the step in which all loops around `line` lie whole; None where there is none."""
        tree = self.tree
        steps = {self._step_of(loop) for loop in loops_around(tree, line)} if tree else set()
        return steps.pop() if len(steps) == 1 else None

    def fed_by(self, spot: Spot, follow: Follow = Follow.STEP) -> tuple[int, ...]:
        """Return the lines of steps that make what is, or may be, wrong at a spot.

        The nearest of each step that leads there, and those of the step which these depend on, as
        far as they are few. For a line of a step without a part, none unless it is the head of a
        loop: another step may make its bounds. A file without steps is one.
        """
        line, own = spot.line, self.step_at(spot.line) if self.has_steps else 1
        tree = self.tree if line else None
        if tree is None or (own is not None and not (spot.part or is_head_of_loop(tree, line))):
            return ()
        others = None if spot.part or not self.has_steps else own
        if own is not None and not works_with(tree, spot):
            return ()

        def step_of(number: int) -> int | None:
            if not self.has_steps:
                return 1
            return None if (step := self.step_making(number)) == others else step

        found = lines_feeding(tree, spot, step_of, follow)
        found.pop(line, None)
        fars = sorted(found.values())
        far = max((far for far in fars if bisect.bisect(fars, far) <= MOST_FEEDING), default=-1)
        return tuple(sorted(n for n in found if found[n] <= far))

    def nearest(self, spot: Spot) -> set[int]:
        """Return the nearest lines of steps that feed a spot, none in a file without steps."""
        return {*self.fed_by(spot, Follow.NEAREST)} if self.has_steps else set()

    def reaches(self, spot: Spot, step: int) -> bool:
        """Whether a line of a step helps to make what the line of a spot works with.

        Where given code was changed, what lies behind the nearest lines of steps says nothing.
        """
        tree = self.tree
        if tree is None or self.step_at(spot.line) == step:
            return tree is not None
        follow = Follow.ALL if self.keeps_given else Follow.NEAREST
        found = lines_feeding(tree, Spot(spot.line), self.step_making, follow)
        return any(self.step_making(n) == step for n in found)

    def statement_of_step(
        self, step: int, outputs: Collection[str], part: str
    ) -> tuple[int, tuple[int, ...]] | None:
        """Return the line of the statement of a step that makes a result, and lines it depends on.

        See `grader.source.origins`. None where several do.
        """
        lines, tree = self.lines_of_step(step), self.tree
        if lines is None or tree is None:
            return None
        line, *others = making(tree, range(lines[0], lines[1] + 1), outputs, part) or [0]
        if not line or len(others) > MOST_FEEDING:
            return None
        return line, tuple(others) or self.fed_by(Spot(line, located=True, part="value"))

    def set_before(self, line: int, name: str, step: int) -> int:
        """Return the line of a step that gave a name the value that it has at another line.

        0 where none did. If given code sets it by a call, the line in the called function counts
        that sets the same name.
        """
        last = max((n for n in lines_setting(self.tree, line, name) if n < line), default=0)
        if self.tree is not None and self.step_at(last) is None:
            called = functions_called(self.tree, last)
            last = max((n for f in called for n in lines_setting(self.tree, f, name)), default=0)
        return last if self.step_at(last) == step else 0

    def set_in(self, function: str, name: str) -> int:
        """Return the last line of a function of the file that sets a name, 0 for none."""
        body = self.tree.body if self.tree is not None else []
        starts = [n.lineno for n in body if getattr(n, "name", "") == function]
        return max((n for at in starts for n in lines_setting(self.tree, at, name)), default=0)

    def exchanged(self) -> Exchanged | None:
        """Return the two arguments that the file passes in each other's places, if there are."""
        return exchanged(tree) if (tree := self.tree) else None

    def bare_load(self) -> tuple[int, str]:
        """Return the line of a load with undefined lanes, 0 if in several steps, and its flaw."""
        loads = bare_loads(tree) if (tree := self.tree) else {}
        line = min(loads) if len({self.step_at(n) or n for n in loads}) == 1 else 0
        return line, loads.get(line) or min(loads.values(), default="other")

    def step_behind(self, spot: Spot) -> int | None:
        """Return the step of the mistake that shows at a spot, None if that is not certain.

        It is that of the line if the mistake is `located` there, else the one that makes what is
        wrong.
        """
        own = self.step_at(spot.line)
        tree = self.tree if spot.line and self.has_steps else None
        if own is not None and (spot.located or (tree and not works_with(tree, spot))):
            return own
        if tree is None or not self.keeps_given:
            return None  # the mistake may be in given code that was changed
        lines = lines_feeding(tree, spot, self.step_making)
        steps = {self.step_making(number) for number in lines}
        left = {self.left_as_given[n][0] for n in lines if n in self.left_as_given}
        if len(left) == 1:  # the step does not make what it should
            return left.pop()
        if spot.part == "bounds" and is_turned(tree, spot.line):
            return own
        if own is not None and (not spot.part or not lines or self._may_be_wrong(tree, spot)):
            steps.add(own)
        return steps.pop() if len(steps) == 1 else None

    def _may_be_wrong(self, tree: ast.Module, spot: Spot) -> bool:
        """Whether the step of an access or branch, with all loops around it, may be wrong too."""
        if spot.part == "bounds" or is_decided(tree, spot):
            return False
        return self.step_of_loops_at(spot.line) == self.step_at(spot.line)

    @functools.cached_property
    def tree(self) -> ast.Module | None:
        """The syntax tree, parsed once; None of what is no Python."""
        try:
            with warnings.catch_warnings(action="ignore"):
                return ast.parse(self._text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    def replacing(self, spot: Spot) -> int:
        """Return the line that gives the pointer or option of a spot another value, 0 if none."""
        if (tree := self.tree) and spot.part == "option":
            return altering(tree, spot.of)
        given = defaults_of_steps(self._text) if tree else {}
        return replacing(tree, given, self.step_at, spot.of) if tree else 0

    def _step_of(self, lines: range) -> int | None:
        text = "" if self.other_release else self._text
        for step, (first, last) in step_regions(text).items():
            if first <= lines[0] and lines[-1] <= last:
                return step
        return None


def read_source(problem: Problem, submission: Path, *, policy: bool = True) -> Source:
    """Read `submission`/pNN/<file>, once, and look for what would keep it from being graded.

    Without `policy` the source policy is left out. A link is refused: what it leads to may change,
    and may be somebody else's. An unexpected exception is an error of this file alone: the other
    problems are graded.
    """
    shown = f"{problem.id}/{problem.file}"

    def bad(headline: str, data: bytes = b"") -> Source:
        message = Message(headline=headline, file=shown)
        return Source(problem.id, data, Verdict.ERROR, message)

    try:
        data = _read(problem, submission)
    except (FileNotFoundError, NotADirectoryError):
        return bad(f"file not found: expected {shown} in the submission")
    except OSError as error:
        if error.errno == errno.ELOOP:
            where, expected = shown, "a regular file"
            if error.filename == problem.id:
                where, expected = problem.id, "a folder"
            return bad(f"{where} is a link, expected {expected}: copy it there")
        return bad(f"cannot read {shown}: {error.strerror}")
    try:
        return examine(problem, data, policy=policy)
    except Exception as error:
        return bad(f"{shown} cannot be looked through: {type(error).__name__}: {error}", data)


def examine(problem: Problem, data: bytes, *, policy: bool = True) -> Source:
    """Look for what would keep these bytes from being graded as the file of `problem`.

    What takes too long to look through is rejected. Found here: an empty or oversized file, text
    that is not UTF-8, a syntax error, an import that `given` lacks, what the source policy
    refuses (with `policy`), a missing entry point, a wrong signature, a stub of which no step is
    done, and an entry point that provably ends in `raise NotImplementedError` before it could
    return.
    """
    try:
        with limited():
            return _examine(problem, data, policy=policy)
    except TooCostly as error:
        headline = f"{problem.id}/{problem.file} {error}: shorten its longest names and expressions"
        message = Message(headline=headline, file=f"{problem.id}/{problem.file}")
        return Source(problem.id, data, Verdict.REJECTED, message)


def _examine(problem: Problem, data: bytes, *, policy: bool) -> Source:
    shown = f"{problem.id}/{problem.file}"

    def bad(verdict: Verdict, headline: str, line: int | None = None, data: bytes = b"") -> Source:
        return Source(problem.id, data, verdict, Message(headline=headline, file=shown, line=line))

    if len(data) > MAX_SOURCE_BYTES:
        expected = f"expected at most {MAX_SOURCE_BYTES // 1024} KiB of source"
        return bad(Verdict.ERROR, f"{shown} is too long, {expected}")
    if not data.strip():
        return bad(Verdict.ERROR, f"{shown} is empty: copy the stub back and fill it in", data=data)
    if (found := other_coding(data)) is not None:
        line, coding = found
        return bad(Verdict.ERROR, f"{shown}: got coding {coding}, expected utf-8", line, data)
    try:
        text = data.decode("utf-8-sig")
        try_parser(text)
        with warnings.catch_warnings(action="ignore"):  # the student's, about backslashes
            tree = ast.parse(text, filename=problem.file)
    except UnicodeDecodeError as error:
        return bad(Verdict.ERROR, f"{shown} is not UTF-8 text: byte {error.start}", data=data)
    except SyntaxError as error:
        return bad(Verdict.ERROR, f"syntax error: {error.msg}", error.lineno, data)
    except (ValueError, RecursionError, MemoryError) as error:
        reason = str(error) or "it is nested too deeply"
        return bad(Verdict.ERROR, f"{shown} cannot be parsed: {reason}", data=data)

    wrong = bad_import(problem, tree)
    if wrong is not None:
        return bad(wrong.verdict, wrong.headline, wrong.line, data)
    broken = violations(problem, tree) if policy else ()
    if broken:
        message = _refusal(problem, broken)
        return Source(problem.id, data, Verdict.REJECTED, message, violations=broken)
    functions = [n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    entry = next((f for f in reversed(functions) if f.name == problem.entry), None)
    titles = {number: step.title for number, step in enumerate(problem.steps, start=1)}
    other = any(titles.get(int(number)) != title for number, title in _TITLE.findall(text))
    step = None if other else first_empty_step(text)
    if entry is None:
        if binds(tree, problem.entry):  # an alias, a decorated object: the worker finds out
            return Source(problem.id, data, next_step=step, other_release=other)
        names = ", ".join(f.name for f in functions) or "no functions"
        alike = next(filter(None, (look_alike(f.name, problem.entry) for f in functions)), None)
        said = alike or f"got {names}, expected {problem.signature}"
        headline = f"no function {problem.entry!r}: {said}"
        return bad(Verdict.ERROR, headline, data=data)
    difference = signature_difference(entry, problem.signature)
    if difference:
        headline = f"wrong signature of {problem.entry}: {difference}"
        return bad(Verdict.ERROR, headline, entry.lineno, data)
    raised = raised_at(problem, tree, entry, text)
    if raised is not None:
        line, text = raised
        headline = text or f"{problem.entry} is not implemented"
        if other:
            headline = "the steps of this file are those of another release: take the new stub"
            headline += "; CHANGELOG.md says what has changed"
        if step is not None and step <= len(problem.steps):
            title = problem.steps[step - 1].title
            headline = f"{problem.id} step {step}: {title}; see problems/{problem.id}/README.md"
        message = Message(headline=headline, file=shown, line=line, step=step)
        return Source(problem.id, data, Verdict.NOT_IMPLEMENTED, message, step, other)
    return Source(problem.id, data, next_step=step, other_release=other)


def _refusal(problem: Problem, broken: tuple[Violation, ...]) -> Message:
    """Describe the first violation, and count the others."""
    first, others = broken[0], len(broken) - 1
    count = f"{others} more violation{'s' * (others > 1)} of the source policy" if others else None
    where = f"make lint P={problem.id} lists all, docs/source-policy.md has the rules"
    return Message(
        headline=f"source policy ({first.rule}): {first.text}",
        file=f"{problem.id}/{problem.file}",
        line=first.line,
        extent=count,
        help=f"{first.help}; {where}",
    )


def _read(problem: Problem, submission: Path) -> bytes:
    """Return at most one byte more than a source may have; `submission` itself may be a link."""
    folder = os.open(submission, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with open_below(folder, (problem.id, problem.file)) as file:
            return file.read(MAX_SOURCE_BYTES + 1)
    finally:
        os.close(folder)
