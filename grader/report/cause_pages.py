"""Looks up a cause in grader/spec/causes, and renders the page that `explain` shows."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from grader.report import history
from grader.spec.causes import Cost, Entry, entries
from grader.spec.problem import ManifestError, Problem, examples, load_problem, problem_ids

UNNAMED = "UNNAMED"
ANY = "pNN"  # in a command, a placeholder for the problem
_PREFIX = re.compile(r"(P\d\d)-(.+)")
_ALIKE = 3
_NAMES = {"k", "kv", "q", "v", "w", "x", "y", "dq", "dk", "dv", "lse", "out", "delta", "torch"}

# A heading and its paragraphs; the lines of code blocks are indented by four.
Section = tuple[str, list[str]]


class ExplainError(ManifestError):
    """No cause has this id; the message names similar ids."""


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The page of a cause, or where `entry` is None the list of the causes of some problems.

    The commands on the page name `problem`, unless it is None. `check` is the check whose id was
    given in place of a cause.
    """

    entry: Entry | None
    problems: tuple[str, ...] | None = None
    problem: str | None = None
    check: str | None = None

    @property
    def text(self) -> str:
        """The page in Markdown."""
        if self.entry is None:
            return listed(self.problems)
        return _page(self.entry, self.problem, self.check)


def shown() -> dict[str, Entry]:
    """Return the causes of the problems of this checkout, by id."""
    return {id: entry for id, entry in entries().items() if entry.problems}


def look_up(
    asked: str | None, problems: tuple[str, ...] | None = None, runs: Path | None = None
) -> Explanation:
    """Return the page of an id, in any letter case, with or without a problem; None: the list.

    The list has the causes of `problems`, all for None. The problem of an id is that of its prefix,
    else the only one of `problems`, else the one in which `runs`, the history of runs, names the
    cause last; it must be one in which the cause occurs. The id of a check leads to the page on
    failures without a named cause.

    Raises:
        ManifestError: the id is unknown, or the causes cannot be read.
    """
    known = shown()
    if asked is not None and asked.strip().lower() in problem_ids():
        asked, problems = None, (asked.strip().lower(),)
    if asked is None:
        return Explanation(None, problems)
    wanted = asked.strip().upper().replace("_", "-")
    match = _PREFIX.fullmatch(wanted)
    problem, name = (match[1].lower(), match[2]) if match else (None, wanted)
    if problem is None and problems is not None and len(problems) == 1:
        problem = problems[0]
    if name in known:
        return Explanation(known[name], problem=_problem_of(known[name], problem, runs))
    checks = {}
    if problem in problem_ids():
        checks = {c.id.upper().replace("_", "-"): c.id for c in load_problem(problem).checks}
        if name in checks:
            return Explanation(known[UNNAMED], problem=problem, check=checks[name])
    every = (*known, *checks)
    alike = [id for id in every if name and id.startswith(name)]
    alike += difflib.get_close_matches(name, every, n=_ALIKE, cutoff=0.5)
    alike += [id for id in every if name and name in id]
    alike = [f"{problem.upper()}-{id}" if id in checks else id for id in dict.fromkeys(alike)]
    did = f"; like it are {', '.join(alike[:_ALIKE])}" if alike else ""
    got = asked if len(asked) <= 60 else f"{asked[:60]}..."
    raise ExplainError(f"ID: got {got!r}, expected one that `make explain` lists{did}")


def _problem_of(entry: Entry, problem: str | None, runs: Path | None) -> str | None:
    """Return the problem that the commands of a page name, None if it is not known."""
    if problem in entry.problems:
        return problem
    if len(entry.problems) == 1:
        return entry.problems[0]
    try:
        return history.named_last(runs, entry.id, entry.problems) if runs is not None else None
    except OSError:
        return None


def sections(entry: Entry) -> list[Section]:
    """Return the sections on a cause that are the same for all problems."""
    found = [("What happened", [sentence(entry.text.note)]), ("Why", [entry.table["why"]])]
    if entry.picture is not None:
        legend = entry.picture.legend
        legend_row = [f"Queries go down, keys go across: {legend}."] if legend else []
        found.append(("The picture", [*legend_row, _block(entry.picture.rows.split("\n"))]))
    mend = [sentence(entry.text.help)]
    if "wrong" in entry.table:
        mend.append(_block(f"{name:7} {entry.table[name]}" for name in ("wrong", "right")))
    return [*found, ("How to fix it", mend)]


def sentence(text: str) -> str:
    """Return a note or help with a capital and a full stop; a name of code keeps its case."""
    first = text.partition(" ")[0]
    code = not first.isalpha() or first in _NAMES or first[1:] != first[1:].lower()
    begun = text if code else text[0].upper() + text[1:]
    return begun if begun.endswith((".", "?", "!")) else f"{begun}."


def listed(problems: Sequence[str] | None) -> str:
    """Return the list of causes of some problems; that of all includes endings of calls."""
    parts = [] if problems else [INTRODUCTION.format(id=example(), problem=examples("p06"))]
    for problem in map(load_problem, problems or problem_ids()):
        found = [e for e in shown().values() if e.file != "events" and problem.id in e.problems]
        parts.append(f"## {problem.id}, {problem.title}\n\n{_rows(found)}\n")
    if not problems:
        ends = [entry for entry in shown().values() if entry.file == "events"]
        parts.append(f"## How a call ended\n\n{_rows(ends)}\n")
    return "\n".join(parts)


def example() -> str:
    """Return the id, with its problem, of some cause in a problem of this checkout."""
    problem = examples("p06")
    found = (e.id for e in shown().values() if e.file != "events" and problem in e.problems)
    id = "WINDOW-SHIFTED" if problem == "p06" else next(found)
    return f"{problem.upper()}-{id}"


INTRODUCTION = """\
# Causes that the judge names

A report names a cause that the judge is sure of by problem and id, such as {id}.
`make explain ID={id}` shows the page of that cause; letter case does not matter, and
you may leave out the problem. `make explain P={problem}` lists the causes of one problem. A name
that is not in this list is that of a check: UNNAMED. In the commands of a page `pNN` stands for the
problem; `make explain` fills in the problem of the id or of `P=`, or else the one in which the
cause was reported last.
"""


def _rows(found: Iterable[Entry]) -> str:
    return "\n".join(f"- {entry.id}: {entry.text.title}" for entry in found)


def _page(entry: Entry, problem: str | None, check: str | None) -> str:
    *before, mend = sections(entry)
    parts = [f"# {entry.id}: {entry.text.title}", _where(entry)]
    for heading, paragraphs in (*before, ("How to find it", _finding(entry, problem)), mend):
        parts += [f"## {heading}", *paragraphs]
    steps = (place(load_problem(id), entry.id) for id in entry.problems)
    parts.append(f"Read on: {', '.join(steps)}, glossary.")
    if check is not None:
        command = f"pytest problems/{problem} -x -k {check}"
        parts += [f"Here it is the check `{check}` of {problem}:", _block([command])]
    elif problem is None and len(entry.problems) > 1:
        parts.append(
            f"`{ANY}` stands for the problem; with `P={entry.problems[0]}` the commands name it."
        )
    return "\n\n".join(parts) + "\n"


def _where(entry: Entry) -> str:
    problems = f"Problems: {', '.join(entry.problems)}."
    if entry.id in (UNNAMED, "COMPILES"):
        return problems
    ids = ", ".join(f"{p.upper()}-{entry.id}" for p in entry.problems[:2])
    more = " and so on" if len(entry.problems) > 2 else ""
    return f"{problems} In reports: {ids}{more}."


def place(problem: Problem, id: str) -> str:
    """Return the problem, with the step of the mistake if problem.toml names one."""
    step = problem.step_of_cause(id)
    return problem.id if step is None else f"{problem.id} step {step}"


def _finding(entry: Entry, problem: str | None) -> list[str]:
    command = f"make grade P={problem or ANY} X=1"
    note = (
        "`X=1` stops at the first failure. The message names the test, and the step if it is"
        " known; its `repeat` line runs it again on the same inputs."
    )
    if entry.file == "events":
        return [note, _block([command])]
    costs = {id: entry.costs[id] for id in entry.problems if id in entry.costs}
    if costs:
        note = f"Each `pytest` command runs the cheapest check that fails. {note}"
    elif entry.file == "results":
        note += " The judge recognises this cause by the numbers of the result, and names no line."
    elif entry.file in ("kernels", "pairs"):
        note += " The judge sees this cause while your code runs, and names the line if it can."
    if entry.file == "masks" and set(entry.problems) - {"p01", "p02"}:
        note += " Without a GPU the message also draws the visited tiles."
    tests = [
        f"pytest problems/{id} -x -k {cost.smallest}"
        for id, cost in costs.items()
        if problem in (None, id)
    ]
    found = [note, _block([*tests, command])]
    return [*found, cost_table(costs)] if costs else found


def cost_table(costs: Mapping[str, Cost]) -> str:
    """Return a table of the cost of a known mistake in these problems."""
    head = ["| problem | checks that fail | correctness kept |", "|---|---|---|"]
    rows = [f"| {id} | {cost.fails} | {cost.keeps} % |" for id, cost in costs.items()]
    return "\n".join([*head, *rows])


def _block(lines: Iterable[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)
