"""`python -m grader explain ID`: finds the page of a cause under docs/errors."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import re
from pathlib import Path

from grader.manifest import ROOT, ManifestError, load_problem, problem_ids

FOLDER = ROOT / "docs" / "errors"
INDEX = "README"
UNNAMED = "UNNAMED"
_PREFIX = re.compile(r"(P\d\d)-(.+)")
_ALIKE = 3


class ExplainError(ManifestError):
    """An id without a page; the message says which ids are like it."""


@dataclasses.dataclass(frozen=True)
class Explanation:
    """A page in Markdown; `problem` and `check` are those of the id that was asked for."""

    text: str
    problem: str | None = None
    check: str | None = None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the argument of `explain`."""
    parser.add_argument(
        "id", nargs="?", metavar="ID", help="such as P06-WINDOW-SHIFTED (default: list all)"
    )
    parser.add_argument("--only", metavar="p04,p05", help="list the causes of these problems only")


def page_ids(folder: Path = FOLDER) -> tuple[str, ...]:
    """Return the ids that have a page, in order."""
    return tuple(sorted(path.stem for path in folder.glob("*.md") if path.stem != INDEX))


def look_up(
    asked: str | None, problems: tuple[str, ...] | None = None, folder: Path = FOLDER
) -> Explanation:
    """Return the page of an id in any letter case, with or without its problem; None: the list.

    `problems` are those whose causes are listed, all for None.

    The id of a check without a named cause leads to the page on such failures.

    Raises:
        ExplainError: there is no such id, or no page can be read.
    """
    known = page_ids(folder)
    if not known:
        raise ExplainError(f"{folder}: got no pages, expected one per cause; take the folder anew")
    if asked is not None and asked.strip().lower() in problem_ids():
        asked, problems = None, (asked.strip().lower(),)
    if asked is None:
        return Explanation(_listed(_read(folder / f"{INDEX}.md"), problems))
    wanted = asked.strip().upper().replace("_", "-")
    match = _PREFIX.fullmatch(wanted)
    problem, name = (match[1].lower(), match[2]) if match else (None, wanted)
    if name in known:
        return Explanation(_read(folder / f"{name}.md"), problem)
    if problem in problem_ids():
        checks = {c.id.upper().replace("_", "-"): c.id for c in load_problem(problem).checks}
        if name in checks:
            return Explanation(_read(folder / f"{UNNAMED}.md"), problem, checks[name])
    alike = [id for id in known if name and id.startswith(name)]
    alike += difflib.get_close_matches(name, known, n=_ALIKE, cutoff=0.5)
    alike += [id for id in known if name and name in id]
    alike = list(dict.fromkeys(alike))
    did = f"; like it are {', '.join(alike[:_ALIKE])}" if alike else ""
    shown = asked if len(asked) <= 60 else f"{asked[:60]}..."
    raise ExplainError(f"ID: got {shown!r}, expected one that `make explain` lists{did}")


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
        raise ExplainError(f"{path}: {why}; take the file anew") from None
