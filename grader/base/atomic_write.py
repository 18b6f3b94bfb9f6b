"""Writes files in one step."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write `text` as UTF-8, so that a reader never sees half of it and a failure leaves the old.

    Raises:
        OSError: it cannot be written.
    """
    write_whole_bytes(path, text.encode("utf-8"))


def write_whole_bytes(path: Path, data: bytes) -> None:
    """Write `data` as `write_whole` writes text.

    Raises:
        OSError: it cannot be written; `filename` is `path`.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()  # where it was not moved, after Ctrl-C too
