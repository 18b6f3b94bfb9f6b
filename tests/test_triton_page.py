"""Triton on a page: every function that a step needs is there, and the messages are Triton's."""

import json
import re
import subprocess
import sys

import pytest

from grader.source.steps import step_regions
from grader.spec.problem import ROOT, load_problem, problem_ids
from tests.harness import model_answer
from tests.steps import handout

PAGE = (ROOT / "docs" / "triton-on-a-page.md").read_text("utf-8")
TYPES = {"tl.constexpr", "tl.float16", "tl.int32"}


def functions_of(text):
    """The functions of Triton's language in a text, and the conversions."""
    return set(re.findall(r"\btl\.[a-z]\w*", text)) - TYPES


@pytest.mark.parametrize("problem", [load_problem(id) for id in problem_ids()], ids=problem_ids())
def test_a_step_names_the_functions_that_it_needs(problem):
    """Some other right answer may need others; those of the model answer are enough."""
    answer = model_answer(problem.id)
    lines, steps = answer.split("\n"), re.split(r"^### Step ", handout(problem), flags=re.MULTILINE)
    for number, (first, last) in step_regions(answer).items():
        needed = functions_of("\n".join(lines[first : last - 1]))
        assert needed <= functions_of(steps[number]), f"step {number} needs {sorted(needed)}"


def test_the_page_of_the_language_has_every_function_that_a_step_needs():
    needed = {name for id in problem_ids() for name in functions_of(handout(load_problem(id)))}
    assert needed <= functions_of(PAGE)


def test_the_messages_of_the_page_are_those_of_triton():
    command = [sys.executable, "-W", "ignore", "-m", "tests.raw_messages"]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, check=True)
    told = [text for text, _ in filter(None, json.loads(done.stdout).values())]
    rows = re.findall(r"^\| `([^`]+)` \|", PAGE.split("## Ten messages")[1], re.MULTILINE)
    assert len(rows) == 10
    for row in rows:
        assert any(row in text for text in told), row
