"""What a result depends on: a hash that changes whenever the result could."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from grader.spec.grade_record import Environment
from grader.spec.problem import ROOT

# Rooms of grader/ that decide no points: what shows gradings, hands out and takes in.
_DECIDES_NOTHING = ("commands/", "report/", "source/intake/", "__main__.py")


class Versions:
    """The version of each problem on one kind of machine, graded in one way.

    It is made of the problem's problem.toml and tests, of `given`, the reference and the judge, of
    torch, Triton and numpy, of the device, the mode and the calibration (its text, None without).
    """

    def __init__(
        self,
        environment: Environment,
        *,
        official: bool = False,
        quick: bool = False,
        calibration: str | None = None,
        root: Path = ROOT,
    ) -> None:
        self._root = root
        machine = environment.model_dump(
            mode="json", include={"device", "device_name", "torch", "triton", "numpy"}
        )
        graded = {"official": official, "quick": quick, "calibration": calibration}
        self._common = hashlib.sha256(json.dumps([machine, graded], sort_keys=True).encode())
        for path in self._of_all_problems():
            _add(self._common, path, root)

    def of(self, problem_id: str) -> str:
        """Return the version of a problem, 64 hexadecimal digits."""
        digest = self._common.copy()
        folder = self._root / "problems" / problem_id
        for path in (folder / "problem.toml", folder / f"test_{problem_id}.py"):
            _add(digest, path, self._root)
        return digest.hexdigest()

    def _of_all_problems(self) -> Iterator[Path]:
        for folder in ("problems/given", "reference", "grader"):
            for path in sorted((self._root / folder).rglob("*.py")):
                inner = path.relative_to(self._root / folder)
                other = folder == "grader" and inner.as_posix().startswith(_DECIDES_NOTHING)
                if not other and "__pycache__" not in inner.parts:
                    yield path


def _add(digest: hashlib._Hash, path: Path, root: Path) -> None:
    """Add a file's name and bytes, and where each ends."""
    name, data = path.relative_to(root).as_posix().encode(), path.read_bytes()
    digest.update(b"%d %d " % (len(name), len(data)) + name + data)
