"""Adapts pages and the Makefile to students: parts for the course alone are left out.

In Markdown `<!-- course -->` to `<!-- end of course -->` is left out, and the text between
`<!-- students:` and `-->` becomes visible; `<!-- with p05 -->` to `<!-- end of p05 -->` stays where
p05 is handed out. In the Makefile lines between `# course` and `# end of course` are left out, and
lines that begin with `#students: ` lose that beginning. Links to files that are not in the release
become plain text.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Sequence
from pathlib import PurePosixPath

from grader.spec.problem import ManifestError, Problem
from grader.spec.trace_record import TRACED

# One of the blank lines around a part is removed with it.
_COURSE = re.compile(
    r"(?<=\n\n)<!-- course -->\n.*?^<!-- end of course -->\n\n?"
    r"|^<!-- course -->\n.*?^<!-- end of course -->\n",
    re.MULTILINE | re.DOTALL,
)
_INLINE = re.compile(r"<!-- course -->.*?<!-- end of course -->", re.DOTALL)
_STUDENTS = re.compile(r"^<!-- students:\n(.*?)^-->\n", re.MULTILINE | re.DOTALL)
_MADE_BY_TESTS = re.compile(r"^<!-- made by `python -m tests\..*-->\n+", re.MULTILINE)
# A part that needs a problem: it is removed from a release without that problem.
_WITH = re.compile(
    r"^<!-- with (p\d\d) -->\n(.*?)^<!-- end of \1 -->\n\n?", re.MULTILINE | re.DOTALL
)
_LEFT_OVER = re.compile(r"<!-- (?:end of )?(?:course|p\d\d) -->|<!-- (?:students:|with p)")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
# Code is matched before links, in blocks and between backquotes: `kernel[grid](...)` is no link.
_CODE_OR_LINK = re.compile(
    r"(?P<code>^```.*?^```$|(?<!`)`(?:[^`\n]|\n(?!\n))+`)|" + _LINK.pattern,
    re.MULTILINE | re.DOTALL,
)
_COURSE_LINES = re.compile(r"^# course\n.*?^# end of course\n", re.MULTILINE | re.DOTALL)
_MAKE_STUDENTS = re.compile(r"^#students: ?(.*\n)", re.MULTILINE)
_PHONY = re.compile(r"^\.PHONY: (.*)$", re.MULTILINE)
_TARGET = re.compile(r"^([a-z]+):", re.MULTILINE)
# Commands, in a line of their own or between backquotes: `make grade P=p04`, `pytest problems/p04`.
_COMMAND = re.compile(
    r"^(?:make|pytest|python) .*$|(?<!`)`(?:make|pytest|python) [^`]*`", re.MULTILINE
)
_NAMED = re.compile(r"(P=|problems/|--only )(p\d\d(?:,p\d\d)*)((?: {2,})?)")
_CASE, _CASE_OF_ALL = re.compile(r"\bCASE=\w+:\d+"), "CASE=plain:1"
_MAKE_TRACE = re.compile(r"^trace:.*$", re.MULTILINE)
_TRACE_ROW = re.compile(r"^\| `make trace .*\n", re.MULTILINE)
_ID = re.compile(r"ID=((P\d\d)-[A-Z0-9-]+)")
_CAUSE = re.compile(r"^- \[([A-Z0-9-]+)\]", re.MULTILINE)
_ROW = re.compile(r"^\| \[(p\d\d)\]\(.*\n", re.MULTILINE)
_PROBLEM = re.compile(r"problems/(p\d\d)/")


def for_students(text: str, path: str, problems: Sequence[str] = ()) -> str:
    """Return a page without the parts for the course alone or for other problems than these.

    Raises:
        ManifestError: a mark has no counterpart.
    """
    text = _MADE_BY_TESTS.sub("", text)
    text = _WITH.sub(lambda part: f"{part[2]}\n" if part[1] in problems else "", text)
    text = _STUDENTS.sub(r"\1", _INLINE.sub("", _COURSE.sub("", text)))
    if found := _LEFT_OVER.search(text):
        raise ManifestError(
            f"{path}: got {found[0]} without its counterpart; fix it, then run again"
        )
    return text.rstrip("\n") + "\n"


def makefile_for_students(text: str) -> str:
    """Return the Makefile with the students' targets alone."""
    text = _MAKE_STUDENTS.sub(r"\1", _COURSE_LINES.sub("", text))
    targets = set(_TARGET.findall(text))

    def kept(found: re.Match[str]) -> str:
        return ".PHONY: " + " ".join(name for name in found[1].split() if name in targets)

    return _PHONY.sub(kept, text)


def pictures(text: str, path: str) -> set[str]:
    """Return the pictures that a page shows, as paths in the repository."""
    return {_place(path, target) for mark, _, target in _LINK.findall(text) if mark}


def with_links(text: str, path: str, present: Collection[str]) -> str:
    """Return a page in which links to files outside the release are plain text."""
    folders = {str(parent) for name in present for parent in PurePosixPath(name).parents[:-1]}

    def linked(found: re.Match[str]) -> str:
        if found["code"]:
            return found[0]
        mark, words, target = found.groups()[1:]
        if ":" in target or target.startswith("#"):
            return found[0]
        place = _place(path, target)
        if place in present or place in folders:
            return found[0]
        if mark:
            return ""
        return f"{words} (comes later)" if _PROBLEM.match(place + "/") else words

    return _CODE_OR_LINK.sub(linked, text)


def with_commands(text: str, problems: Sequence[str]) -> str:
    """Return a page whose commands name released problems: an early one in place of a later one.

    `make trace` names a problem that it can trace; without one its row in a table is removed.
    """
    traced = [name for name in problems if name in TRACED]
    text = text if traced else _TRACE_ROW.sub("", text)

    def changed(command: re.Match[str]) -> str:
        there = traced if "make trace" in command[0] else problems
        return _named(command[0], there or problems)

    return _COMMAND.sub(changed, text)


def with_cause(text: str, problems: Sequence[str], index: str) -> str:
    """Return a page or a Makefile in which each `ID=` is a cause of a released problem.

    `index` is the page that lists the causes, by problem.
    """
    section = index.partition(f"\n## {_early(problems)}, ")[2]
    id = _CAUSE.search(section)
    for named, problem in set(_ID.findall(text)) if id else ():
        if problem.lower() not in problems:
            text = text.replace(named, f"{_early(problems).upper()}-{id[1]}")
    return text


def with_examples(makefile: str, problems: Sequence[str]) -> str:
    """Return a Makefile whose help names released problems, and a case that they have."""
    traced = [name for name in problems if name in TRACED]

    def of_trace(line: re.Match[str]) -> str:
        return _named(line[0], traced) if traced else line[0].partition(": P=")[0]

    changed = _MAKE_TRACE.sub(of_trace, makefile)
    if changed != makefile:
        changed = _CASE.sub(lambda case: _CASE_OF_ALL.ljust(len(case[0])), changed)
    return _named(changed, problems)


def _named(commands: str, problems: Sequence[str]) -> str:
    """Return commands that name these problems, and one of their cases where a problem changed."""

    def named(found: re.Match[str]) -> str:
        there = [name for name in found[2].split(",") if name in problems] or [_early(problems)]
        return found[1] + ",".join(there).ljust(len(found[2]) if found[3] else 0) + found[3]

    changed = _NAMED.sub(named, commands)
    return changed if changed == commands else _CASE.sub(_CASE_OF_ALL, changed)


def _early(problems: Sequence[str]) -> str:
    """Return the second of the problems, or the only one, as an example."""
    return problems[min(1, len(problems) - 1)]


def with_table(
    text: str, problems: Sequence[str], later: Sequence[str], more: Sequence[str] = ()
) -> str:
    """Return the README with the rows of these problems, and below them a line on later ones."""
    rows = list(_ROW.finditer(text))
    if not rows:
        return text
    shown = "".join(row[0] for row in rows if row[1] in problems)
    comes = f"{spoken(later)} {'come' if len(later) > 1 else 'comes'} later" if later else ""
    lines = [f"{comes}; the pages in [docs](docs) speak of all."] if later else []
    lines += more
    below = "".join(f"\n{line}\n" for line in lines)
    return text[: rows[0].start()] + shown + below + text[rows[-1].end() :]


def with_start(text: str, usual: Problem, first: Problem) -> str:
    """Return the README that says to start with `first`, where `usual` is not handed out."""
    for of, here in (
        (f"problems/{usual.id}/{usual.file}", f"problems/{first.id}/{first.file}"),
        (f"({usual.steps[0].title})", f"({first.steps[0].title})"),
        (usual.id, first.id),
    ):
        text = text.replace(of, here)
    return text


def spoken(names: Sequence[str]) -> str:
    """Return "p01", "p01 and p02", "p01, p02 and p04", and "p03 to p09" for a row of them."""
    numbers = [int(name[1:]) for name in names]
    if len(names) > 2 and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{names[0]} to {names[-1]}"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _place(path: str, target: str) -> str:
    plain = target.partition("#")[0]
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), plain)) if plain else path
