"""One step at a time: what the judge says of each stub after each of its steps.

`python -m tests.steps [p04 ...]` prints a table per problem: lines of the file and the student's,
words of the handout, and for each step its lines, what of Triton its answer needs and the handout
does not name, and which checks it turns green. problem.toml says which (`turns_green`), and
tests/test_steps.py and tests/test_handouts.py prove it.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from unittest import mock

from grader.judge import problem_run, scoring
from grader.source.steps import step_regions
from grader.source.submission import examine
from grader.spec.grade_record import Verdict, WorkFigures
from grader.spec.problem import PROBLEMS, Problem, load_problem, problem_ids
from grader.spec.problem_tables import WORK
from tests import trials
from tests.forked import forked_workers
from tests.harness import judge, model_answer
from tests.records import count_work


def after(problem: Problem, step: int) -> str:
    """Source of the stub in which the steps up to `step` are done."""
    stub = (problem.folder / problem.file).read_text("utf-8").split("\n")
    answer = model_answer(problem.id).split("\n")
    done, empty = step_regions("\n".join(answer)), step_regions("\n".join(stub))
    for number in sorted(empty, key=lambda n: empty[n], reverse=True):
        if number <= step:
            (first, last), (begin, end) = empty[number], done[number]
            stub[first : last - 1] = answer[begin : end - 1]
    return "\n".join(stub)


def green(problem: Problem, step: int, checks: Iterable[str] | None = None) -> set[str]:
    """The checks, of those named or of all, that pass after `step`; with `work` where it is full.

    The check that compiles is left out: it takes long, and passes with the first result.
    """
    source = after(problem, step)
    if examine(problem, source.encode()).verdict is not None:
        return set()
    names = [c.id for c in problem.checks if not c.compiles]
    counted = checks is None or WORK in checks
    needed = {name for name in names if counted and name in problem.rests_on.work}
    before = {problem.check(name).needs for name in checks or () if name != WORK}
    wanted = [name for name in names if checks is None or name in {*checks, *needed, *before}]
    with mock.patch.object(problem_run, "Casebook", trials.NoNames):
        judged = judge(source, problem, checks=wanted, enough=trials.last_is_wrong)
    passed = {name for name in wanted if judged.of(name).verdict is Verdict.PASS}
    if problem.work is not None and counted and needed <= passed:
        figures = count_work(source, problem).figures
        if isinstance(figures, WorkFigures) and scoring.work_fraction(figures) == 1.0:
            passed.add(WORK)
    return passed


def code_lines(text: str) -> set[int]:
    """Numbers of the lines that hold code."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)) and ast.get_docstring(
            node
        ):
            docstrings |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(text.split("\n"), start=1)
    held = {n for n, line in lines if line.strip() and not line.strip().startswith("#")}
    return held - docstrings


def sizes(problem: Problem) -> tuple[int, int, int, int]:
    """Lines of the file, lines of code in it and of the student's, words of the handout."""
    text = model_answer(problem.id)
    code = code_lines(text)
    regions = step_regions(text).values()
    own = {n for n in code if any(first < n < last for first, last in regions)}
    return len(text.splitlines()), len(code), len(own), words(problem)


def words(problem: Problem) -> int:
    """Words of the handout that a student reads as sentences."""
    text = handout(problem).split("\n## Sources\n")[0]
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    return len(re.findall(r"[A-Za-z][\w'’-]*", re.sub(r"\]\([^)]*\)", "]", text)))


def needed(problem: Problem, step: int) -> set[str]:
    """What of Triton the answer to a step calls, and the precision of its products."""
    lines = model_answer(problem.id).split("\n")
    first, last = step_regions("\n".join(lines))[step]
    code = "\n".join(lines[first : last - 1])
    return set(re.findall(r'tl\.\w+(?=\()|input_precision="ieee"', code))


def named(problem: Problem, step: int) -> set[str]:
    """What the handout names in its text on a step."""
    text = handout(problem).partition("\n## Steps\n")[2]
    body = re.split(r"^##+ ", text, flags=re.MULTILINE)[step]
    return set(re.findall(r'tl\.\w+|input_precision="ieee"', body))


def handout(problem: Problem) -> str:
    """Text of the problem's README.md."""
    return (PROBLEMS / problem.id / "README.md").read_text("utf-8")


def newly_green(problem: Problem) -> Iterator[list[str]]:
    """Yield for each step the checks that pass after it and did not before."""
    before: set[str] = set()
    for step in range(1, len(problem.steps) + 1):
        now = green(problem, step)
        order = [*(check.id for check in problem.checks), WORK]
        yield [name for name in order if name in now - before]
        before = now


def main(arguments: list[str]) -> None:
    """Judge the problems named, or all, and print their tables."""
    with forked_workers():
        for problem in map(load_problem, arguments or problem_ids()):
            total, code, own, read = sizes(problem)
            print(
                f"\n{problem.id}: {total} lines, {code} of code, {own} of the student's;", end=" "
            )
            print(f"{read} words of handout\n\n| step | lines | not named | turns green |")
            print("|---|---|---|---|")
            steps = enumerate(zip(problem.steps, newly_green(problem), strict=True), start=1)
            for number, (step, new) in steps:
                lacks = needed(problem, number) - named(problem, number)
                missing, green_now = ", ".join(sorted(lacks)) or "-", ", ".join(new) or "-"
                row = (f"{number} {step.title}", str(step.lines), missing, green_now)
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
