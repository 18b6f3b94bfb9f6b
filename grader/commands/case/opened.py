"""An opened case: its folder, cases/<id>, with the kernel and what the judge said of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from grader import __version__
from grader.base.atomic_write import write_whole
from grader.base.record import Record
from grader.commands.case.cases import Case, CaseError
from grader.judge.sealed import SEAL
from grader.spec.environment import EnvironmentFault
from grader.spec.grade_record import ProblemResult

FOLDER = Path("cases")  # where the user works: his own to read, to run and to change
SEED = "ca5e"  # of every case, so that all see the same numbers


class Opened(Record):
    """The seal: which case the folder holds, and what the judge said of it, None before that."""

    schema_version: Literal[1] = 1
    case: str
    version: str
    sha256: str
    result: ProblemResult | None = None


def folder_of(case: Case) -> Path:
    """Return the folder of a case."""
    return FOLDER / case.id


def is_open(case: Case) -> bool:
    """Whether a case was opened before."""
    return (folder_of(case) / SEAL).is_file()


def open_case(case: Case, test: Callable[[Path], ProblemResult]) -> ProblemResult:
    """Write the kernel into its folder, once, and return what `test` says of that folder.

    Raises:
        CaseError: the folder has something else, or a case that an older version made.
        EnvironmentFault: it cannot be written.
    """
    folder, text = folder_of(case), case.text()
    path = folder / case.id[:3] / case.problem.file
    digest = hashlib.sha256(text.encode()).hexdigest()
    fresh = Opened(case=case.id, version=__version__, sha256=digest)
    found = _found(folder, fresh)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(folder / SEAL, found.model_dump_json(indent=1) + "\n")  # before what it seals
        if not path.exists():
            write_whole(path, text)
        result = found.result or test(folder)
        found = found.model_copy(update={"result": result})
        write_whole(folder / SEAL, found.model_dump_json(indent=1) + "\n")
    except OSError as error:
        place = error.filename or folder
        raise EnvironmentFault(f"case: cannot write {place}: {error.strerror}") from None
    return result


def _found(folder: Path, fresh: Opened) -> Opened:
    """Return what the folder has been sealed with, `fresh` for one that is not there."""
    remove = f"move it away or remove it, then run make case CASE={fresh.case} again"
    try:
        found = Opened.model_validate_json((folder / SEAL).read_bytes())
    except FileNotFoundError:
        if folder.exists():
            raise CaseError(f"{folder}: not made by make case; {remove}") from None
        return fresh
    except (OSError, ValueError):
        raise CaseError(f"{folder / SEAL}: got a file that cannot be read; {remove}") from None
    if found.model_copy(update={"result": None}) != fresh:
        raise CaseError(
            f"{folder}: got a case that version {found.version} made, and this is {__version__}: it"
            f" may have another bug; {remove}"
        )
    return found
