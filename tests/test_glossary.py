"""docs/glossary.md: sorted, complete for what the judge prints, and of the handouts' symbols."""

import dataclasses
import re
import typing

import pytest

from grader.report import terminal, tiles
from grader.spec import cases
from grader.spec.grade_record import TileMap, Verdict
from grader.spec.problem import PROBLEMS, ROOT

TEXT = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
FIELD, REPORTS = SECTIONS["Words of the field"], SECTIONS["Words of reports and of problem.toml"]
ENTRY = re.compile(r"^- \*\*([^*]+)\*\*: (.+(?:\n  .+)*)", re.MULTILINE)
ROW = re.compile(r"^\| (.*?) ?\| (.+?) \| .+? \| .+? \| (p\d\d) \|$", re.MULTILINE)


def terms(section):
    """Every word that an entry of a section explains; one entry may explain several."""
    return [word for term, _ in ENTRY.findall(section) for word in term.split(", ")]


def handout(problem):
    return (PROBLEMS / problem / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("section", (FIELD, REPORTS), ids=("field", "reports"))
def test_entries_are_sorted_and_short(section):
    found = [term.casefold() for term, _ in ENTRY.findall(section)]
    keys = [re.sub(r"[^a-z0-9]+", " ", term) for term in found]
    assert keys == sorted(keys) and len(set(found)) == len(found) > 50
    assert section.count("\n- ") == len(found), "a line is no entry"
    for term, text in ENTRY.findall(section):
        assert 2 <= len(text.split()) <= 60, term


CHOICES = {
    "values": cases.Values,
    "layout": cases.Layout,
    "dout_layout": cases.Layout,
    "sink_logits_values": typing.Literal["normal", "neg_inf", "half"],
    "dtype": cases.Dtype,
}


def test_these_are_all_the_choices_of_a_case():
    words = {
        name.replace("dtypes", "dtype")
        for name, field in cases.CaseTable.model_fields.items()
        if "Literal[" in str(field.annotation)
    }
    assert words == set(CHOICES)
    values = cases.CaseTable.model_fields["sink_logits_values"].annotation
    assert set(typing.get_args(typing.get_args(values)[0])) == {"normal", "neg_inf", "half"}


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, kind in CHOICES.items() for value in typing.get_args(kind)],
)
def test_every_value_of_a_case_has_an_entry(field, value):
    usual = cases.Case()
    case = dataclasses.replace(usual, sink_logits=field == "sink_logits_values", **{field: value})
    printed = [word for word in case.words if word not in usual.words]
    default = value if field == "dtype" else f"{field}={value}"
    for word in printed or [default]:
        assert word.removeprefix("dout_") in terms(REPORTS)


def test_every_verdict_column_and_letter_has_an_entry():
    known = set(terms(REPORTS))
    for verdict in Verdict:
        assert verdict in known or terminal.VERDICT_WORDS[verdict] in known, verdict
    assert {"work", "spread", "naive"} <= known & set(terminal.MEASURED)
    assert {"compiled", "programs", "dout_layout"} <= known
    for letter, word in tiles.WORDS.items():
        assert f"`{letter}`" in REPORTS, word
    assert set(tiles.WORDS) == set("#/ox!2") and TileMap.WASTED == "o"


def test_every_label_of_a_message_has_an_entry():
    source = (ROOT / "grader" / "report" / "message.py").read_text(encoding="utf-8")
    labels = re.findall(r'^        \("(\w+)", ', source, re.MULTILINE)
    assert len(labels) == 11
    source = (ROOT / "grader" / "report" / "state.py").read_text(encoding="utf-8")
    labels += re.findall(r'\[?\("(state|line)", ', source)
    assert len(labels) == 13
    assert set(labels) - {"input"} <= set(terms(REPORTS))


def rows():
    """Formula symbols, names in the code and problem of every row of the table."""
    found = []
    for formulas, names, problem in ROW.findall(SECTIONS["Symbols"]):
        symbols = re.findall(r"\$([^$]+)\$", formulas)
        found.append((symbols, re.findall(r"`(\w+)`", names), problem))
    return found


def test_the_table_is_read_to_its_end():
    assert len(rows()) == SECTIONS["Symbols"].count("\n| ") - 1 > 30


@pytest.mark.parametrize(("symbols", "names", "problem"), rows(), ids=lambda cell: str(cell))
def test_every_symbol_occurs_in_its_handout(symbols, names, problem):
    text = handout(problem)
    formulas = " ".join(re.findall(r"\$\$?([^$]+)\$", text))
    written = [s for s in symbols if re.search(rf"(?<![A-Za-z\\]){re.escape(s)}", formulas)]
    coded = [name for name in names if re.search(rf"\b{name}\b", text)]
    assert written or coded, f"{symbols} {names}"


def test_rows_stand_in_the_order_of_the_problems():
    problems = [problem for *_, problem in rows()]
    assert problems == sorted(problems)
