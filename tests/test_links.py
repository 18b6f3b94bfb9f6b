"""Links and paths of the pages lead somewhere."""

import ast
import importlib.util
import re
import tomllib

import pytest

from grader.spec.problem import ROOT
from tests.test_handouts import FENCE, PROBLEMS, documents

# What a course or a grading makes, and this repository has not.
OF_A_COURSE = {
    ".cache/history.jsonl", "cases/p02-1", "case.json", "slurm.toml", "kubernetes.toml",
    "course.toml", "regrade.md", "actions/checkout", "DIR/.github/workflows", "reports/ID.html",
    "reports/ID.txt", "judge/.venv/bin/grader", "autograder.py", "results.json",
    "compare/p04/s1042.py",
}  # fmt: skip


@pytest.mark.parametrize("path", list(documents()), ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(path):
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#\s]+)", re.sub(r"`[^`\n]+`", "", text)):
        if "://" not in target:
            assert (path.parent / target).exists(), target
    for code in re.findall(r"`([^`\n]+)`", text):
        if re.fullmatch(r"[\w./-]+\.(py|toml|md|json)|[\w.-]+/[\w./-]*", code):
            places = (path.parent / code, ROOT / code, PROBLEMS / "p01" / code)
            own = "pNN" in code or code in OF_A_COURSE
            assert own or any(place.exists() for place in places), f"{code} does not exist"


def test_the_plan_of_the_house_is_true():
    """docs/architecture.md: the rooms of the contract, as they say themselves, and true paths."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    rooms = [room.replace(".", "/") for room in contract["contracts"][0]["layers"]]
    rows = dict(re.findall(r"^\| `([\w/.]+)` \| (.+) \|$", text, re.MULTILINE))
    assert [path.removesuffix(".py") for path in rows] == rooms
    for path, what in rows.items():
        file = ROOT / path if path.endswith(".py") else ROOT / path / "__init__.py"
        assert ast.get_docstring(ast.parse(file.read_text("utf-8"))).split("\n")[0] == what, path
    roots = "grader|classroom|tests|problems|tools|reference|docs"
    for path in re.findall(rf"`((?:{roots})/[\w/.*]+)`", text):
        assert list(ROOT.glob(path)), path
    for module in re.findall(r"`python -m ([\w.]+)", text):
        assert importlib.util.find_spec(module), module
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"`make (\w+)", text):
        assert f"\n{target}:" in makefile, target
    assert len(list((ROOT / "grader").glob("*.py"))) <= 4
