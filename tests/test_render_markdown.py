"""The summary for a CI: a golden, totals, and text that cannot become markup."""

import re

import pytest
from markdown_it import MarkdownIt

from grader.report.markdown import code, escape, fenced, render
from tests.exports import EVIL, NAMES, evil, record

PARSER = MarkdownIt("commonmark").enable("table")
HARMLESS = {
    "heading", "paragraph", "table", "thead", "tbody", "tr", "th", "td", "bullet_list",
    "list_item", "inline", "fence",
}  # fmt: skip
HARMLESS_INLINE = {"text", "code_inline", "strong", "hardbreak", "softbreak"}


def kinds(tokens):
    return {re.sub(r"_(open|close)$", "", token.type) for token in tokens}


def test_the_summary_is_as_it_was_read_and_approved(snapshot):
    assert render(record("mixed")) == snapshot


@pytest.mark.parametrize("name", NAMES)
def test_points_of_the_table_add_up_to_the_totals(name):
    graded, text = record(name), render(record(name))
    for part, label in ((graded.totals, "required"), (graded.bonus, "bonus")):
        rows = re.findall(r"^\| (p\d\d .*) \|$", text, re.MULTILINE)
        rows = [row.split(" | ") for row in rows if ("(bonus)" in row) is (label == "bonus")]
        shown = [row[-1].split("/") for row in rows if row[-1] != "-"]
        assert sum(float(earned) for earned, _ in shown) == pytest.approx(part.earned)
        assert sum(float(available) for _, available in shown) == pytest.approx(part.available)
        if part.possible:
            assert f"**{label} {part.earned:g} of {part.available:g} points" in text


@pytest.mark.parametrize("name", NAMES)
def test_every_problem_has_a_row_and_what_went_wrong_is_told(name):
    graded, text = record(name), render(record(name))
    for problem in graded.problems:
        assert len(re.findall(rf"^\| {problem.id} ", text, re.MULTILINE)) == 1
        if problem.verdict in ("fail", "error", "rejected", "internal"):
            lost = rf"{problem.id.upper()}-|\n- {problem.id} (speed|memory): "
            assert re.search(lost, text)
    assert ("fault of the judge" in text) is any(p.verdict == "internal" for p in graded.problems)
    assert ("interrupted" in text) is graded.interrupted
    assert f"mode {graded.mode}" in text


def test_text_of_a_submission_is_no_markup():
    text = render(evil())
    tokens = PARSER.parse(text)
    assert kinds(tokens) <= HARMLESS
    inline = [child for token in tokens for child in token.children or ()]
    assert kinds(inline) <= HARMLESS_INLINE
    headings = [t.tag for t in tokens if t.type == "heading_open"]
    assert headings == ["h1", "h2", "h2", "h2", "h2"]  # three causes are told
    rows = [token for token in tokens if token.type == "tr_open"]
    cells = [token for token in tokens if token.type == "td_open"]
    assert (len(rows), len(cells)) == (2, 7)
    said = "".join(token.content for token in inline if token.type == "text")
    assert "<script>" in said  # shown as it is
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e\ufffe\ud800]", text)


@pytest.mark.parametrize("text", [EVIL, "`", "``a", "a`", "|a|", "# a", "1. a", "- a", "==="])
def test_escaped_text_is_read_back_as_it_was(text):
    for made in (escape(text), f"- {escape(text)}", code(text)):
        inline = [child for token in PARSER.parse(made) for child in token.children or ()]
        assert kinds(inline) <= HARMLESS_INLINE
        shown = "".join(child.content for child in inline)
        assert "".join(shown.split()) in "".join(text.split()) or text == EVIL
        assert shown


def test_addresses_are_not_made_links():
    assert escape("see https://e.x and www.e.x") == r"see https\://e.x and www\.e.x"


def test_no_line_closes_a_fence():
    tokens = PARSER.parse(fenced(["a", "```", "`````` x", "b"]))
    assert [token.type for token in tokens] == ["fence"]
