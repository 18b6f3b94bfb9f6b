"""The record as JUnit XML: a test suite per problem, a test case per check.

Source: the schema of Jenkins' xUnit plugin, junit-10.xsd, which GitLab and others read as well. The
schema has no points: those of a problem are properties of its suite.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree

from grader.base.text import clean, finite, points
from grader.report.message import (
    HEADLINE_LIMIT,
    ID_LIMIT,
    NAME_LIMIT,
    cause_of,
    causes,
    headline_of,
    message_lines,
)
from grader.spec.grade_record import COMPONENTS, CheckResult, GradeRecord, ProblemResult, Verdict

WIDTH = 100
# A wrong answer is a failure; a call that raised, crashed or timed out is an error.
OUTCOMES = {
    Verdict.PASS: None,
    Verdict.FAIL: "failure",
    Verdict.REJECTED: "failure",
    Verdict.NOT_IMPLEMENTED: "failure",
    Verdict.ERROR: "error",
    Verdict.TIMEOUT: "error",
    Verdict.CRASH: "error",
    Verdict.OUT_OF_MEMORY: "error",
    Verdict.INTERNAL: "error",
    Verdict.SKIPPED: "skipped",
    Verdict.NOT_MEASURED: "skipped",
}
_COUNTED = {"failures": "failure", "errors": "error", "skipped": "skipped"}
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(record: GradeRecord) -> str:
    """Return the record as XML text with a declaration."""
    root = ElementTree.Element("testsuites", name="grader", time=_time(record.duration_s))
    total: Counter[str] = Counter()
    for problem in record.problems:
        suite, counts = _suite(record, problem)
        root.append(suite)
        total += counts
    root.set("tests", str(total["tests"]))
    for name in ("failures", "errors"):
        root.set(name, str(total[_COUNTED[name]]))
    ElementTree.indent(root, " ")
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _suite(record: GradeRecord, problem: ProblemResult) -> tuple[ElementTree.Element, Counter[str]]:
    suite = ElementTree.Element("testsuite", name=_legal(clean(problem.id, ID_LIMIT)))
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (
        ("title", clean(problem.title)),
        ("verdict", str(problem.verdict)),
        ("bonus", str(problem.bonus).lower()),
        ("points.earned", points(problem.points.earned)),
        ("points.available", points(problem.points.available)),
        ("points.possible", points(problem.points.possible)),
        ("mode", record.mode),
        ("interrupted", str(record.interrupted).lower()),
        ("seed", clean(record.seed, NAME_LIMIT)),
    ):
        ElementTree.SubElement(properties, "property", name=name, value=_legal(value))
    cases = [*_of_file(problem), *(_of_check(problem, check) for check in problem.checks)]
    for name in COMPONENTS:
        component = problem.components.get(name)
        # The checks stand for correctness; a component worth no points was not measured.
        if component is None:
            cases.append(_case(problem, name, Verdict.INTERNAL, "missing in the record"))
        elif name != "correctness" and component.points.possible:
            cases.append(_case(problem, name, component.verdict, component.reason or ""))
    suite.extend(cases)
    counts = Counter(element.tag for case in cases for element in case)
    counts["tests"] = len(cases)
    suite.set("tests", str(len(cases)))
    for name, tag in _COUNTED.items():
        suite.set(name, str(counts[tag]))
    suite.set("time", _time(problem.duration_s))
    return suite, counts


def _of_file(problem: ProblemResult) -> list[ElementTree.Element]:
    """Return a case for a failure of the whole file, if one kept all checks from running."""
    if problem.message is None:
        return []
    lines = [clean(problem.message.headline, HEADLINE_LIMIT)]
    for cause in causes(problem)[:1]:
        if cause.message is problem.message:
            lines = message_lines(problem.id, cause, WIDTH)
    return [_case(problem, "file", problem.verdict, problem.message.headline, lines)]


def _of_check(problem: ProblemResult, check: CheckResult) -> ElementTree.Element:
    headline, lines = "", []
    if check.verdict in (Verdict.SKIPPED, Verdict.NOT_MEASURED):
        headline = check.message.headline if check.message else check.title
    elif check.verdict is not Verdict.PASS:
        cause = cause_of(problem, [check])
        headline, lines = headline_of(cause), message_lines(problem.id, cause, WIDTH)
    return _case(problem, check.id, check.verdict, headline, lines, check.duration_s)


def _case(
    problem: ProblemResult,
    name: str,
    verdict: Verdict,
    headline: str,
    lines: Sequence[str] = (),
    seconds: float = 0.0,
) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        classname=_legal(clean(problem.id, ID_LIMIT)),
        name=_legal(clean(name, NAME_LIMIT)),
        time=_time(seconds),
    )
    tag = OUTCOMES[verdict]
    if tag is not None:
        message = _legal(clean(headline, HEADLINE_LIMIT))
        outcome = ElementTree.SubElement(case, tag, type=str(verdict), message=message)
        if lines:
            outcome.text = _legal("\n".join(["", *lines, ""]))
    return case


def _time(seconds: float) -> str:
    return f"{max(finite(seconds) or 0.0, 0.0):.3f}"


def _legal(text: str) -> str:
    """Return `text` without the characters that XML cannot hold, escaped or not."""
    return _ILLEGAL.sub("", text)
