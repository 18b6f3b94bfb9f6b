"""Which files of a submission the course handed out: nobody needs a note on those.

The release's own list, .release.json, says so where it was handed in too; a problem's folder holds
the same files in any case. A module of `given` that was changed is noted all the same: the judge
has its own copy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence

from grader.spec.problem import GIVEN, problem_ids

LEDGER = ".release.json"
_OF_PROBLEM = ("README.md", "HINTS.md", "ANSWERS.md", "problem.toml", "Makefile", "test_{}.py")
_OF_ALL = ("one.mk",)


def names(
    ledger: bytes | None, root: Sequence[str], read: Callable[[tuple[str, ...]], bytes | None]
) -> set[tuple[str, ...]]:
    """Return the parts of the names of files that were handed out.

    `root` holds the folders pNN; `read` returns the bytes of a file of the submission.
    """
    root = tuple(root)
    found = {(*root, id, name.format(id)) for id in problem_ids() for name in _OF_PROBLEM}
    found |= {(*root, name) for name in _OF_ALL}
    try:
        listed = json.loads(ledger or b"{}")
        hashes = dict(listed.get("files", {}))
    except (ValueError, AttributeError, TypeError, RecursionError):
        hashes = {}
    for path, sha256 in (hashes | ({LEDGER: ""} if ledger else {})).items():
        parts = (*root[:-1], *str(path).split("/"))
        data = read(parts) if GIVEN.name in parts[:-1] else None
        if data is None or hashlib.sha256(data).hexdigest() == sha256:
            found.add(parts)
    return found
