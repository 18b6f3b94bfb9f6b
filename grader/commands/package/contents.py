"""What a judge consists of when it is handed on: what grades, and nothing that tells answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from grader.spec.problem import GIVEN, PROBLEMS, ROOT

_PACKAGES = (ROOT / "grader", ROOT / "reference", GIVEN)
_SINGLE = ("LICENSE", "pyproject.toml", "requirements.txt", "requirements.lock")


def judge_files(problem_ids: Sequence[str]) -> dict[str, bytes]:
    """Return the judge's files by their names below its root, for grading these problems.

    No stubs, answers, tests of the judge, handouts and pages.
    """
    paths = [ROOT / name for name in _SINGLE]
    for package in _PACKAGES:
        paths += _modules(package)
    for id in problem_ids:
        paths += [PROBLEMS / id / "problem.toml", PROBLEMS / id / f"test_{id}.py"]
    return {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in paths}


def _modules(package: Path) -> Iterator[Path]:
    """Yield the files of a package, but for what Python and editors leave there."""
    for path in sorted(package.rglob("*")):
        parts = path.relative_to(package).parts
        hidden = any(part.startswith((".", "__pycache__")) for part in parts)
        if path.is_file() and not hidden and not path.is_symlink():
            yield path
