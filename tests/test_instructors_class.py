"""docs/instructors.md, what comes out of a class: its commands run, its figures are the code's."""

import contextlib
import io
import re
import shlex
import tomllib

import pytest

from classroom import outputs, similar
from classroom.grades import Policy, read_policy
from classroom.store import Store
from grader.commands import cli
from grader.spec.problem import ROOT, load_problem, problem_ids
from tests.class_commands import give, students
from tests.whole_class import full

PAGE = (ROOT / "docs" / "instructors.md").read_text(encoding="utf-8")
TITLES = {
    "Read the results": [0, 0],
    "Regrade and publish": [0, 0, 0, 0, 0, 0, 0],
    "What is stored, for how long, and how to delete it": [1, 0],
}


def section(title):
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def words_of(title):
    return " ".join(section(title).split())


def blocks(title, language=""):
    return re.findall(rf"^```{language}\n(.*?)^```", section(title), re.M | re.S)


def grader(words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        return cli.main(words), out.getvalue()


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A class as on the page, where the commands of the page find it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fall").mkdir()
    with Store(tmp_path / "fall" / "class.db") as store:
        students(store, "s1042", "s1043")
        give(store, "s1042", full("p04"))
        give(store, "s1043", full("p04"))
    (csv,) = (block for block in blocks("Read the results") if block.startswith("id,pseudonym"))
    (tmp_path / "optins.csv").write_text(csv)
    return tmp_path / "fall"


@pytest.mark.parametrize("title", TITLES)
def test_the_commands_run(course, title):
    found = re.findall(r"^python -m grader (.+)$", section(title), re.MULTILINE)
    codes = [grader(shlex.split(line))[0] for line in found]
    assert codes == TITLES[title]


def test_the_files_are_those_that_are_written(course):
    grader(["class", "report", "--course", "fall", "--leaderboard", "optins.csv"])
    listed = re.findall(r"^\| `([^`]+)` \|", section("Read the results"), re.MULTILINE)
    for name in listed:
        assert (course / name.replace("ID", "s1042")).is_file(), name
    assert {name for name in listed if "/" not in name} == {
        p.name for p in outputs.about_all(course)
    }
    assert "Turbo" in (course / "leaderboard.html").read_text()
    text = words_of("Regrade and publish")
    assert outputs.CANVAS in text and outputs.MOODLE in text


def test_the_figures_are_those_of_the_code():
    text = words_of("Near-identical submissions")
    assert f"at least {100 * similar.NEAR_SHARE:g} % of either file's own code" in text
    assert f"at least {100 * similar.RENAMED_SHARE:g} % if names do not count" in text
    stated = " ".join(similar.__doc__.split())
    assert "90 % (p04) to 100 %" in stated and "90 % (p04) to 100 %" in text
    assert "more than 0.49" in stated and "more than 0.84" in stated
    assert "p02's aside, share at most 49 % with names and 84 % without" in text
    steps = {p: sum(step.lines for step in load_problem(p).steps) for p in problem_ids()}
    assert {p for p, lines in steps.items() if lines < similar.MIN_LINES} == {"p02", "p05"}
    assert f"p02 and p05 have fewer than {similar.MIN_LINES} lines" in text
    trust = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
    assert "32 % (p01)" in trust and "p01 and p02 by up to 32 %" in words_of("Read the results")


def test_the_policy_for_late_days_is_one(tmp_path):
    (policy,) = blocks("Regrade and publish", "toml")
    (tmp_path / "course.toml").write_text(policy)
    read = read_policy(tmp_path)
    assert (read.free_late_days, read.percent_per_day, read.last_day) == (1, 10, 7)
    assert set(tomllib.loads(policy)) == set(Policy.model_fields)


def test_forget_does_what_is_said(course):
    grader(["class", "report", "--course", "fall"])
    grader(["class", "publish", "--course", "fall", "--author", "kim"])
    lines = re.findall(r"^python -m grader (.+ forget .+)$", PAGE, re.MULTILINE)
    _, would = grader(shlex.split(lines[0]))
    _, done = grader(shlex.split(lines[1]))
    for name in ("reports/s1042.html", "class.html", "similar.html", outputs.CANVAS):
        assert name in would and name in done and not (course / name).exists()
    assert (course / "reports" / "s1043.html").exists()
    assert b"s1042" not in (course / "class.db").read_bytes()
