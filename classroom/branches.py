"""A bare git repository with a branch for each student, as `grader submit --to` fills it."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from classroom.records import CourseError, utc
from grader.source.intake.entries import shown

# As much as an archive of one submission may hold, and as many files.
_MAX_BYTES, _MAX_FILES = 32 * 2**20, 10_000
_PUSHED = re.compile(rb" ([0-9]{1,12}) [+-][0-9]{4}\t")


def is_repository(folder: Path) -> bool:
    """Whether a folder is a bare repository."""
    inside = (folder / "objects").is_dir() and (folder / "refs").is_dir()
    return inside and (folder / "HEAD").is_file()


def branches(repository: Path, work: Path) -> Iterator[tuple[str, Path, str | None]]:
    """Give each branch: its name, an archive of its last commit in `work`, and when it was pushed.

    The time, in UTC, is that of the repository's own log; None where it keeps none. What a commit
    says of its time is its author's. Of what no archive may hold, the archive is an empty file.

    Raises:
        CourseError: git cannot read the repository.
    """
    listed = _git(repository, "for-each-ref", "--format=%(objectname) %(refname)", "refs/heads/")
    for number, line in enumerate(listed.decode().splitlines()):
        commit, _, ref = line.partition(" ")
        path = work / f"branch-{number}.tar"
        tree = _git(repository, "ls-tree", "-r", "-l", "-z", commit).split(b"\0")[:-1]
        sizes = [entry.split(b"\t")[0].split()[3] for entry in tree]
        total = sum(int(size) for size in sizes if size.isdigit())
        if total > _MAX_BYTES or len(sizes) > _MAX_FILES:
            path.touch()
        else:
            _git(repository, "archive", "--format=tar", f"--output={path}", commit)
        yield ref.removeprefix("refs/heads/"), path, _pushed_at(repository / "logs" / ref)


def _pushed_at(log: Path) -> str | None:
    try:
        last = log.read_bytes().splitlines()[-1]
    except (OSError, IndexError):
        return None
    found = _PUSHED.search(last)
    return utc(f"{datetime.datetime.fromtimestamp(int(found[1]), datetime.UTC)}") if found else None


def _git(repository: Path, *words: str) -> bytes:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        run = subprocess.run(
            ["git", "--git-dir", str(repository), *words], capture_output=True, env=kept
        )
    except FileNotFoundError:
        raise CourseError("SOURCE: got a git repository, but no git to read it with") from None
    if run.returncode:
        said = run.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise CourseError(f"SOURCE: {shown(repository.name)}: git {words[0]}: {said[0]}")
    return run.stdout
