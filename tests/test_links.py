"""Links and paths of the pages lead somewhere."""

import re

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
