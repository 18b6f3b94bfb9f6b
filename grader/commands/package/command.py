"""`python -m grader package`: writes what a course platform needs to run the judge."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from grader.base import stdout
from grader.commands.options import expect_place, writing
from grader.commands.package import platforms
from grader.spec.problem import ManifestError, problem_ids, problems_named

HELP = "write what a course platform needs to grade"


class PackageError(ManifestError):
    """An option that cannot be used; the message names it, got and expected."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the platforms and their options."""
    commands = parser.add_subparsers(required=True, metavar="PLATFORM", dest="platform")
    zipped = commands.add_parser("gradescope", help="write Gradescope's autograder as a zip")
    zipped.add_argument("--output", type=Path, default=Path("autograder.zip"), metavar="FILE")
    zipped.add_argument("--only", metavar="p01,p02", help="grade these problems (default: all)")
    zipped.add_argument(
        "--official", action="store_true", help="in a jail; where none can be made grade nothing"
    )
    zipped.add_argument(
        "--minutes",
        type=int,
        default=platforms.DEFAULT_MINUTES,
        metavar="N",
        help="the container's timeout, as it is set on Gradescope"
        f" (default: {platforms.DEFAULT_MINUTES})",
    )
    flow = commands.add_parser("github", help="write a workflow for GitHub's Actions")
    flow.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="the students' repository"
    )
    flow.add_argument(
        "--judge", required=True, metavar="OWNER/REPO", help="the repository that has this judge"
    )
    flow.add_argument("--ref", default="main", help="its branch, tag or commit (default: main)")


def run(options: argparse.Namespace) -> int:
    """Write the files of a platform and say where they are; return 0.

    Raises:
        PackageError: an option cannot be used.
        EnvironmentFault: a file cannot be written.
    """
    if not platforms.TEMPLATES.is_dir():
        raise PackageError("package: got the students' release, expected the course's checkout")
    if options.platform == "gradescope":
        path, data = options.output, _gradescope(options)
        expect_place(path, "--output")
    else:
        path, data = options.output / platforms.WORKFLOW, _github(options)
        if not options.output.is_dir():
            raise PackageError(f"--output: got {options.output}, which is not a folder")
    with writing(path, "--output"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    size = -(-len(data) // 1024)
    stdout.write(f"wrote {path} ({size} KiB); what to do with it is in docs/ci.md\n")
    return 0


def _gradescope(options: argparse.Namespace) -> bytes:
    wanted = problems_named(options.only)
    if not 2 <= options.minutes <= platforms.MAX_MINUTES:
        raise PackageError(
            f"--minutes: got {options.minutes}, expected 2 to {platforms.MAX_MINUTES}"
        )
    return platforms.autograder_zip(
        wanted, problem_ids(), official=options.official, minutes=options.minutes
    )


def _github(options: argparse.Namespace) -> bytes:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}", options.judge):
        raise PackageError(f"--judge: got {options.judge!r}, expected OWNER/REPO")
    # What git allows in a name, and nothing that YAML or an expression of GitHub's would read.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,200}", options.ref):
        raise PackageError(f"--ref: got {options.ref!r}, expected a branch, a tag or a commit")
    return platforms.workflow(options.judge, options.ref).encode()
