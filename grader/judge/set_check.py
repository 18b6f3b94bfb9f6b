"""Checks a set of problems without grading: whether its files can be used, and fit together.

Each test runs on its cases, none of which calls a submission: in a process of its own, for tests
import torch.
"""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from grader.spec.environment import EnvironmentFault
from grader.spec.problem import PROBLEMS, ROOT, ManifestError, Problem, load_problem

_LIMIT_S = 300.0
_BROKEN = 1


class SetError(ManifestError):
    """The set of problems is broken; says what is wrong, where, and what to do."""


def check_set(problems: Sequence[str]) -> None:
    """Check that these problems can be graded.

    Raises:
        ManifestError: a problem.toml cannot be used.
        SetError: a test file cannot, or its tests are not the checks of its problem.toml.
        EnvironmentFault: it cannot be found out, as without torch.
    """
    for id in problems:
        load_problem(id)
    command = [sys.executable, "-m", __name__, *problems]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise SetError(f"problems: the tests do not load within {_LIMIT_S:.0f} s") from None
    if done.returncode == _BROKEN and done.stdout:
        raise SetError(f"{done.stdout.strip()}; mend or restore the file, then run again")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise EnvironmentFault(f"the problems cannot be checked: {last}; `make doctor` shows more")


def main(problems: Sequence[str]) -> int:
    """Print what is wrong with the first of these problems that is broken; return 0 if none is."""
    import torch
    import triton  # noqa: F401 - whoever has not installed them has no broken set

    torch.set_num_threads(1)
    sys.path.append(str(PROBLEMS))  # where `given` is
    for id in problems:
        try:
            problem = load_problem(id)
            for name in problem.given:
                import_module(f"given.{name}")
            _check(problem)
        except ManifestError as error:
            print(error)
            return _BROKEN
        except Exception as error:
            print(_located(error, PROBLEMS / id))
            return _BROKEN
    return 0


def _check(problem: Problem) -> None:
    from grader.judge.case import CheckCase
    from grader.judge.pytest_run import RunningCase

    class UncalledCase(RunningCase):
        def _judge(self) -> None:
            pass

    path = problem.folder / f"test_{problem.id}.py"
    names: dict[str, object] = {"__name__": path.stem, "__file__": str(path)}
    exec(compile(path.read_bytes(), path, "exec"), names)
    tests = {name: test for name, test in names.items() if name.startswith("test_")}
    checks = {check.test_name: check for check in problem.checks}
    if tests.keys() != checks.keys():
        unknown = ", ".join(sorted(tests.keys() - checks.keys())) or "no test more"
        missing = ", ".join(sorted(checks.keys() - tests.keys())) or "none"
        raise ManifestError(
            f"{path.relative_to(ROOT)}: got {unknown}, expected {missing}: problem.toml has one"
            " check for each test"
        )
    for name, check in checks.items():
        for index, case in problem.cases(check, "").items():
            tests[name](UncalledCase(None, CheckCase(problem, check, index, case)))


def _located(error: Exception, folder: Path) -> str:
    """Return the error and the last line of this checkout that it came from."""
    if isinstance(error, SyntaxError) and error.filename:
        places = [(error.filename, error.lineno)]
    else:
        places = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    inside = [(Path(p).relative_to(ROOT), n) for p, n in places if ROOT in Path(p).parents]
    inside = [(p, n) for p, n in inside if p.parts[0] in ("problems", "reference")]
    path, line = (inside or [(folder.relative_to(folder.parents[1]), None)])[-1]
    words = (error.msg if isinstance(error, SyntaxError) else str(error)).split()
    where = f"{path}, line {line}" if line else str(path)
    return ": ".join(filter(None, (where, type(error).__name__, " ".join(words)[:300])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
