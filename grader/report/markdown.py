"""The summary of a record as Markdown, for the page that a CI shows about a run.

The dialect is GitHub's. Text of a submission appears only in code spans and fences, in which no
link, image, mention or HTML is recognised; all other text is escaped.
"""

from __future__ import annotations

import re

from grader.base.text import clean, plural
from grader.report import score
from grader.report.kernels import chip_lines
from grader.report.message import (
    HEADLINE_LIMIT,
    ID_LIMIT,
    NAME_LIMIT,
    headline_of,
    message_lines,
)
from grader.spec.grade_record import COMPONENTS, GradeRecord, ProblemResult

WIDTH = 100
_HEADER = ("problem", "verdict", *COMPONENTS, "points")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# Characters of emphasis, code, links, images, tables, mathematics, mentions and addresses.
_MARKUP = re.compile(r"[\\`*_{}\[\]#+!|~^$@]|:(?=\S)|(?<=www)\.")
# A marker of a list, a rule or an underlined heading at the start of a line.
_MARKER = re.compile(r"^(?:(?=[-=])|\d+(?=[.)](?: |$)))")


def render(record: GradeRecord) -> str:
    """Return the totals, a table of problems, the losses with reasons, and a section per error."""
    blocks = [
        "# Grade",
        "  \n".join(f"**{line}**" for line in score.sum_lines(record)),
        "\n".join(_table(record)),
        "\n".join(_notes(record)),
        *(block for problem in record.problems for block in _sections(problem)),
        "## Run",
        "\n".join(_setting(record)),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def escape(text: str, limit: int = 300) -> str:
    """Return `text` as one line that Markdown shows as it is."""
    shown = _MARKUP.sub(lambda match: "\\" + match[0], clean(text, limit))
    shown = _MARKER.sub(r"\g<0>\\", shown)
    return "".join(_ENTITIES.get(char, char) for char in shown)


def code(text: str, limit: int = 300) -> str:
    """Return `text` as a code span of one line; it may hold backticks."""
    shown = clean(text, limit)
    if not shown:
        return ""
    ticks = "`" * (_longest_run(shown) + 1)
    blank = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{ticks}{blank}{shown}{blank}{ticks}"


def fenced(lines: list[str]) -> str:
    """Return cleaned lines as a block of code that no line in it can close."""
    ticks = "`" * max(3, *(_longest_run(line) + 1 for line in lines))
    return "\n".join([f"{ticks}text", *lines, ticks])


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def _table(record: GradeRecord) -> list[str]:
    if not record.problems:
        return ["no problem was graded"]
    lines = [_row(_HEADER), _row(["---", "---"] + ["---:"] * (len(COMPONENTS) + 1))]
    for problem in record.problems:
        bonus = " (bonus)" if problem.bonus else ""
        name = f"{escape(problem.id, ID_LIMIT)} {escape(problem.title, 60)}{bonus}"
        parts = [score.component_cell(problem.components.get(part)) for part in COMPONENTS]
        lines.append(_row([name, str(problem.verdict), *parts, score.fraction(problem.points)]))
    return lines


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _notes(record: GradeRecord) -> list[str]:
    notes = [score.INTERRUPTED] if record.interrupted else []
    lost = ", ".join(escape(id, ID_LIMIT) for id in score.faults(record))
    if lost:
        notes.append(f"\\! {score.FAULT} ({lost})")
    notes += [f"\\- {escape(reason, 400)}" for reason in score.gaps(record)]
    for problem in record.problems:
        for name, reason in score.losses(problem).items():
            notes.append(f"{escape(problem.id, ID_LIMIT)} {name}: {escape(reason)}")
        for line in [*([problem.unseen] if problem.unseen else []), *chip_lines(problem)]:
            notes.append(f"{escape(problem.id, ID_LIMIT)}: {escape(line, 400)}")
    return [f"- {note}" for note in notes]


def _sections(problem: ProblemResult) -> list[str]:
    shown, rest = score.shown_causes(problem)
    blocks = []
    for cause in shown:
        heading = f"## {escape(cause.label, 60)}: {code(headline_of(cause), HEADLINE_LIMIT)}"
        blocks += [heading, fenced(message_lines(problem.id, cause, WIDTH))]
    if rest:
        names = ", ".join(code(check, NAME_LIMIT) for check in rest)
        id = escape(problem.id, ID_LIMIT)
        blocks.append(f"{id}: and {plural(len(rest), 'more check')}: {names}")
    return blocks


def _setting(record: GradeRecord) -> list[str]:
    seed, submission = code(record.seed, NAME_LIMIT), code(record.submission, 60)
    lines = [score.mode(record), f"seed {seed}, submission {submission}"]
    lines.append(escape(", ".join(score.machine(record.environment))))
    lines += [escape(note) for note in record.environment.notes]
    return [f"- {line}" for line in lines]
