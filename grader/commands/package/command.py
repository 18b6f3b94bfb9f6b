"""`python -m grader package`: writes what a course platform needs to run the judge.

Gradescope's autograder has the judge in it; GitHub gets a workflow. Source: "Autograder
Specifications" and "Troubleshooting" (limits), read on 2026-11-23:
https://gradescope-autograders.readthedocs.io/en/latest/specs/
"""

from __future__ import annotations

import argparse
import re
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from grader.base import stdout
from grader.base.options import Command
from grader.commands.options import UsageError, expect_place, writing
from grader.source.intake import zips
from grader.spec.problem import GIVEN, PROBLEMS, ROOT, problem_ids, problems_named

TEMPLATES = Path(__file__).with_name("templates")
# Gradescope stops an autograder after 10 minutes by default, and after 40 at the most.
DEFAULT_MINUTES = 10
MAX_MINUTES = 40
_SCRIPTS = ("setup.sh", "run_autograder")


def autograder_zip(
    problem_ids: Sequence[str], all_ids: Sequence[str], *, official: bool, minutes: int
) -> bytes:
    """Return the bytes of the autograder for these problems, the same for the same checkout.

    Gradescope stops a grading after `minutes`; `official` requires a jail, without which nothing
    is graded.
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
    return zips.packed(dict(sorted(files.items())), _SCRIPTS, method=zipfile.ZIP_DEFLATED)


_PACKAGES = (ROOT / "grader", ROOT / "reference", GIVEN)
_SINGLE = ("LICENSE", "pyproject.toml", "requirements.txt", "requirements.lock")


def judge_files(problem_ids: Sequence[str]) -> dict[str, bytes]:
    """Return the files, by path below ROOT, with which the judge grades these problems.

    Stubs, answers, tests of the judge, handouts and pages are left out.
    """
    paths = [ROOT / name for name in _SINGLE]
    for package in _PACKAGES:  # without the files that Python and editors leave there
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


def workflow(judge: str, commit: str, called: str = "") -> str:
    """Return the workflow that grades with the judge of repository `judge` at `commit`.

    `called` is the branch or tag that named the commit; a comment shows it to readers.
    """
    repository = f"repository: {_JUDGE}\n", f'repository: "{judge}"\n'
    at = f'ref: "{commit}"{called and f" # {called}"}\n'  # quoted: a hash may look like a number
    return _filled("grade.yml", 2, repository, (f"ref: {_REF}\n", at))


def revision(ref: str) -> str:
    """Return the hash of the commit that `ref` names here; a whole hash is returned unchecked.

    Raises:
        UsageError: this checkout knows no such commit.
    """
    if re.fullmatch("[0-9a-f]{40}([0-9a-f]{24})?", ref):
        return ref
    try:
        found = subprocess.run(
            ["git", "-C", ROOT, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip()
    except OSError:  # no git
        found = ""
    if not found:
        raise UsageError(
            f"--ref: got {ref!r}, which this checkout does not know as a branch, tag or commit;"
            " expected one that it knows, or a commit's whole hash: a branch could bring other code"
            " to every repository at any time, so the workflow names a commit"
        )
    return found


def _filled(template: str, count: int, *replaced: tuple[str, str]) -> str:
    """Return a template with texts replaced, each of which must occur `count` times."""
    text = (TEMPLATES / template).read_text(encoding="utf-8")
    for old, new in replaced:
        assert text.count(old) == count, old
        text = text.replace(old, new)
    return text


HELP = "write what a course platform needs to grade"


def run(options: argparse.Namespace) -> int:
    """Write the files of a platform and say where they are; return 0."""
    if not TEMPLATES.is_dir():
        raise UsageError("package: got the students' release, expected the course's checkout")
    return COMMANDS[options.inner].run(options)


def _write(path: Path, data: bytes) -> int:
    with writing(path, "--output"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    size = -(-len(data) // 1024)
    stdout.write(f"wrote {path} ({size} KiB); what to do with it is in docs/ci.md\n")
    return 0


def _gradescope(options: argparse.Namespace) -> int:
    wanted, most = problems_named(options.only), MAX_MINUTES
    if not 2 <= options.minutes <= most:
        raise UsageError(f"--minutes: got {options.minutes}, expected 2 to {most}")
    how = {"official": options.official, "minutes": options.minutes}
    expect_place(options.output, "--output")
    return _write(options.output, autograder_zip(wanted, problem_ids(), **how))


def _github(options: argparse.Namespace) -> int:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}", options.judge):
        raise UsageError(f"--judge: got {options.judge!r}, expected OWNER/REPO")
    # A subset of git's names without characters special to YAML or GitHub's expressions.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,200}", options.ref):
        raise UsageError(f"--ref: got {options.ref!r}, expected a branch, a tag or a commit")
    commit = revision(options.ref)
    called = "" if options.ref in (commit, "HEAD") else options.ref
    if not options.output.is_dir():
        raise UsageError(f"--output: got {options.output}, which is not a folder")
    code = _write(options.output / WORKFLOW, workflow(options.judge, commit, called).encode())
    stdout.write(f"the judge is commit {commit}: push it to {options.judge} first\n")
    return code


ALL: Mapping[str, str] = {}
COMMANDS = {
    "gradescope": Command(
        "write Gradescope's autograder as a zip",
        _gradescope,
        {
            "--output FILE=autograder.zip": "",
            "--only p01,p02": "grade these problems (default: all)",
            "--official": "in a jail; where none can be made grade nothing",
            f"--minutes N={DEFAULT_MINUTES}": "the container's timeout, as it is set on"
            " Gradescope (default: %(default)s)",
        },
    ),
    "github": Command(
        "write a workflow for GitHub's Actions",
        _github,
        {
            "--output DIR!": "the students' repository",
            "--judge OWNER/REPO!": "the repository that has this judge",
            "--ref REF=HEAD": "its commit, or a branch or tag of this checkout (default: HEAD)",
        },
    ),
}
