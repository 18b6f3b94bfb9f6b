"""pytest's side of the judge: the fixture `case` of problems/pNN/test_pNN.py, and what is printed.

Each test function is one check of problem.toml (test_<id>), run once for each of its cases. Student
code never runs in this process: a case calls it in a worker. Failures are told when all cases are
in, each cause once: what one case looks like, another may contradict.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grader.judge.pytest_run import ProblemTrial, PytestRun
from grader.report.message import event, failure_text
from grader.spec.cases import Case, resolve
from grader.spec.findings import CaseBegins, CaseEnds, CaseFailed, CauseFound, Finding
from grader.spec.grade_record import Message, Verdict
from grader.spec.problem import PROBLEMS, ManifestError, Problem, load_problem
from grader.spec.problem_tables import Check

_FAULTS_FROM_OUTSIDE = (OSError, MemoryError)
_TEXTS_FROM_OUTSIDE = ("start new thread", "allocate memory", "bad_alloc", "open files")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("grader")
    group.addoption("--submission", default=str(PROBLEMS), help="folder with pNN/<file>.py")
    group.addoption("--device", default="auto", choices=("auto", "cpu", "cuda"))
    group.addoption("--seed", default=None, help="seed of the inputs, hex")
    group.addoption("--request-fd", type=int, default=None, help="the judge's own request")
    group.addoption("--events-fd", type=int, default=None, help="where the judge reads events")


_RUN = pytest.StashKey[PytestRun]()
_FINDING = pytest.StashKey[Finding]()


def pytest_configure(config: pytest.Config) -> None:
    run = config.stash[_RUN] = PytestRun(config)
    if run.request is not None:
        from grader.isolate import sandbox

        sandbox.prepare(jailed=run.request.jailed, gpu=run.request.device_uuid)


def pytest_report_header(config: pytest.Config) -> str:
    run = config.stash[_RUN]
    return f"grader: device {run.device}, seed {run.seed}"


# -- the cases ----------------------------------------------------------------------------------


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
    run = metafunc.config.stash[_RUN]
    done = run.request.done if run.request else ()
    cases = {
        index: case
        for index, case in problem.cases(check, run.seed).items()
        if (check.id, index) not in done
    }
    ids = _ids(problem.of(check), cases)
    metafunc.parametrize("case", list(cases.items()), ids=ids, indirect=True)


def _ids(problem: Problem, cases: dict[int, Case]) -> list[str]:
    """Name each case by its length, its dtype and what else is not as in the plain case."""
    usual = set(resolve(problem.base.given, "fp32", "").words)
    ids: list[str] = []
    for index, case in cases.items():
        sizes = ("seqlen", "rows", "cols")
        words = [w for w in case.words if w not in usual or w.startswith(sizes)]
        id = "-".join(w for w in words if w != "fp32")
        ids.append(id if id not in ids else f"{id}-{index}")
    return ids


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run what is wanted first; on a GPU begin to compile, and use the machine meanwhile."""
    run = config.stash[_RUN]
    if run.request is not None and run.request.first:
        wanted = run.request.first
        items.sort(key=lambda item: (place := _place(item)) is None or place[1].id not in wanted)
    if run.device != "cuda":
        return
    waiting: dict[str, list[tuple[Check, Case]]] = {}
    for item in items:
        place = _place(item)
        if place is not None and place[2].gpu and not place[1].bridge:
            waiting.setdefault(place[0].id, []).append(place[1:3])
    items.sort(key=lambda item: bool((place := _place(item)) and place[2].gpu))
    for problem_id, cases in waiting.items():
        run.trial(load_problem(problem_id)).compile_ahead(cases)


def _place(item: pytest.Item) -> tuple[Problem, Check, Case, int] | None:
    problem = _problem_of(item.path)
    given = getattr(getattr(item, "callspec", None), "params", {}).get("case")
    if problem is None or not isinstance(given, tuple):  # none is left of a check that is done
        return None
    index, case = given
    return problem, problem.check(item.function.__name__.removeprefix("test_")), case, index


class RunningCase:
    """One case of one check: a test says what must hold for it."""

    def __init__(self, trial: ProblemTrial, check: Check, case: Case, index: int) -> None:
        self._trial, self._check, self._case, self._index = trial, check, case, index

    def agrees_with(self, oracle: Any) -> None:
        """The submission's outputs equal those of `oracle` within the derived tolerance."""
        expected = self._trial.problem.of(self._check).oracle
        assert oracle.__name__ == expected, f"got {oracle.__name__}, problem.toml says {expected}"
        self._judge()

    def compiles(self) -> None:
        """The kernels of the submission compile for the GPUs of grader/kernel/compile/chips.py."""
        assert self._check.compiles
        self._judge()

    def is_refused(self) -> None:
        """The submission raises ValueError naming the argument that the case makes invalid."""
        assert self._case.invalid is not None
        self._judge()

    def _judge(self) -> None:
        from grader.judge.case_run import CaseRun

        trial = self._trial
        if trial.source.verdict is not None:
            raise CaseFailed(_unusable(trial))
        session = trial.session(self._check, self._case)
        trial.run.send(CaseBegins(check=self._check.id, index=self._index))
        if trial.budget.used_up() is None:  # an import may end or stop this process
            session.start()
        earlier, trial.calls = trial.calls, trial.calls + 1
        finding = CaseRun(trial.judged, session, self._check, self._index, self._case).judge()
        finding = finding.model_copy(
            update={"after_calls": finding.verdict is Verdict.INTERNAL and earlier > 0}
        )
        if finding.verdict is not Verdict.PASS:
            raise CaseFailed(finding)
        trial.passed[(self._check.id, self._index)] = finding

    def __repr__(self) -> str:
        return str(self._case)


def _unusable(trial: ProblemTrial) -> Finding:
    """The finding of a file that cannot run; it is told once."""
    source = trial.source
    assert source.verdict is not None and source.message is not None
    trial.calls += 1
    if trial.calls == 1:
        return Finding(verdict=source.verdict, message=source.message)
    headline = f"not run: {source.message.headline}"
    return Finding(verdict=Verdict.SKIPPED, message=Message(headline=headline))


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Iterator[RunningCase]:
    """One case of problem.toml for the check that the test is named after."""
    place = _place(request.node)
    assert place is not None
    problem, check, case, index = place
    yield RunningCase(request.config.stash[_RUN].trial(problem), check, case, index)


# -- what becomes of a case -----------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Any:
    """Turn what a test raised into a finding, send it, and keep it for the summary."""
    report = yield
    place = _place(item)
    error = call.excinfo.value if call.excinfo else None
    if place is None or call.when == "teardown" or (call.when == "setup" and error is None):
        return report
    if isinstance(error, (KeyboardInterrupt, pytest.skip.Exception)):
        return report
    run = item.config.stash[_RUN]
    if call.when == "setup" and place[0].id not in run.trials:  # pytest's own report tells of it
        return report
    trial = run.trial(place[0])
    finding = _finding(error, trial, item.nodeid)
    if finding.verdict is Verdict.PASS:
        finding = trial.passed.get((place[1].id, place[3]), finding)
    if finding.verdict not in (Verdict.PASS, Verdict.NOT_MEASURED):
        trial.failed.add(place[1].id)
    finding = finding.model_copy(update={"duration_s": round(call.duration, 3)})
    item.stash[_FINDING] = finding
    _, check, _, index = place
    budget = trial.budget
    trial.run.send(
        CaseEnds(
            check=check.id,
            index=index,
            finding=finding,
            spent_s=budget.spent_s,
            lost_s=budget.lost_s,
        )
    )
    report.finding, report.place = finding, (place[0].id, check.id, index)
    if finding.verdict in (Verdict.SKIPPED, Verdict.NOT_MEASURED):
        report.outcome = "skipped"
        headline = finding.message.headline if finding.message else ""
        report.longrepr = (str(item.path), (item.location[1] or 0) + 1, headline)
    elif finding.verdict is not Verdict.PASS and finding.message is not None:
        report.longrepr = finding.message.headline
    return report


def _finding(error: BaseException | None, trial: ProblemTrial, where: str) -> Finding:
    if error is None:
        return Finding(verdict=Verdict.PASS)
    if isinstance(error, CaseFailed):
        return error.finding
    # The judge's own fault: it costs the student nothing, unless the student's code made it.
    text = f"the judge failed in {where}: {type(error).__name__}: {error}"
    outside = isinstance(error, _FAULTS_FROM_OUTSIDE)
    outside |= any(known in str(error) for known in _TEXTS_FROM_OUTSIDE)
    message = Message(headline=text[:600])
    after_calls = outside and trial.calls > 0
    return Finding(verdict=Verdict.INTERNAL, message=message, after_calls=after_calls)


# -- the end of the run ---------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Settle on causes, tell the judge, and let pytest print each of them once."""
    run = session.config.stash[_RUN]
    causes: dict[tuple[str, str, int], CauseFound] = {}
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    say = reporter.write_line if reporter is not None else lambda text: None
    for trial in run.trials.values():
        came_to_end = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if came_to_end and not session.shouldfail:
            trial.count_work()
        for found in _causes(trial, say):
            run.send(found)
            causes |= {(trial.problem.id, *place): found for place in found.cases}
        with contextlib.suppress(OSError):
            trial.close()
    if reporter is not None:
        _tell_each_cause_once(reporter, causes)


def _causes(trial: ProblemTrial, say: Callable[[str], None]) -> list[CauseFound]:
    """Return the causes of wrong results; none where the judge itself failed to find them.

    They explain verdicts, which stand without them. `say` tells of such a failure.
    """
    try:
        source = trial.source
        causes = trial.judged.causes(source.step_behind)
        return [CauseFound(**vars(c), fed_by=source.fed_by(c.line or 0)) for c in causes]
    except Exception as error:
        say(f"{trial.problem.id}: the judge failed to find causes: {type(error).__name__}: {error}")
        return []


def _tell_each_cause_once(reporter: Any, causes: dict[tuple[str, str, int], CauseFound]) -> None:
    """Leave one failure of each cause among pytest's failures; the others are counted apart."""
    told: dict[tuple[str, ...], Any] = {}
    again: list[Any] = []
    failed = reporter.stats.get("failed", [])
    for report in failed:
        finding = getattr(report, "finding", None)
        if finding is None or finding.message is None:
            told[("other", report.nodeid)] = report
            continue
        cause = causes.get(report.place)
        step = cause.step if cause else None
        text = failure_text(report.place[0], report.place[1], finding, cause, step)
        report.longrepr = text
        key = (report.place[0], text.splitlines()[0]) if cause else (report.place[0], _kind(report))
        if key in told:
            again.append(report)
        else:
            told[key] = report
    if again:
        reporter.stats["failed"] = list(told.values())
        reporter.stats["failed for a cause told above"] = again
    if any(key[0] != "other" for key in told):
        # pytest's own summary would cut the cause to the width of the terminal.
        reporter.reportchars = "".join(c for c in reporter.reportchars if c not in "fE")


def _kind(report: Any) -> str:
    """What failures without a known cause have in common: their headline, or a refusal's check."""
    message = report.finding.message
    return message.test if "invalid=" in (message.input or "") else event(message)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name each cause once more, whole, at the end."""
    for report in terminalreporter.stats.get("failed", ()):
        if getattr(report, "finding", None) is not None:
            terminalreporter.write_line(str(report.longrepr).splitlines()[0], red=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    run = config.stash.get(_RUN, None)
    if run is not None:
        run.close()
    if run is not None and run.request is not None:
        from grader.isolate import forks

        forks.close_server()
