"""Which files of a submission the course handed out: nobody needs a note on those.

The release's own list, .release.json, says so where it was handed in too; a problem's folder holds
the same files in any case. A module of `given` is noted all the same: the judge has its own copy.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from grader.spec.problem import GIVEN, problem_ids

LEDGER = ".release.json"
_OF_PROBLEM = ("README.md", "HINTS.md", "ANSWERS.md", "problem.toml", "Makefile", "test_{}.py")
_OF_ALL = ("one.mk",)


def names(ledger: bytes | None, root: Sequence[str]) -> set[tuple[str, ...]]:
    """Return the parts of the names of files that were handed out; `root` holds the folders pNN."""
    root = tuple(root)
    found = {(*root, id, name.format(id)) for id in problem_ids() for name in _OF_PROBLEM}
    found |= {(*root, name) for name in _OF_ALL}
    try:
        listed = json.loads(ledger or b"{}")
        paths = [path for path in listed.get("files", ()) if isinstance(path, str)]
    except (ValueError, AttributeError, TypeError, RecursionError):
        paths = []
    if ledger:
        paths.append(LEDGER)
    parts = [path.split("/") for path in paths]
    return found | {(*root[:-1], *those) for those in parts if GIVEN.name not in those[:-1]}
