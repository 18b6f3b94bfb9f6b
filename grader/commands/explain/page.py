"""Writes docs/causes.md, the page of all causes: `python -m grader.commands.explain.page`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grader.report.cause_pages import cost_table, place, sections
from grader.spec.causes import Entry, entries
from grader.spec.problem import ROOT, Problem, load_problem, problem_ids

PAGE = ROOT / "docs" / "causes.md"
INTRODUCTION = """\
<!-- made by `python -m grader.commands.explain.page` from grader/spec/causes; do not edit -->

# Causes that the judge names

A report names a cause that the judge is sure of by problem and id, such as P06-WINDOW-SHIFTED.
`make explain ID=P06-WINDOW-SHIFTED` shows what is below, and the commands to find it with; letter
case does not matter, and you may leave out the problem. `make explain P=p06` lists the causes of
one problem. A name that is not in this list is that of a check: [UNNAMED](#unnamed).

Of many mistakes the judge knows what an answer with that one mistake returns. For these the lists
say what share of the correctness points such an answer keeps, and the tables below which checks it
fails. A check differs from one plain case only in its own subject, so a mistake costs only the
checks of its subject. Mistakes marked *core* change the plain case itself. Where a backward check
judges several gradients, the part that stays right is in brackets.
"""


def text(problems: Sequence[str]) -> str:
    """Return the page with the causes of these problems."""
    loaded = [load_problem(id) for id in problems]
    found = [entry for entry in entries().values() if set(entry.problems) & set(problems)]
    parts = [INTRODUCTION]
    for problem in loaded:
        own = (e for e in found if problem.id in e.problems and e.file != "events")
        rows = [_row(entry, problem.id) for entry in own]
        parts.append("\n".join([f"## {problem.id}, {problem.title}", "", *rows, ""]))
    ends = [_row(entry, None) for entry in found if entry.file == "events"]
    parts.append("\n".join(["## How a call ended", "", *ends, ""]))
    parts.append("## Each cause\n")
    parts += ["\n\n".join(_section(entry, loaded)) + "\n" for entry in found]
    return "\n".join(parts)


def _row(entry: Entry, problem: str | None) -> str:
    row = f"- [{entry.id}](#{entry.id.lower()}): {entry.text.title}"
    if problem not in entry.costs:
        return row
    cost = entry.costs[problem]
    return f"{row} ({'*core*, ' if cost.core else ''}keeps {cost.keeps} %)"


def _section(entry: Entry, problems: Sequence[Problem]) -> Iterator[str]:
    yield f"### {entry.id}"
    among = [_link(problem, entry.id) for problem in problems if problem.id in entry.problems]
    yield f"**{entry.text.title}** ({', '.join(among)})"
    for heading, paragraphs in sections(entry):
        first, *more = paragraphs
        yield f"**{heading}.** {first}" if heading == "How to fix it" else first
        yield from more
    costs = {p.id: entry.costs[p.id] for p in problems if p.id in entry.costs}
    if costs:
        yield cost_table(costs)


def _link(problem: Problem, id: str) -> str:
    return f"[{place(problem, id)}](../problems/{problem.id}/README.md)"


if __name__ == "__main__":
    PAGE.write_text(text(problem_ids()), encoding="utf-8")
