"""Says that one file was saved, replaced, moved or deleted.

The folder is watched, not the file: editors replace files. watchdog rings; what decides is whether
the file's state differs from the one that was graded last. Times are compared for being the same
and never for being later, so that a clock that jumps hides no save. A slow look beside it finds
what no event told of: a folder that was replaced, an event queue that ran over.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from watchdog.events import (
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.polling import PollingObserver

POLL_S = 0.5
_WRITES = [
    FileClosedEvent, FileCreatedEvent, FileDeletedEvent, FileModifiedEvent, FileMovedEvent
]  # fmt: skip
# File systems on which others than this machine write, or that tell of no change.
_REMOTE = re.compile(
    r"nfs\d?|cifs|smb\d?|smbfs|9p|afs|ceph|lustre|gpfs|beegfs|glusterfs|gfs2?|ocfs2|drvfs|vboxsf"
    r"|prl_fs|vmhgfs|virtiofs|fuse(blk)?(\..+)?|fakeowner|osxfs"
)

State = tuple[int, ...] | None  # None: there is no such file


class _Rings(FileSystemEventHandler):
    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring

    def on_any_event(self, event: FileSystemEvent) -> None:
        self._ring()


class Saves:
    """Watches `path`, whose folder may come and go; `ring` is called from another thread."""

    def __init__(self, path: Path, ring: Callable[[], None], *, polls: bool) -> None:
        self._path = path
        self._ring = ring
        self.polls = polls
        self._observer: Observer | PollingObserver | None = None  # type: ignore[valid-type]
        self._folder: State = None
        self._taken: State = None
        self.trouble: str | None = None  # why nothing rings, to be told once

    def state(self) -> State:
        """Return what identifies the file as it is now."""
        return _state(self._path)

    def take(self) -> State:
        """Take the present state for graded."""
        self._taken = self.state()
        return self._taken

    def changed(self) -> bool:
        """Whether the file is not as it was taken; watches a folder that was replaced anew."""
        self._follow_folder()
        return self.state() != self._taken

    def close(self) -> None:
        """End the watching threads."""
        observer, self._observer, self._folder = self._observer, None, None
        if observer is not None:
            observer.stop()
            with contextlib.suppress(RuntimeError):  # it was never started
                observer.join(5.0)

    def _follow_folder(self) -> None:
        folder = _identity(self._path.parent)
        if folder == self._folder:
            return
        self.close()
        if folder is None:
            return
        kind = PollingObserver if self.polls else Observer
        self._observer = kind(timeout=POLL_S) if self.polls else kind()
        try:
            self._observer.schedule(
                _Rings(self._ring), str(self._path.parent), event_filter=_WRITES
            )
            self._observer.start()
        except FileNotFoundError:  # gone again
            self.close()
            return
        except OSError as error:  # as many watches as a user may have: the slow look goes on
            self.close()
            if self.trouble is None:
                self.trouble = f"{error.strerror}: looking at the file once a second instead"
        self._folder = folder


def _state(path: Path) -> State:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    times = found.st_mtime_ns, found.st_ctime_ns
    return found.st_dev, found.st_ino, found.st_mode, found.st_size, *times


def _identity(path: Path) -> State:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def file_system(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type of the file system that holds a folder, "" where that is not known.

    Source: proc_pid_mountinfo(5). Of several mounts on one place the last counts.
    """
    best, found = "", ""
    target = os.path.realpath(path)
    try:
        lines = mounts.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        fields, _, rest = line.partition(" - ")
        parts = fields.split(" ")
        if len(parts) < 5 or not rest:
            continue
        place = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), parts[4])
        inside = target == place or target.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, found = place, rest.split(" ")[0]
    return found


def is_remote(kind: str) -> bool:
    """Whether saves on a file system of this type may be made where no event tells of them."""
    return _REMOTE.fullmatch(kind) is not None
