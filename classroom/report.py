"""`grader class report`: pages about the class, about each student, and what looks alike."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

from classroom import leaderboard, outputs, similar, student_report
from classroom.figures import summarize
from classroom.folder import open_class
from classroom.grades import Standing, Status, read_policy, read_standing
from classroom.pages import page
from classroom.publish import changes_since
from classroom.similar import RUN
from classroom.store import Store
from classroom.student_report import Graded
from grader.base import stdout
from grader.base.atomic_write import write_whole
from grader.base.options import Command
from grader.base.text import clean, plural, wrap
from grader.spec.problem import load_problem

_MOST = 8  # rows of a table; a screen's worth
_MOST_PAIRS, _MOST_LINES = 100, 200  # of a problem that are shown line by line; of a file
_WORDS = {
    Status.GRADED: "graded",
    Status.OVERRIDDEN: "overridden",
    Status.REFUSED: "refused",
    Status.NOT_HANDED_IN: "not handed in",
    Status.FAULT: "held up by a fault",
    Status.PENDING: "not graded yet",
}


def _report(options: argparse.Namespace) -> int:
    """Write the reports, show what was written; return 0.

    Raises:
        CourseError: there is no class, or the file of --leaderboard cannot be used.
        OSError: a file cannot be written.
        ImportError: a package is missing.
    """
    course: Path = options.course
    with open_class(course) as store:
        standing = read_standing(store, read_policy(course))
        chosen = options.leaderboard
        pseudonyms = leaderboard.read_optins(chosen, standing) if chosen else None
        found = list(_similar(store, standing))
        last = store.last_publication()
        differing = len(changes_since(last, standing).changes) if last else None
    write_whole(course / outputs.CLASS_PAGE, class_page(summarize(standing)))
    count = _students(course, standing)
    names = {student.id: student.name for student in standing.students}
    write_whole(course / outputs.SIMILAR_PAGE, _similar_page(found, names))
    groups, pairs = sum(len(f.identical) for f in found), sum(len(f.pairs) for f in found)
    written = [
        f"{outputs.CLASS_PAGE}: what came out of the class, without names",
        f"{outputs.REPORTS}/: reports of {count} students, a page and a text each",
        f"{outputs.SIMILAR_PAGE}: {groups} groups of identical files, {pairs} pairs alike",
    ]
    if pseudonyms is not None:
        boards = leaderboard.boards(standing, pseudonyms)
        write_whole(course / outputs.LEADERBOARD_PAGE, page("leaderboard.html", boards=boards))
        written.append(f"{outputs.LEADERBOARD_PAGE}: {len(pseudonyms)} pseudonyms")
    stdout.show(_render, course, written, differing)
    return 0


def _students(course: Path, standing: Standing) -> int:
    """Write the reports of all students, delete those of nobody; return of how many there are."""
    outputs.reports_folder(course)
    for student in standing.students:
        places = [(student.id, problem) for problem in standing.problems]
        graded = [Graded(standing.grades[p], standing.result(*p)) for p in places]
        html, text = outputs.report_files(course, student.id)
        write_whole(html, student_report.render_page(student, graded))
        write_whole(text, student_report.render_text(student, graded))
    for path in outputs.stale_reports(course, (s.id for s in standing.students)):
        path.unlink(missing_ok=True)
    return len(standing.students)


def _similar(store: Store, standing: Standing) -> Iterator[similar.Found]:
    """Compare the files of each problem.

    Raises:
        ImportError: what compares them is not installed.
    """
    for problem in standing.problems:
        owners: dict[str, list[str]] = {}
        for student, hand_in in standing.hand_ins.items():
            if problem in hand_in.files:
                owners.setdefault(hand_in.files[problem], []).append(student)
        if owners:
            data = {sha256: store.data(sha256) for sha256 in owners}
            yield similar.find(load_problem(problem), owners, data)


def class_page(summary: SimpleNamespace) -> str:
    """Return the page about a class as HTML, without names."""
    return page("class.html", summary=summary, most=_MOST, refused=Status.REFUSED, statuses=_WORDS)


def _similar_page(found: Sequence[similar.Found], names: Mapping[str, str]) -> str:
    """Return the page about near-identical submissions; `names` has what students are called."""

    def who(copy: similar.Copy) -> list[str]:
        owners = [f"{names[id]} ({id})" if names.get(id) else id for id in copy.students]
        return ["the model answer"] * copy.is_model + owners

    return page(
        "similar.html",
        found=found,
        who=who,
        most=_MOST_PAIRS,
        most_lines=_MOST_LINES,
        near=similar.NEAR_SHARE,
        renamed=similar.RENAMED_SHARE,
        min_lines=similar.MIN_LINES,
        run=RUN,
    )


def _render(
    course: Path,
    written: Sequence[str],
    differing: int | None,
    *,
    width: int = 80,
    color: bool = False,
) -> str:
    """Return what was written into the folder of a course, and whether its grades are published.

    `differing` grades are not those of the last publication; None says that there was none.
    """
    rows = [f"written to {clean(course, 200)}:", *(f"  {clean(text)}" for text in written)]
    if differing is None:
        rows.append("note: these grades are not published; grader class publish does it")
    elif differing:
        are = "is not as it was" if differing == 1 else "are not as they were"
        rows.append(f"note: {plural(differing, 'grade')} {are} published; see grader class diff")
    return "".join(f"{line}\n" for row in rows for line in wrap(row, width, "", "    "))


REPORT = Command(
    "write class.html, a report per student, and similar.html",
    _report,
    {"--leaderboard CSV": "write leaderboard.html too, of those in this file: id,pseudonym"},
)
