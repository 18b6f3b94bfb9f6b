"""Gradescope's autograder: a zip with setup.sh, run_autograder and the judge.

Source: "Autograder Specifications" and "Troubleshooting" (limits), read on 2026-11-23:
https://gradescope-autograders.readthedocs.io/en/latest/specs/
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

from grader.commands.package.contents import judge_files

TEMPLATES = Path(__file__).with_name("templates")
# Gradescope's own: it stops an autograder after 10 minutes, or up to 40 where the course says so.
DEFAULT_MINUTES = 10
MAX_MINUTES = 40
_SCRIPTS = ("setup.sh", "run_autograder")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same files make the same zip


def autograder_zip(
    problem_ids: Sequence[str], all_ids: Sequence[str], *, official: bool, minutes: int
) -> bytes:
    """Return the zip, which grades these problems, as bytes that depend on nothing else.

    `minutes` is when Gradescope stops a grading; `official` asks for a jail, and grades nothing
    where none can be made.
    """
    files = judge_files(all_ids)
    files["setup.sh"] = (TEMPLATES / "setup.sh").read_bytes()
    only = () if tuple(problem_ids) == tuple(all_ids) else ("--only", ",".join(problem_ids))
    options = (*(["--official"] if official else []), *only)
    files["run_autograder"] = _run_autograder(minutes, options).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name in _SCRIPTS else 0o100644) << 16
            entry.create_system = 3  # Unix: else the mode is not read
            archive.writestr(entry, data)
    return buffer.getvalue()


def _run_autograder(minutes: int, options: Sequence[str]) -> str:
    text = (TEMPLATES / "run_autograder").read_text(encoding="utf-8")
    for old, new in (
        (f"minutes={DEFAULT_MINUTES}\n", f"minutes={minutes}\n"),
        ("options=()\n", f"options=({' '.join(options)})\n"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text
