"""Opens files that others have made: no link is followed, and no pipe or device is read."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence
from typing import BinaryIO

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW


def open_regular(path: str | os.PathLike[str], folder: int | None = None) -> BinaryIO:
    """Open a file that is no link, pipe or device; `folder` is the descriptor of the one it is in.

    Raises:
        OSError: it cannot be opened, or is something else.
    """
    descriptor = os.open(path, _FILE, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "got something else than a regular file")
    return os.fdopen(descriptor, "rb")


def open_below(folder: int, parts: Sequence[str]) -> BinaryIO:
    """Open the regular file at the path `parts` below `folder`; no part of it may be a link.

    Raises:
        OSError: it cannot be opened. For a link `errno` is ELOOP and `filename` is its name.
    """
    with contextlib.ExitStack() as stack:
        for part in parts[:-1]:
            try:
                below = os.open(part, FOLDER, dir_fd=folder)
            except NotADirectoryError:  # Linux raises this for a link to a folder, too
                if stat.S_ISLNK(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode):
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), part) from None
                raise
            stack.callback(os.close, below)
            folder = below
        return open_regular(parts[-1], folder)
