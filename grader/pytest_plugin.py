"""pytest's side of the judge: `case` and `submission` for problems/pNN/test_pNN.py.

Each test function is one check of problem.toml (test_<id>), parametrised with its cases. Student
code never runs in this process: `case.compare` calls it in a worker.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grader.environment import interpreter_works
from grader.manifest import PROBLEMS, ManifestError, Problem, load_problem
from grader.model import Message, Verdict
from grader.policy import read_source
from grader.render.message import failure_text


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("grader")
    group.addoption("--submission", default=str(PROBLEMS), help="folder with pNN/<file>.py")
    group.addoption("--device", default="auto", choices=("auto", "cpu", "cuda"))
    group.addoption("--seed", default=None, help="seed of the inputs, hex")
    group.addoption("--events-fd", type=int, default=None, help="descriptor for live progress")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SEED] = config.getoption("--seed") or os.urandom(8).hex()


_SEED = pytest.StashKey[str]()


def _device(config: pytest.Config) -> str:
    wanted = config.getoption("--device")
    if wanted != "auto":
        return wanted
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _problem_of(path: Path) -> Problem | None:
    if path.parent.parent.resolve() != PROBLEMS:
        return None
    try:
        return load_problem(path.parent.name)
    except ManifestError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    problem = _problem_of(metafunc.definition.path)
    if problem is None or "case" not in metafunc.fixturenames:
        return
    try:
        check = problem.check(metafunc.function.__name__.removeprefix("test_"))
    except ManifestError as error:
        raise pytest.UsageError(str(error)) from None
    cases = check.cases_on(_device(metafunc.config), triton=problem.uses_triton)
    ids = [f"{index}-{case.dtype}" for index, case in enumerate(cases)]
    metafunc.parametrize("case", list(enumerate(cases)), ids=ids, indirect=True)


class RunningCase:
    """One case of one check; a test says with `compare` what must hold for it."""

    def __init__(self, check: Any, case: Any, index: int) -> None:
        self._check, self._case, self._index = check, case, index

    def compare(self, submission: Any, oracle: Any) -> None:
        """The submission's outputs equal those of `oracle` within the derived tolerance."""
        submission.compare(self._check, self._case, self._index, oracle)

    compare_gradients = compare

    def expect_value_error(self, submission: Any) -> None:
        """The submission raises ValueError naming the argument that the case makes invalid."""
        submission.expect_value_error(self._check, self._case, self._index)

    def __repr__(self) -> str:
        return str(self._case)


@pytest.fixture
def case(request: pytest.FixtureRequest) -> RunningCase:
    """One case of problem.toml for the check that the test is named after."""
    index, table = request.param
    problem = _problem_of(request.path)
    assert problem is not None
    return RunningCase(problem.check(request.function.__name__.removeprefix("test_")), table, index)


def _session(request: pytest.FixtureRequest, *, interpret: bool) -> Iterator[Any]:
    import torch

    from grader.session import Session

    torch.set_num_threads(1)
    problem = _problem_of(request.path)
    assert problem is not None
    device = _device(request.config)
    source = read_source(problem, Path(request.config.getoption("--submission")))
    interpret = problem.uses_triton and (interpret or device == "cpu")
    session = Session(
        problem,
        source,
        device="cpu" if interpret else device,
        interpret=interpret,
        seed=request.config.stash[_SEED],
    )
    yield session
    session.close()


@pytest.fixture(scope="module")
def submission(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The student's entry point in a worker process, on the GPU where there is one."""
    yield from _session(request, interpret=False)


@pytest.fixture(scope="module")
def interpreted(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The student's entry point in Triton's interpreter, where every access is checked."""
    if _device(request.config) == "cpu":
        yield request.getfixturevalue("submission")
        return
    from importlib import metadata

    versions = metadata.version("triton"), metadata.version("numpy")
    if not interpreter_works(*versions):
        yield NoInterpreter("not measured: Triton {} needs numpy < 2.4, got {}".format(*versions))
        return
    yield from _session(request, interpret=True)


class NoInterpreter:
    """Stands for a submission on a machine whose Triton interpreter cannot run kernels."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def compare(self, *_: Any) -> None:
        """Say that the case cannot be measured here."""
        from grader.findings import CaseFailed, Finding

        raise CaseFailed(Finding(Verdict.NOT_MEASURED, Message(self._reason)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Any:
    """Replace the traceback by the student's message, and record the finding."""
    if call.when == "call" and _problem_of(item.path) is not None:
        _record(item, call)
    report = yield
    finding = item.stash.get(_FINDING, None)
    if finding is not None and report.when == "call":
        if finding.verdict in (Verdict.SKIPPED, Verdict.NOT_MEASURED):
            report.outcome = "skipped"
            line = item.location[1] or 0
            report.longrepr = (str(item.path), line + 1, finding.message.headline)
        elif finding.verdict != Verdict.PASS:
            report.longrepr = failure_text(
                item.path.parent.name,
                _check_id(item),
                finding.verdict,
                finding.message,
                finding.candidates,
            )
    return report


_FINDING = pytest.StashKey[Any]()


def _record(item: pytest.Item, call: pytest.CallInfo) -> None:
    from grader.session import CaseFailed, Finding

    error = call.excinfo.value if call.excinfo else None
    if error is None:
        finding = Finding(Verdict.PASS)
    elif isinstance(error, CaseFailed):
        finding = error.finding
    elif isinstance(error, (KeyboardInterrupt, pytest.skip.Exception)):
        return
    else:  # the judge's own fault: it costs the student nothing
        text = f"the judge failed: {type(error).__name__}: {error}"
        finding = Finding(Verdict.INTERNAL, Message(text, where=item.nodeid))
    item.stash[_FINDING] = finding
    item.user_properties.append(("finding", finding.to_json()))
    fd = item.config.getoption("--events-fd")
    if fd is not None:
        event = {"check": _check_id(item), "verdict": finding.verdict}
        os.write(fd, (json.dumps(event) + "\n").encode())


def _check_id(item: pytest.Item) -> str:
    return item.function.__name__.removeprefix("test_")


def pytest_report_header(config: pytest.Config) -> str:
    return f"grader: device {_device(config)}, seed {config.stash[_SEED]}"
