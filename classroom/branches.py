"""Reads a bare git repository with a branch for each student, as `grader submit --to` fills it."""

from __future__ import annotations

import datetime
import io
import os
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from classroom.records import CourseError, utc
from grader.source.intake.entries import shown

# The limits of an archive of one submission.
_MAX_BYTES, _MAX_FILES = 32 * 2**20, 10_000
_MAX_LISTING = 8 * 2**20  # bytes of `git ls-tree`'s output
_PUSHED = re.compile(rb" ([0-9]{1,12}) [+-][0-9]{4}\t")


def is_repository(folder: Path) -> bool:
    """Whether a folder is a bare repository."""
    inside = (folder / "objects").is_dir() and (folder / "refs").is_dir()
    return inside and (folder / "HEAD").is_file()


def branches(repository: Path, work: Path) -> Iterator[tuple[str, Path, str | None]]:
    """Give each branch: its name, an archive of its last commit in `work`, and its time of push.

    The time, in UTC, is from the repository's own log, None if there is none: a commit's time is
    its author's choice. The archive of a commit beyond the limits is an empty file.

    Raises:
        CourseError: git cannot read the repository.
    """
    listed = _git(repository, "for-each-ref", "--format=%(objectname) %(refname)", "refs/heads/")
    for number, line in enumerate(listed.decode().splitlines()):
        commit, _, ref = line.partition(" ")
        path = work / f"branch-{number}.tar"
        path.touch()
        files = _files(repository, commit)
        sizes = [facts.split()[3] for facts, _ in files]
        if files and sum(int(size) for size in sizes if size.isdigit()) <= _MAX_BYTES:
            _pack(repository, files, path)
        yield ref.removeprefix("refs/heads/"), path, _pushed_at(repository / "logs" / ref)


def _files(repository: Path, commit: str) -> list[tuple[bytes, bytes]]:
    """Return ls-tree's facts about each file, and its name; nothing where there are too many.

    A few trees that contain each other many times list more names than any disk can hold.
    """
    command = ["git", "--git-dir", str(repository), "ls-tree", "-r", "-l", "-z", commit]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=_environment()) as listing:
        assert listing.stdout is not None
        said = listing.stdout.read(_MAX_LISTING)
        listing.kill()
    files = said.split(b"\0")[:-1]
    if len(said) >= _MAX_LISTING or len(files) > _MAX_FILES:
        return []
    return [(facts, name) for facts, _, name in (file.partition(b"\t") for file in files)]


def _pack(repository: Path, files: list[tuple[bytes, bytes]], path: Path) -> None:
    """Write a tar of `files`, byte for byte: `git archive` would obey .gitattributes.

    That file is the student's, and could expand placeholders in others without limit.
    """
    blobs = [(*facts.split()[:3], name) for facts, name in files if facts.split()[1] == b"blob"]
    said = _git(repository, "cat-file", "--batch", stdin=b"".join(b"%s\n" % b[2] for b in blobs))
    with tarfile.open(path, "w") as tar, io.BytesIO(said) as stream:
        for mode, _, _, name in blobs:
            data = stream.read(int(stream.readline().split()[2]))
            stream.read(1)
            entry = tarfile.TarInfo(os.fsdecode(name))
            if mode == b"120000":
                entry.type, entry.linkname = tarfile.SYMTYPE, os.fsdecode(data)
            else:
                entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def _pushed_at(log: Path) -> str | None:
    try:
        last = log.read_bytes().splitlines()[-1]
    except (OSError, IndexError):
        return None
    found = _PUSHED.search(last)
    return utc(f"{datetime.datetime.fromtimestamp(int(found[1]), datetime.UTC)}") if found else None


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}


def _git(repository: Path, *words: str, stdin: bytes = b"") -> bytes:
    try:
        run = subprocess.run(
            ["git", "--git-dir", str(repository), *words],
            input=stdin,
            capture_output=True,
            env=_environment(),
        )
    except FileNotFoundError:
        raise CourseError("SOURCE: got a git repository, but no git to read it with") from None
    if run.returncode:
        said = run.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise CourseError(f"SOURCE: {shown(repository.name)}: git {words[0]}: {said[0]}")
    return run.stdout
