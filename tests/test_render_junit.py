"""JUnit XML: a golden, Jenkins' schema and what it leaves open, points, and hostile text."""

import functools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import xmlschema

from grader.report.junit import OUTCOMES, render
from grader.spec.grade_record import Verdict
from tests.exports import NAMES, evil, record

SCHEMA = Path(__file__).with_name("schemas") / "junit-10.xsd"


@functools.cache
def schema():
    return xmlschema.XMLSchema(SCHEMA)


def parsed(text):
    """The tree of a text that fits the schema and whose counts are right."""
    root = ElementTree.fromstring(text)
    assert root.tag == "testsuites"
    schema().validate(text)
    for element in root.iter():
        if "time" in element.attrib:
            assert re.fullmatch(r"[0-9]+\.[0-9]{3}", element.get("time"))
    for suite in root:
        cases = suite.findall("testcase")
        assert int(suite.get("tests")) == len(cases)
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(name)) == len(suite.findall(f"testcase/{tag}"))
        assert all(len(case) <= 1 for case in cases)
    for name in ("tests", "failures", "errors"):
        assert int(root.get(name)) == sum(int(suite.get(name)) for suite in root)
    return root


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('errors="', 'mistakes="'),
        ("<failure", "<wrong"),
        ('name="seed"', 'nam="seed"'),
        (' time="', ' time="-'),
    ],
)
def test_the_schema_refuses_what_is_not_junit(old, new):
    text = render(record("a known mistake"))
    assert old in text and schema().is_valid(text)
    broken = re.sub(f"(</?){old[1:]}", rf"\1{new[1:]}", text) if old[0] == "<" else None
    assert not schema().is_valid(broken or text.replace(old, new))


def settled(text):
    return re.sub(r'time="\d+\.\d+"', 'time="N"', text)


def test_the_file_is_as_it_was_read_and_approved(snapshot):
    assert settled(render(record("mixed"))) == snapshot


@pytest.mark.parametrize("name", NAMES)
def test_points_of_the_suites_add_up_to_the_totals(name):
    graded, root = record(name), parsed(render(record(name)))
    for part, bonus in ((graded.totals, "false"), (graded.bonus, "true")):
        for kind in ("earned", "available", "possible"):
            values = [{p.get("name"): p.get("value") for p in suite[0]} for suite in root]
            points = [float(v[f"points.{kind}"]) for v in values if v["bonus"] == bonus]
            assert sum(points) == pytest.approx(getattr(part, kind))


@pytest.mark.parametrize("name", NAMES)
def test_a_suite_is_red_where_an_answer_is_wrong_and_only_there(name):
    graded, root = record(name), parsed(render(record(name)))
    assert [suite.get("name") for suite in root] == [problem.id for problem in graded.problems]
    for suite, problem in zip(root, graded.problems, strict=True):
        names = [case.get("name") for case in suite.findall("testcase")]
        assert len(set(names)) == len(names)
        assert set(names) >= {check.id for check in problem.checks}
        red = int(suite.get("failures")) + int(suite.get("errors"))
        assert bool(red) is (problem.verdict not in ("pass", "skipped", "not-measured"))
        faults = suite.findall("testcase/error[@type='internal']")
        assert bool(faults) is (problem.verdict is Verdict.INTERNAL)


def test_a_component_that_is_missing_is_a_fault_of_the_judge():
    whole = record("measured on a GPU")
    (problem,) = (p for p in whole.problems if p.id == "p03")
    for name in problem.components:
        parts = {other: part for other, part in problem.components.items() if other != name}
        problems = (problem.model_copy(update={"components": parts}),)
        root = parsed(render(whole.model_copy(update={"problems": problems})))
        assert [case.get("name") for case in root.iterfind(".//error/..")] == [name]


def test_an_unfinished_grading_says_so():
    for name in ("interrupted", "mixed"):
        said = {
            p.get("value")
            for p in parsed(render(record(name))).iterfind(".//*[@name='interrupted']")
        }
        assert said == {str(name == "interrupted").lower()}


def test_every_verdict_has_an_outcome():
    assert set(OUTCOMES) == set(Verdict)


def test_text_of_a_submission_stays_text():
    text = render(evil())
    root = parsed(text)
    assert len(root) == 1 and len(root[0].findall("testcase")) == 8
    assert "<script>" not in text and "&lt;script&gt;" in text
    assert not re.search(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", text)
