"""One step at a time: what the judge says of each stub after each of its steps.

`python -m tests.steps` writes docs/steps.md: per problem the lines of file and student, the words
of the handout, and which checks each step turns green; and docs/steps/pNN.md, the report after each
step. tests/test_steps.py holds them true.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest import mock

from grader.judge import scoring
from grader.report.terminal import render
from grader.source.submission import examine, step_regions
from grader.spec.grade_record import Verdict, WorkFigures
from grader.spec.problem import PROBLEMS, ROOT, WORK, Problem, load_problem, problem_ids
from tests import harness, trials
from tests.forked import forked_workers
from tests.harness import Judged, judge, model_answer
from tests.records import count_work, graded

PAGE = ROOT / "docs" / "steps.md"
REPORTS = ROOT / "docs" / "steps"
_HEAD = """\
# One step at a time

What a student opens, writes and sees. `lines` are those of the finished file; `of code` leaves out
comments, docstrings and blank lines; `student's` are those of code inside the steps; `words` are
those of the handout without code blocks, tables, numbers and the list of sources.

The tables below say which checks turn green with each step, on a machine without a GPU, when the
steps up to it are done as in the model answer and the later ones are still as in the stub. `work`
stands for all points for work; `compiles` is left out. The links lead to what `make grade` prints
after each step. `python -m tests.steps` makes these pages.
"""
_REPORTS_HEAD = """\
# {problem.id} step by step: what `make grade P={problem.id}` prints

From the stub to the last step, on a machine without a GPU. The steps up to the one named are done
as in the model answer, the later ones are as in the stub. Speed and memory are not measured here.
"""


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
    wanted = [name for name in names if checks is None or name in checks]
    with mock.patch.object(harness, "Casebook", trials.NoNames):
        judged = judge(source, problem, checks=wanted, enough=trials.last_is_wrong)
    passed = {name for name in wanted if judged.of(name).verdict is Verdict.PASS}
    if problem.work is not None and (WORK in checks if checks is not None else _complete(judged)):
        figures = count_work(source, problem).figures
        if isinstance(figures, WorkFigures) and scoring.work_fraction(figures) == 1.0:
            passed.add(WORK)
    return passed


def _complete(judged: Judged) -> bool:
    return not judged.wrong


def report(problem: Problem, step: int) -> str:
    """What `make grade` prints when the steps up to `step` are done."""
    with tempfile.TemporaryDirectory() as folder:
        answers = {problem.id: after(problem, step)}
        return render(graded(Path(folder), answers, problem_of=load_problem))


def reports(problem: Problem) -> str:
    """docs/steps/pNN.md."""
    sections = (section(problem, step) for step in range(len(problem.steps) + 1))
    return "\n".join([_REPORTS_HEAD.format(problem=problem), *sections])


def section(problem: Problem, step: int) -> str:
    """The part of docs/steps/pNN.md on what the report says after a step; 0 is the stub."""
    title = f"Step {step}: {problem.steps[step - 1].title}" if step else "The stub"
    return f"## {title}\n\n```text\n{report(problem, step).strip()}\n```\n"


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


def handout(problem: Problem) -> str:
    """Text of the problem's README.md."""
    return (PROBLEMS / problem.id / "README.md").read_text("utf-8")


def page(rows: dict[str, list[list[str]]]) -> str:
    """docs/steps.md, from the newly green checks of each problem, step by step."""
    lines = [
        _HEAD,
        "| problem | lines | of code | student's | words | steps |",
        "|---|---|---|---|---|---|",
    ]
    for problem_id in problem_ids():
        problem = load_problem(problem_id)
        total, code, own, read = sizes(problem)
        lines.append(f"| {problem_id} | {total} | {code} | {own} | {read} | {len(problem.steps)} |")
    for problem_id, found in rows.items():
        problem = load_problem(problem_id)
        lines += [
            "",
            f"## {problem_id}, {problem.title}",
            "",
            f"[What the report says after each step](steps/{problem_id}.md)",
            "",
            "| step | turns green |",
            "|---|---|",
        ]
        for number, (step, new) in enumerate(zip(problem.steps, found, strict=True), start=1):
            lines.append(f"| {number} {step.title} | {', '.join(new) or 'nothing by itself'} |")
    return "\n".join(lines) + "\n"


def newly_green(problem: Problem) -> Iterator[list[str]]:
    """Yield for each step the checks that pass after it and did not before."""
    before: set[str] = set()
    for step in range(1, len(problem.steps) + 1):
        now = green(problem, step)
        order = [*(check.id for check in problem.checks), WORK]
        yield [name for name in order if name in now - before]
        before = now


def read_page() -> dict[str, list[list[str]]]:
    """What docs/steps.md says, as `newly_green` yields it."""
    rows: dict[str, list[list[str]]] = {}
    for part in PAGE.read_text("utf-8").split("\n## ")[1:]:
        cells = re.findall(r"^\| \d+ .* \| (.*) \|$", part, re.MULTILINE)
        said = [[] if cell == "nothing by itself" else cell.split(", ") for cell in cells]
        rows[part[:3]] = said
    return rows


def main(arguments: list[str]) -> None:
    """Judge the problems named, or all, and write the page."""
    rows = read_page() if PAGE.exists() else {}
    REPORTS.mkdir(exist_ok=True)
    with forked_workers():
        for problem_id in arguments or problem_ids():
            rows[problem_id] = list(newly_green(load_problem(problem_id)))
            for number, new in enumerate(rows[problem_id], start=1):
                print(f"{problem_id} step {number}: {', '.join(new) or '-'}", flush=True)
            text = reports(load_problem(problem_id))
            (REPORTS / f"{problem_id}.md").write_text(text, encoding="utf-8")
    Path(PAGE).write_text(page(dict(sorted(rows.items()))), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
