"""An opened case: its folder, cases/<id>, with the kernel and the judge's result."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from grader import __version__
from grader.base.atomic_write import write_whole
from grader.base.user_state import State
from grader.commands.case.cases import Case
from grader.commands.options import UsageError
from grader.judge.sealed import SEAL, is_sealed
from grader.spec.environment import EnvironmentFault
from grader.spec.grade_record import ProblemResult

FOLDER = Path("cases")  # in the user's working folder, so that he may run and change the kernel
SEED = "ca5e"  # the same for every user, so that all see the same numbers


class Seal(State):
    """The file that seals a folder: which case it holds, and the judge's result."""

    case: str
    version: str
    sha256: str
    result: ProblemResult | None = None


def open_case(case: Case, test: Callable[[Path], ProblemResult]) -> ProblemResult:
    """Write the kernel into its folder if it is not there; return the result of `test`, run once.

    Raises:
        UsageError: the folder holds anything else, or a case that another version made.
        EnvironmentFault: the folder cannot be written.
    """
    folder, text = FOLDER / case.id, case.text()
    path = folder / case.problem.id / case.problem.file
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    seal = _seal_of(folder, Seal(case=case.id, version=__version__, sha256=sha256))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(folder / SEAL, seal.model_dump_json())  # first: a kernel is never unsealed
        if not path.exists():
            write_whole(path, text)
        result = seal.result or test(folder)
        seal = seal.model_copy(update={"result": result})
        write_whole(folder / SEAL, seal.model_dump_json())
    except OSError as error:
        place = error.filename or folder
        raise EnvironmentFault(f"case: cannot write {place}: {error.strerror}") from None
    return result


def _seal_of(folder: Path, new: Seal) -> Seal:
    """Return the seal of a folder that holds this case, or `new` where there is no folder."""
    what = "something that make case has not put there"
    if not folder.exists():
        return new
    try:
        seal = Seal.model_validate_json((folder / SEAL).read_bytes()) if is_sealed(folder) else None
    except (OSError, ValueError):
        seal, what = None, f"a {SEAL} that cannot be read"
    if seal is not None:
        if seal.model_copy(update={"result": None}) == new:
            return seal
        what = f"a case of version {seal.version}, whose bug may be another one in {__version__}"
    raise UsageError(
        f"{folder}: got {what}; move it away or remove it, then run make case CASE={new.case}"
    )
