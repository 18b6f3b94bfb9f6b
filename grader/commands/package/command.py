"""`python -m grader package`: writes what a course platform needs to run the judge."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

from grader.base import stdout
from grader.base.options import Command
from grader.commands.options import expect_place, writing
from grader.commands.package import platforms
from grader.spec.problem import ManifestError, problem_ids, problems_named

HELP = "write what a course platform needs to grade"


class PackageError(ManifestError):
    """An option that cannot be used; the message names it, got and expected."""


def run(options: argparse.Namespace) -> int:
    """Write the files of a platform and say where they are; return 0.

    Raises:
        PackageError: an option cannot be used.
        EnvironmentFault: a file cannot be written.
    """
    if not platforms.TEMPLATES.is_dir():
        raise PackageError("package: got the students' release, expected the course's checkout")
    return COMMANDS[options.inner].run(options)


def _write(path: Path, data: bytes) -> int:
    with writing(path, "--output"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    size = -(-len(data) // 1024)
    stdout.write(f"wrote {path} ({size} KiB); what to do with it is in docs/ci.md\n")
    return 0


def _gradescope(options: argparse.Namespace) -> int:
    wanted, most = problems_named(options.only), platforms.MAX_MINUTES
    if not 2 <= options.minutes <= most:
        raise PackageError(f"--minutes: got {options.minutes}, expected 2 to {most}")
    how = {"official": options.official, "minutes": options.minutes}
    expect_place(options.output, "--output")
    return _write(options.output, platforms.autograder_zip(wanted, problem_ids(), **how))


def _github(options: argparse.Namespace) -> int:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}", options.judge):
        raise PackageError(f"--judge: got {options.judge!r}, expected OWNER/REPO")
    # What git allows in a name, and nothing that YAML or an expression of GitHub's would read.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,200}", options.ref):
        raise PackageError(f"--ref: got {options.ref!r}, expected a branch, a tag or a commit")
    if not options.output.is_dir():
        raise PackageError(f"--output: got {options.output}, which is not a folder")
    made = platforms.workflow(options.judge, options.ref).encode()
    return _write(options.output / platforms.WORKFLOW, made)


ALL: Mapping[str, str] = {}
COMMANDS = {
    "gradescope": Command(
        "write Gradescope's autograder as a zip",
        _gradescope,
        {
            "--output FILE=autograder.zip": "",
            "--only p01,p02": "grade these problems (default: all)",
            "--official": "in a jail; where none can be made grade nothing",
            f"--minutes N={platforms.DEFAULT_MINUTES}": "the container's timeout, as it is set on"
            " Gradescope (default: %(default)s)",
        },
    ),
    "github": Command(
        "write a workflow for GitHub's Actions",
        _github,
        {
            "--output DIR!": "the students' repository",
            "--judge OWNER/REPO!": "the repository that has this judge",
            "--ref REF=main": "its branch, tag or commit (default: main)",
        },
    ),
}
