"""Unpacks a student's upload into a folder that `grade` reads.

`python -m grader.commands.package.upload UPLOAD ANSWERS RESULTS`.

It exits with 0, or with 1 where the upload has no answers: then RESULTS tells Gradescope why.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from grader.base.atomic_write import write_whole
from grader.source.intake import archives

_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the answers found in the upload, print their names; return the exit code."""
    upload, answers, results = map(Path, sys.argv[1:] if arguments is None else arguments)
    try:
        contents = archives.read(_inner(upload))
    except archives.ArchiveError as error:
        result = {"score": 0, "output": f"nothing was graded: {error}", "output_format": "text"}
        write_whole(results, json.dumps(result | {"stdout_visibility": "hidden"}) + "\n")
        print(error)
        return 1
    for name, data in contents.files.items():
        path = answers / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for line in (*contents.files, *contents.notes):
        print(line)
    return 0


def _inner(upload: Path) -> Path:
    """Return the one archive that an upload consists of, or else the upload."""
    found = list(upload.iterdir()) if upload.is_dir() else []
    is_archive = len(found) == 1 and found[0].name.lower().endswith(_ARCHIVES)
    return found[0] if is_archive else upload


if __name__ == "__main__":
    sys.exit(main())
