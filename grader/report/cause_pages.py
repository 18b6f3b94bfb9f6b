"""Finds the page of a cause under docs/errors, and the problem that its commands are for."""

from __future__ import annotations

import dataclasses
import difflib
import re
from pathlib import Path

from grader.report import history
from grader.spec.problem import ROOT, ManifestError, load_problem, problem_ids

FOLDER = ROOT / "docs" / "errors"
INDEX = "README"
UNNAMED = "UNNAMED"
_PREFIX = re.compile(r"(P\d\d)-(.+)")
_PROBLEMS = re.compile(r"^Problems: ([p0-9, ]+)\.", re.MULTILINE)
_ALIKE = 3


class ExplainError(ManifestError):
    """An id without a page; the message says which ids are like it."""


@dataclasses.dataclass(frozen=True)
class Explanation:
    """A page in Markdown; its commands are to be those of `problem`, None where that is not known.

    `check` is the check that was asked for in place of a cause.
    """

    text: str
    problem: str | None = None
    check: str | None = None


def page_ids(folder: Path = FOLDER) -> tuple[str, ...]:
    """Return the ids that have a page, in order."""
    return tuple(sorted(path.stem for path in folder.glob("*.md") if path.stem != INDEX))


def look_up(
    asked: str | None,
    problems: tuple[str, ...] | None = None,
    folder: Path = FOLDER,
    runs: Path | None = None,
) -> Explanation:
    """Return the page of an id in any letter case, with or without its problem; None: the list.

    `problems` are those whose causes are listed, all for None. The problem of an id is that of its
    prefix, else the one of `problems`, else, where `runs` is a file with the history of runs, the
    one in which it was named last: of those in which the cause occurs.

    The id of a check without a named cause leads to the page on such failures.

    Raises:
        ExplainError: there is no such id, or no page can be read.
    """
    known = page_ids(folder)
    if not known:
        raise ExplainError(f"{folder}: got no pages of causes; copy it from the release again")
    if asked is not None and asked.strip().lower() in problem_ids():
        asked, problems = None, (asked.strip().lower(),)
    if asked is None:
        return Explanation(_listed(_read(folder / f"{INDEX}.md"), problems))
    wanted = asked.strip().upper().replace("_", "-")
    match = _PREFIX.fullmatch(wanted)
    problem, name = (match[1].lower(), match[2]) if match else (None, wanted)
    if problem is None and problems is not None and len(problems) == 1:
        problem = problems[0]
    if name in known:
        text = _read(folder / f"{name}.md")
        return Explanation(text, _of_page(text, name, problem, runs))
    checks = {}
    if problem in problem_ids():
        checks = {c.id.upper().replace("_", "-"): c.id for c in load_problem(problem).checks}
        if name in checks:
            return Explanation(_read(folder / f"{UNNAMED}.md"), problem, checks[name])
    every = (*known, *checks)
    alike = [id for id in every if name and id.startswith(name)]
    alike += difflib.get_close_matches(name, every, n=_ALIKE, cutoff=0.5)
    alike += [id for id in every if name and name in id]
    alike = [f"{problem.upper()}-{id}" if id in checks else id for id in dict.fromkeys(alike)]
    did = f"; like it are {', '.join(alike[:_ALIKE])}" if alike else ""
    shown = asked if len(asked) <= 60 else f"{asked[:60]}..."
    raise ExplainError(f"ID: got {shown!r}, expected one that `make explain` lists{did}")


def _of_page(text: str, name: str, problem: str | None, runs: Path | None) -> str | None:
    """Return the problem that the commands of a page are for, None for any of several."""
    found = _PROBLEMS.search(text)
    among = found[1].split(", ") if found else []
    if problem in among:
        return problem
    if len(among) == 1:
        return among[0]
    try:
        return history.named_last(runs, name, among) if runs is not None else None
    except OSError:
        return None


def _listed(index: str, problems: tuple[str, ...] | None) -> str:
    """Return the list of the causes of some problems, that of all with what stands before it."""
    if problems is None:
        return index
    sections = re.split(r"^(?=## )", index, flags=re.MULTILINE)
    return "".join(part for part in sections if part[3:6] in problems)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ExplainError(f"{path}: {why}; copy the file from the release again") from None
