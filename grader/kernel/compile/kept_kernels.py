"""Keeps the figures of kernels that were compiled, by their text and by what Triton made of them.

A text that is the same, in the same line, is not read again. A line that is added to a file moves
all kernels below it, and a comment changes the text of one. What the front end makes of a kernel,
without the lines that it comes from, is then what it was, and so is all that follows from it, but
for the lines of its dots: those are kept beside the figures.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

MOST = 512  # some thirty versions of the kernels of a problem, half a KiB each, twice


@dataclasses.dataclass(frozen=True)
class Kept:
    """The file of a kernel, and the lines that its dots have now, None where they are as kept."""

    path: Path
    lines: list[int] | None = None

    def read(self) -> dict[str, Any] | None:
        """Return the figures, which count as used now; None where there are none, or damaged."""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            found = json.loads(self.path.read_text(encoding="utf-8"))
            lines = found["lines"] if self.lines is None else self.lines
            pairs = set(zip(found["lines"], lines, strict=True))
            moved = dict(pairs)
            if not len(pairs) == len(moved) == len(set(moved.values())):
                return None  # one line has become two, or two have met
            dots = [{**dot, "line": moved[dot["line"]]} for dot in found["dots"]]
            os.utime(self.path)
            found["dots"] = sorted(dots, key=lambda dot: dot["line"])
            return {**found, "lines": lines}
        return None

    def write(self, figures: dict[str, Any]) -> None:
        """Write the figures down, whole or not at all."""
        partial = self.path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(figures), encoding="utf-8")
            os.replace(partial, self.path)


def make_room(folder: Path) -> None:
    """Remove all but the `MOST` kernels that were used last; nobody may be compiling."""
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir(), key=lambda path: path.lstat().st_mtime)[:-MOST]:
            path.unlink()
