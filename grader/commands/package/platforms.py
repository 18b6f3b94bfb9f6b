"""What platforms run: Gradescope's autograder with the judge in it, a workflow for GitHub.

Source: "Autograder Specifications" and "Troubleshooting" (limits), read on 2026-11-23:
https://gradescope-autograders.readthedocs.io/en/latest/specs/
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from grader.spec.problem import GIVEN, PROBLEMS, ROOT

TEMPLATES = Path(__file__).with_name("templates")
# Gradescope's own: it stops an autograder after 10 minutes, or up to 40 where the course says so.
DEFAULT_MINUTES = 10
MAX_MINUTES = 40
_SCRIPTS = ("setup.sh", "run_autograder")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same files make the same zip


def autograder_zip(
    problem_ids: Sequence[str], all_ids: Sequence[str], *, official: bool, minutes: int
) -> bytes:
    """Return the zip, which grades these problems, as bytes that depend on nothing else.

    `minutes` is when Gradescope stops a grading; `official` asks for a jail, and grades nothing
    where none can be made.
    """
    files = judge_files(all_ids)
    files["setup.sh"] = (TEMPLATES / "setup.sh").read_bytes()
    only = () if tuple(problem_ids) == tuple(all_ids) else ("--only", ",".join(problem_ids))
    options = (*(["--official"] if official else []), *only)
    files["run_autograder"] = _filled(
        "run_autograder",
        1,
        (f"minutes={DEFAULT_MINUTES}\n", f"minutes={minutes}\n"),
        ("options=()\n", f"options=({' '.join(options)})\n"),
    ).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name in _SCRIPTS else 0o100644) << 16
            entry.create_system = 3  # Unix: else the mode is not read
            archive.writestr(entry, data)
    return buffer.getvalue()


_PACKAGES = (ROOT / "grader", ROOT / "reference", GIVEN)
_SINGLE = ("LICENSE", "pyproject.toml", "requirements.txt", "requirements.lock")


def judge_files(problem_ids: Sequence[str]) -> dict[str, bytes]:
    """Return the judge's files by their names below its root, for grading these problems.

    No stubs, answers, tests of the judge, handouts and pages.
    """
    paths = [ROOT / name for name in _SINGLE]
    for package in _PACKAGES:  # but for what Python and editors leave there
        for path in sorted(package.rglob("*")):
            parts = path.relative_to(package).parts
            hidden = any(part.startswith((".", "__pycache__")) for part in parts)
            if path.is_file() and not hidden and not path.is_symlink():
                paths.append(path)
    for id in problem_ids:
        paths += [PROBLEMS / id / "problem.toml", PROBLEMS / id / f"test_{id}.py"]
    return {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in paths}


WORKFLOW = PurePosixPath(".github/workflows/grade.yml")
_JUDGE, _REF = "COURSE/ASSIGNMENT", "main"


def workflow(judge: str, ref: str) -> str:
    """Return the workflow that grades with the judge of repository `judge` at `ref`."""
    repository = f"repository: {_JUDGE}\n", f'repository: "{judge}"\n'
    return _filled("grade.yml", 2, repository, (f"ref: {_REF}\n", f'ref: "{ref}"\n'))


def _filled(template: str, count: int, *replaced: tuple[str, str]) -> str:
    """Return a template in which each text, there `count` times, is replaced."""
    text = (TEMPLATES / template).read_text(encoding="utf-8")
    for old, new in replaced:
        assert text.count(old) == count, old
        text = text.replace(old, new)
    return text
