"""Commands of GitHub's Actions: a golden, places, and text that cannot become a command."""

import re

import pytest

from grader.report.annotations import render, without_commands
from grader.report.terminal import render as report_of
from tests.exports import NAMES, evil, record

COMMAND = re.compile(r"::(error|warning) ((?:(?:file|line|title)=[^,:\r\n]*,?)+)::([^\r\n]*)")


def read(text):
    """Each annotation as GitHub reads it: level, properties, message."""
    found = []
    for line in text.splitlines():
        level, properties, message = COMMAND.fullmatch(line).groups()
        pairs = dict(pair.split("=", 1) for pair in properties.split(","))
        found.append((level, {k: unescape(v) for k, v in pairs.items()}, unescape(message)))
    return found


def unescape(text):
    for code, char in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, char)
    return text


def test_the_commands_are_as_they_were_read_and_approved(snapshot):
    names = ("mixed", "an exception with output", "not implemented", "against the source policy")
    assert "".join(render(record(name), "submission") for name in names) == snapshot


@pytest.mark.parametrize("name", NAMES)
def test_every_problem_that_is_wrong_has_an_annotation(name):
    graded = record(name)
    found = read(render(graded, "submission"))
    titles = " ".join(properties["title"] + text for _, properties, text in found)
    for problem in graded.problems:
        wrong = problem.verdict not in ("pass", "not-measured", "skipped")
        assert not wrong or re.search(rf"\b{problem.id}\b", titles)
    for _, properties, _ in found:
        path = properties.get("file")
        assert path is None or re.fullmatch(r"submission/p\d\d/\w+\.py", path)
        assert properties.get("line", "1").isdigit()
    assert [level for level, _, _ in found] == sorted(level for level, _, _ in found)


@pytest.mark.parametrize(
    ("folder", "path"),
    [(".", "p02/"), ("a/b", "a/b/p02/"), ("../x", "../x/p02/"), ("/s", "/s/p02/")],
)
def test_a_path_leads_from_the_working_directory_to_the_file(folder, path):
    for name in ("a known mistake", "against the source policy"):
        (level, properties, _) = read(render(record(name), folder))[0]
        assert (level, properties["file"]) == ("error", f"{path}weighted_row_sum.py")
    assert properties["line"] == "1"


def test_text_of_a_submission_starts_no_command():
    text = render(evil(), "a,b:c%0A\n::error::x")
    found = read(text)  # every line is one annotation, whole
    assert len(found) > 3
    assert all(set(properties) <= {"file", "line", "title"} for _, properties, _ in found)
    assert not re.search(r"[^\n\x20-\x7e\u00a1-\ud7ff\ue000-\U0010ffff]", text)


def test_nothing_in_the_report_is_a_command():
    report = report_of(evil())
    first, *inside, last = without_commands(report, "5eed").splitlines()
    assert (first, last) == ("::stop-commands::5eed", "::5eed::")
    assert inside == report.splitlines()
