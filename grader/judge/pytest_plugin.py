"""pytest's side of the judge: the fixture `case` of problems/pNN/test_pNN.py.

Each test function is one check of problem.toml (test_<id>), run once for each of its cases. Student
code never runs in this process: a case calls it in a worker.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from grader.judge.pytest_run import PytestRun, RunningCase
from grader.report.message import event, failure_text
from grader.spec.findings import CauseFound
from grader.spec.grade_record import Verdict
from grader.spec.problem import PROBLEMS, ManifestError, Problem, load_problem

if TYPE_CHECKING:
    from grader.judge.case import CheckCase


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("grader")
    group.addoption("--submission", default=str(PROBLEMS), help="folder with pNN/<file>.py")
    group.addoption("--device", default="auto", choices=("auto", "cpu", "cuda"))
    group.addoption("--seed", default=None, help="seed of the inputs, hex")
    group.addoption("--request-fd", type=int, default=None, help="the judge's own request")
    group.addoption("--events-fd", type=int, default=None, help="where the judge reads events")


_RUN = pytest.StashKey[PytestRun]()


def pytest_configure(config: pytest.Config) -> None:
    run = config.stash[_RUN] = PytestRun(config)
    if run.is_of_judge:
        from grader.isolate import sandbox

        sandbox.prepare(jailed=run.request.jailed, gpu=run.request.device_uuid)


def pytest_report_header(config: pytest.Config) -> str:
    asked = config.stash[_RUN].request
    return f"grader: device {asked.device}, seed {asked.seed}"


def pytest_unconfigure(config: pytest.Config) -> None:
    run = config.stash.get(_RUN, None)
    if run is not None:
        run.close()
    if run is not None and run.is_of_judge:
        from grader.isolate import forks

        forks.close_server()


# -- the cases ------------------------------------------------------------------------------------


@functools.cache
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
    cases = metafunc.config.stash[_RUN].cases(problem, check)
    metafunc.parametrize("case", list(cases.values()), ids=list(cases), indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    run = config.stash[_RUN]
    items.sort(key=lambda item: run.rank(_at(item)))
    run.begin(filter(None, map(_at, items)))


def _at(item: pytest.Item) -> CheckCase | None:
    from grader.judge.case import CheckCase

    problem = _problem_of(item.path)
    given = getattr(getattr(item, "callspec", None), "params", {}).get("case")
    if problem is None or not isinstance(given, tuple):  # none is left of a check that is done
        return None
    return CheckCase(problem, problem.check(item.function.__name__.removeprefix("test_")), *given)


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Iterator[RunningCase]:
    """One case of problem.toml for the check that the test is named after."""
    at = _at(request.node)
    assert at is not None
    run = request.config.stash[_RUN]
    run.run(at.whole)  # what keeps a problem from running is no fault of its first case
    yield RunningCase(run, at)


# -- what becomes of a case -----------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Any:
    """Hand over the finding of a test, and show it in pytest's own report."""
    report = yield
    at, error = _at(item), call.excinfo.value if call.excinfo else None
    if at is None or call.when == "teardown" or (call.when == "setup" and error is None):
        return report
    if isinstance(error, (KeyboardInterrupt, pytest.skip.Exception)):
        return report
    came_to = error or item.funcargs["case"].finding
    finding = item.config.stash[_RUN].ended(at, came_to, item.nodeid, call.duration)
    report.finding, report.place = finding, (at.whole.id, *at.place)
    if finding.verdict in (Verdict.SKIPPED, Verdict.NOT_MEASURED):
        report.outcome = "skipped"
        headline = finding.message.headline if finding.message else ""
        report.longrepr = (str(item.path), (item.location[1] or 0) + 1, headline)
    elif finding.verdict is not Verdict.PASS and finding.message is not None:
        report.longrepr = finding.message.headline
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Let causes be found, and pytest print each of them once."""
    run = session.config.stash[_RUN]
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    say = reporter.write_line if reporter is not None else lambda text: None
    at_its_end = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    causes = run.finish(counts=at_its_end and not session.shouldfail, say=say)
    if reporter is not None:
        _show_each_cause_once(reporter, causes)


def _show_each_cause_once(reporter: Any, causes: Mapping[Any, CauseFound]) -> None:
    """Leave one failure of each cause among pytest's failures; the others are counted apart.

    A later case may contradict what an earlier one suggests: so it is done when all are in.
    `causes` are those of cases, by problem, check and number.
    """
    shown: dict[tuple[str, ...], Any] = {}
    again: list[Any] = []
    for report in reporter.stats.get("failed", []):
        finding = getattr(report, "finding", None)
        if finding is None or finding.message is None:
            shown[("other", report.nodeid)] = report
            continue
        cause = causes.get(report.place)
        problem, check, _ = report.place
        report.longrepr = failure_text(problem, check, finding, cause, cause and cause.step)
        key = (problem, report.longrepr.splitlines()[0] if cause else _kind(finding.message))
        if key in shown:
            again.append(report)
        else:
            shown[key] = report
    if again:
        reporter.stats["failed"] = list(shown.values())
        reporter.stats["failed for a cause named above"] = again
    if any(key[0] != "other" for key in shown):
        # pytest's own summary would cut the cause to the width of the terminal.
        reporter.reportchars = "".join(c for c in reporter.reportchars if c not in "fE")


def _kind(message: Any) -> str:
    """What failures without a known cause have in common: their headline, or a refusal's check."""
    return message.test if "invalid=" in (message.input or "") else event(message)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name each cause once more, whole, at the end."""
    for report in terminalreporter.stats.get("failed", ()):
        if getattr(report, "finding", None) is not None:
            terminalreporter.write_line(str(report.longrepr).splitlines()[0], red=True)
