"""The workflow for GitHub's Actions, with the course's repository filled in."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

TEMPLATE = Path(__file__).with_name("templates") / "grade.yml"
PATH = PurePosixPath(".github/workflows/grade.yml")
_JUDGE, _REF = "COURSE/ASSIGNMENT", "main"


def workflow(judge: str, ref: str) -> str:
    """Return the workflow that grades with the judge of repository `judge` at `ref`."""
    text = TEMPLATE.read_text(encoding="utf-8")
    for old, new in (
        (f"repository: {_JUDGE}\n", f'repository: "{judge}"\n'),
        (f"ref: {_REF}\n", f'ref: "{ref}"\n'),
    ):
        assert text.count(old) == 2, old
        text = text.replace(old, new)
    return text
