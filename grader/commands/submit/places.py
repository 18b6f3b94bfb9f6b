"""Hands an archive in where a course has no platform: a shared folder, or a git repository.

A folder holds NAME.zip for each student, a repository a branch NAME; `class collect` reads both.
"""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from grader.base.atomic_write import write_whole_bytes
from grader.commands.options import UsageError
from grader.spec.environment import EnvironmentFault

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@+-]{0,98}[A-Za-z0-9])?")
_REMOTE = re.compile(r"[a-z+]+://|[^/]+@[^/]+:|[^/@:]+:[^/\\]")  # a URL, or ssh's host:path
_GIT_S = 300.0


def expect(place: str, name: str | None) -> None:
    """Refuse a place or a name that cannot be used.

    Raises:
        UsageError: the place does not exist, or the name is missing or malformed.
    """
    if name is None:
        raise UsageError(
            "--name: got nothing, expected your id or login as the course has it:"
            f" make submit TO={place} NAME=id"
        )
    if not _NAME.fullmatch(name) or ".." in name or name.endswith(".lock"):
        raise UsageError(
            f"--name: got {name!r}, expected an id or login: letters, digits, . _ @ + -"
        )
    if not Path(place).expanduser().is_dir() and not _REMOTE.match(place):
        raise UsageError(
            f"--to: got {place}, expected a folder that is there or the address of a git repository"
        )


def hand_in(place: str, name: str, archive: bytes, files: Mapping[str, bytes]) -> list[str]:
    """Hand in `archive` to a folder, or `files` to a repository; return lines that say so.

    Raises:
        EnvironmentFault: the place cannot be reached or written, or has another user's hand-in.
    """
    folder = Path(place).expanduser()
    if not folder.is_dir():
        return _pushed(place, name, files)
    if (folder / "HEAD").exists() or (folder / ".git").exists():
        return _pushed(str(folder.absolute()), name, files)
    return _written(folder, name, archive)


def _written(folder: Path, name: str, archive: bytes) -> list[str]:
    path = folder / f"{name}.zip"
    said = []
    try:
        before = path.lstat() if os.path.lexists(path) else None
        if before is not None:
            if before.st_uid != os.geteuid():
                raise EnvironmentFault(
                    f"--to: {path} is of another account: is {name} yours? If so, ask your"
                    " instructor; nothing was written"
                )
            at = datetime.datetime.fromtimestamp(before.st_mtime).astimezone()
            said = [f"replaces your hand-in of {at:%Y-%m-%d %H:%M %Z}"]
        write_whole_bytes(path, archive)
        path.chmod(0o640)
        if path.read_bytes() != archive:
            raise EnvironmentFault(f"--to: {path}: what can be read back differs; submit again")
    except OSError as error:
        raise EnvironmentFault(
            f"--to: cannot write {path}: {error.strerror}; the folder must let you write"
            " (`ls -ld` shows it): ask your instructor"
        ) from None
    return [f"handed in as {path}", *said]


def _pushed(remote: str, name: str, files: Mapping[str, bytes]) -> list[str]:
    """Push a commit with exactly these files on top of the branch, whose history stays."""
    branch = f"refs/heads/{name}"
    with tempfile.TemporaryDirectory() as folder:
        _git(folder, "init", "--quiet", "--bare")
        there = _git(folder, "ls-remote", remote, branch, what=f"cannot reach {remote}").split()
        parent = [there[0]] if there else []
        if parent:
            _git(folder, "fetch", "--quiet", "--depth=1", remote, branch, what="cannot read it")
        for path, data in files.items():
            blob = _git(folder, "hash-object", "-w", "--stdin", data=data)
            _git(folder, "update-index", "--add", "--cacheinfo", f"100644,{blob},{path}")
        tree = _git(folder, "write-tree")
        if parent and _git(folder, "rev-parse", f"{parent[0]}^{{tree}}") == tree:
            return [f"branch {name} of {remote} has just these files already"]
        before = [word for commit in parent for word in ("-p", commit)]
        commit = _git(folder, "commit-tree", tree, "-m", "Hand in", *before, name=name)
        _git(folder, "push", "--quiet", remote, f"{commit}:{branch}", what=f"cannot push {name}")
        now = _git(folder, "ls-remote", remote, branch).split()
    if now[:1] != [commit]:
        raise EnvironmentFault(
            f"--to: {remote}: branch {name} is not what was pushed; submit again"
        )
    said = f"on top of your hand-in {parent[0][:12]}" if parent else "the first on this branch"
    return [f"handed in as commit {commit[:12]} on branch {name} of {remote}", said]


def _git(
    folder: str, *words: str, data: bytes | None = None, name: str = "submit", what: str = "git"
) -> str:
    """Run git on the repository `folder`, without the student's GIT_ variables."""
    ours = ("GIT_SSH", "GIT_SSL", "GIT_ASKPASS", "GIT_TERMINAL")  # how to reach a server
    kept = {n: v for n, v in os.environ.items() if not n.startswith("GIT_") or n.startswith(ours)}
    who = dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), name)
    who |= dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), f"{name}@submit.invalid")
    try:
        run = subprocess.run(
            ["git", "--git-dir", folder, *words],
            input=data,
            capture_output=True,
            env=kept | who,
            timeout=_GIT_S,
        )
    except FileNotFoundError:
        raise EnvironmentFault("--to: got no git, which hands in to a repository") from None
    except subprocess.TimeoutExpired:
        raise EnvironmentFault(f"--to: {what}: no answer in {_GIT_S:.0f} s; try again") from None
    if run.returncode:
        lines = [line.strip() for line in run.stderr.decode(errors="replace").splitlines()]
        words = [
            line for line in lines if re.match("ssh|fatal|error|.*(denied|reject)", line)
        ] or lines
        said = "; ".join(words[:2])[:300] or f"exit code {run.returncode}"
        raise EnvironmentFault(f"--to: {what}: {said}; nothing was handed in")
    return run.stdout.decode().strip()
