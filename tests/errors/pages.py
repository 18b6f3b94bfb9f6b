"""The text of docs/errors: a page per cause, and the list of all."""

from __future__ import annotations

import re

from grader.report.cause_pages import FOLDER, INDEX
from grader.spec.cases import Case
from grader.spec.problem import ROOT, Problem, load_problem, problem_ids
from grader.spec.problem_tables import Check
from tests.errors import pictures
from tests.errors.causes import Cause, about_pairs, all_ids, cause, events, fitted, known

MADE = "<!-- generated from what the judge knows of this cause; do not edit -->"
SECTIONS = ("What happened", "Why", "How to find it", "How to fix it")
_SEED = "e1"
_ROW = re.compile(
    r"^\| \[([A-Z0-9-]+)\]\(.*?\)(?:, \*core\*)? \| (\d+) % \| (.*) \|$", re.MULTILINE
)
ANY = "pNN"  # in a command, where the reader puts the problem
INTRODUCTION = """\
# Causes that the judge names

A report names a cause that the judge is sure of by problem and id, such as P06-WINDOW-SHIFTED.
`make explain ID=P06-WINDOW-SHIFTED` shows the page of that cause; letter case does not matter, and
you may leave out the problem. `make explain P=p06` lists the causes of one problem. A name that is
not in this list is that of a check: [UNNAMED](UNNAMED.md). In the commands of a page `pNN` stands
for the problem; `make explain` fills in the problem of the id or of `P=`, or else the one in which
the cause was reported last.
"""


def pages() -> dict[str, str]:
    """Return the text of each page by its name without the suffix."""
    costs = _costs()
    return {INDEX: _index()} | {id: page(cause(id), costs) for id in sorted(all_ids())}


def write() -> None:
    """Write all pages, and remove those of causes that are no more."""
    FOLDER.mkdir(exist_ok=True)
    texts = pages()
    for path in FOLDER.glob("*.md"):
        if path.stem not in texts:
            path.unlink()
    for name, text in texts.items():
        (FOLDER / f"{name}.md").write_text(text, encoding="utf-8")


def page(told: Cause, costs: dict[tuple[str, str], tuple[str, str]]) -> str:
    """Return one page; `costs` has what a problem keeps and what fails, by problem and id."""
    parts = [MADE, f"# {told.id}: {told.title}", _where(told)]
    parts += ["## What happened", _sentence(told.note)]
    parts += ["## Why", told.why.strip()]
    parts += _picture(told)
    parts += ["## How to find it", *_finding(told, costs)]
    parts += ["## How to fix it", _sentence(told.help)]
    if told.wrong and told.right:
        parts.append(f"    wrong   {told.wrong}\n    right   {told.right}")
    parts.append(_read_on(told))
    return "\n\n".join(parts) + "\n"


def _sentence(text: str) -> str:
    """Return a note or help as a sentence; names of the course's code stay as they are."""
    first = text.partition(" ")[0]
    code = not first.isalpha() or first in _NAMES or first[1:] != first[1:].lower()
    begun = text if code else text[0].upper() + text[1:]
    return begun if begun.endswith((".", "?", "!")) else f"{begun}."


_NAMES = {"k", "kv", "q", "v", "w", "x", "y", "dq", "dk", "dv", "lse", "out", "delta", "torch"}


def _where(told: Cause) -> str:
    ids = ", ".join(f"{p.upper()}-{told.id}" for p in told.problems[:2])
    more = " and so on" if len(told.problems) > 2 else ""
    if told.id in ("UNNAMED", "COMPILES"):
        return f"Problems: {', '.join(told.problems)}."
    return f"Problems: {', '.join(told.problems)}. In reports: {ids}{more}."


def _picture(told: Cause) -> list[str]:
    if told.id not in about_pairs():
        return []
    for problem, mistake in known().get(told.id, {}).items():
        rows = pictures.pairs(mistake, problem)
        if rows:
            drawn = "\n".join(f"    {' '.join(row) if len(row) < 30 else row}" for row in rows)
            text = f"Queries go down, keys go across: {pictures.legend(rows)}."
            return ["## The picture", text, drawn]
    for problem, mistake in reversed(known().get(told.id, {}).items()):
        rows = pictures.heads(mistake, problem)
        if rows:
            return ["## The picture", "\n".join(f"    {row}" for row in rows)]
    return []


def _finding(told: Cause, costs: dict[tuple[str, str], tuple[str, str]]) -> list[str]:
    commands = [f"make grade P={told.problems[0] if len(told.problems) == 1 else ANY} X=1"]
    note = (
        "`X=1` stops at the first failure. The message names the test, and the step if it is"
        " known; its line `repeat` is the command that repeats the run with the same inputs."
    )
    if told.id in events():
        return [note, _block(commands)]
    smallest = {
        id: _smallest(load_problem(id), costs[id, told.id][1])
        for id in told.problems
        if (id, told.id) in costs
    }
    if smallest:
        commands[:0] = [f"pytest problems/{id} -x -k {check}" for id, check in smallest.items()]
        note = f"Each `pytest` command runs the failing check with the smallest cases. {note}"
    elif told.id in fitted():
        note += " The judge recognises this cause by the numbers of the result, and names no line."
    elif told.id not in known():
        note += " The judge sees this cause while your kernel runs, and names the line if it can."
    if told.id in about_pairs() and set(told.problems) - {"p01", "p02"}:
        note += " If the kernel ran in the interpreter, the message also draws the visited tiles."
    rows = [(p, *costs[p, told.id]) for p in told.problems if (p, told.id) in costs]
    table = [f"| {p} | {fails} | {keeps} % |" for p, keeps, fails in rows]
    head = ["| problem | checks that fail | correctness kept |\n|---|---|---|"]
    return [note, _block(commands), *(["\n".join([*head, *table])] if table else [])]


def _block(commands: list[str]) -> str:
    return "\n".join(f"    {command}" for command in commands)


def _smallest(problem: Problem, fails: str) -> str:
    """Return the check with the smallest case of those that fail."""
    named = set(re.findall(r"[a-z]\w*", fails)) & {check.id for check in problem.checks}
    if fails.startswith("all but"):
        named = {check.id for check in problem.checks} - named
    checks = [check for check in problem.checks if check.id in named]
    return min(checks, key=lambda check: _size(problem, check)).id


def _size(problem: Problem, check: Check) -> int:
    cases = [case for case in problem.cases(check, _SEED, "cpu").values() if case.invalid is None]
    return min(map(_elements, cases), default=2**60)


def _elements(case: Case) -> int:
    if case.rows is not None:
        return case.rows * case.cols
    return case.batch * case.num_q_heads * case.seqlen_q * case.seqlen_k


def _read_on(told: Cause) -> str:
    """Link the handouts, and the step where problem.toml names one."""
    links = []
    for problem in map(load_problem, told.problems):
        step = problem.step_of_cause(told.id)
        words = problem.id if step is None else f"{problem.id} step {step}"
        links.append(f"[{words}](../../problems/{problem.id}/README.md)")
    return f"Read on: {', '.join(links)}, [glossary](../glossary.md)."


def _costs() -> dict[tuple[str, str], tuple[str, str]]:
    """Return from docs/mistakes.md what is kept, in percent, and which checks fail."""
    text = (ROOT / "docs" / "mistakes.md").read_text(encoding="utf-8")
    found = {}
    for section in text.split("\n## ")[1:]:
        for id, kept, fails in _ROW.findall(section):
            found[section[:3], id] = (kept, fails)
    return found


def _index() -> str:
    parts = [f"{MADE}\n\n{INTRODUCTION}"]
    for problem in map(load_problem, problem_ids()):
        ids = sorted(id for id in all_ids() - events() if problem.id in cause(id).problems)
        rows = "\n".join(f"- [{id}]({id}.md): {cause(id).title}" for id in ids)
        parts.append(f"## {problem.id}, {problem.title}\n\n{rows}\n")
    rows = "\n".join(f"- [{id}]({id}.md): {cause(id).title}" for id in sorted(events()))
    parts.append(f"## How a call ended\n\n{rows}\n")
    return "\n".join(parts)
