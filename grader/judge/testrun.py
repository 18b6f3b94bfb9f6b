"""Runs one problem's tests in pytest processes and turns their findings into check results.

Findings arrive one by one, so that a pytest that dies keeps what was earned: the next one goes on
with the other cases. If it died while a case ran, that case is the submission's crash: nothing else
runs then. The time that is lost so, silence and starts in vain included, is the problem's `lost_s`:
when it is used up, nothing of the submission runs any more.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from grader.isolate.processes import Children, Ending
from grader.isolate.sandbox import PATIENCE
from grader.spec.cases import Case
from grader.spec.findings import (
    CaseBegins,
    CaseEnds,
    CauseFound,
    Evidence,
    Finding,
    SourceFile,
    TestRequest,
    WorkCounted,
    read_event,
)
from grader.spec.grade_record import CheckResult, Message, Verdict, worst
from grader.spec.problem import ROOT, ManifestError, Problem
from grader.spec.problem_tables import WORK, Check

# Beyond the time of the submission's calls: imports, oracles, naming a cause.
_JUDGE_S = 600.0
_MAX_RUNS = 20
_PYTEST_ENDINGS = (0, 1)  # all passed, some failed

Place = tuple[str, int]  # check and number of the case


@dataclasses.dataclass
class Findings:
    """What is known of one problem: a finding per case, their causes, and the work counted."""

    cases: dict[Place, Finding] = dataclasses.field(default_factory=dict)
    causes: list[CauseFound] = dataclasses.field(default_factory=list)
    work: Evidence | None = None
    missing: str = "not run"

    def cause_of(self, places: Iterable[Place]) -> CauseFound | None:
        """Return the cause that explains some of `places`, None when none or several do."""
        wanted = set(places)
        found = [cause for cause in self.causes if wanted & set(cause.cases)]
        return found[0] if len(found) == 1 else None


class TestRun:
    """The tests of one problem against one submitted file."""

    __test__ = False

    def __init__(
        self,
        problem: Problem,
        source: bytes,
        *,
        device: str,
        seed: str,
        children: Children,
        compile_workers: int = 1,
        exit_first: bool = False,
        first: tuple[str, ...] = (),
        jailed: bool = False,
        device_uuid: str | None = None,
        policy: bool = True,
        on_case: Callable[[str, Verdict], None] = lambda check, verdict: None,
    ) -> None:
        self.problem = problem
        self.findings = Findings()
        self.interrupted = False
        self._source = SourceFile.of(problem.id, source)
        self._device = device
        self._seed = seed
        self._children = children
        self._compile_workers = compile_workers
        self._exit_first = exit_first
        self._first = first
        self._jailed = jailed
        self._device_uuid = device_uuid
        self._policy = policy
        self._on_case = on_case
        self._spent_s = self._lost_s = 0.0
        self._current: Place | None = None
        self._begun = 0
        self._begun_at = 0.0
        self._reported: int | None = None  # cases that pytest says it ran; None: it does not say
        self._heard = 0
        self._places = {(c.id, i) for c in problem.checks for i in self._cases(c)}

    def run(self) -> Findings:
        """Run all cases, in as many pytest processes as it takes."""
        innocent_deaths, retried = 0, False
        for _ in range(_MAX_RUNS):
            begun, started = self._begun, time.monotonic()
            ending = self._run_pytest()
            # What runs in a jail cannot have ended it.
            died_in = None if self.interrupted or self._jailed else self._current
            if died_in is not None:
                # One that comes to its end in its first case was started for nothing.
                self._lost_s += time.monotonic() - (self._begun_at if self._heard else started)
                killed = _killed(self.problem, died_in, ending)
                self._end_case(died_in, killed)
                if died_in[0] == WORK and killed.message:
                    reason = killed.message.headline
                    self.findings.work = Evidence(verdict=Verdict.CRASH, reason=reason)
            left = self._places - self.findings.cases.keys()
            stopped = self._exit_first and any(
                f.verdict not in (Verdict.PASS, Verdict.NOT_MEASURED)
                for f in self.findings.cases.values()
            )
            if stopped:
                self.findings.missing = "not run: stopped at the first failure"
            if stopped or self.interrupted:
                return self.findings
            if not left:
                if self.findings.work is None and not self._came_to_its_end(ending):
                    reason = "the test process died before work was counted"
                    verdict = Verdict.INTERNAL if self._jailed else Verdict.CRASH
                    self.findings.work = Evidence(verdict=verdict, reason=reason)
                if retried or not self._faults():
                    return self._without_provoked_faults()
                retried = True
                for place in self._faults():
                    del self.findings.cases[place]
                continue
            if died_in is not None:
                continue
            innocent_deaths += 1
            if innocent_deaths > 1 or self._came_to_its_end(ending):
                self._give_up(left, ending, ran=self._begun > begun)
                break
        return self._without_provoked_faults()

    def _faults(self) -> list[Place]:
        return [p for p, f in self.findings.cases.items() if f.verdict is Verdict.INTERNAL]

    def _without_provoked_faults(self) -> Findings:
        """A fault that only comes after the submission's code has run, twice, is its doing.

        Not so in a jail, out of which it reaches nothing of the judge's.
        """
        for place in self._faults() if not self._jailed else ():
            finding = self.findings.cases[place]
            if finding.after_calls and finding.message is not None:
                help = "your code, or a process it started, did something to the judge's process"
                message = finding.message.model_copy(update={"help": help})
                update = {"verdict": Verdict.CRASH, "message": message}
                self.findings.cases[place] = finding.model_copy(update=update)
        return self.findings

    def _cases(self, check: Check) -> dict[int, Case]:
        return self.problem.cases(check, self._seed)

    def _run_pytest(self) -> Ending:
        # A file without a name: nothing can take its place.
        with os.fdopen(os.memfd_create("report", os.MFD_CLOEXEC), "rb") as report:
            return self._hear_pytest(Path(f"/proc/{os.getpid()}/fd/{report.fileno()}"))

    def _hear_pytest(self, report: Path) -> Ending:
        arguments = [
            str(self.problem.folder / f"test_{self.problem.id}.py"),
            *("-q", "-p", "grader.judge.pytest_plugin", "-p", "no:cacheprovider", "--noconftest"),
            *("-p", "pytest_metadata.plugin", "-p", "pytest_jsonreport.plugin"),
            "--tb=native",  # nobody reads it, and it is soon made
            *("--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")),
            *("--json-report-omit", "collectors", "log", "traceback", "streams", "keywords"),
            *("--json-report", f"--json-report-file={report}"),
            *(["-x"] if self._exit_first else []),
        ]
        request = TestRequest(
            source=self._source,
            device=self._device,
            seed=self._seed,
            done=tuple(self.findings.cases),
            first=self._first,
            spent_s=self._spent_s,
            lost_s=self._lost_s,
            compile_workers=self._compile_workers,
            kernels=self._children.kernels,
            policy=self._policy,
            token=secrets.token_hex(),
            jailed=self._jailed,
            device_uuid=self._device_uuid,
        )
        limits, ending = self.problem.limits, Ending()
        deadline_s = PATIENCE * (limits.total_s + limits.lost_s) + _JUDGE_S
        self._current, self._heard = None, 0
        lines = self._children.events(
            "pytest", arguments, request.model_dump_json(), deadline_s, ending
        )
        for line in lines:
            event = read_event(line, request.token)
            if isinstance(event, CaseBegins):
                self._current = (event.check, event.index)
                self._begun += 1
                self._begun_at = time.monotonic()
            elif isinstance(event, CaseEnds):
                self._current = None
                self._heard += 1
                self._spent_s, self._lost_s = event.spent_s, event.lost_s
                self._end_case((event.check, event.index), event.finding)
            elif isinstance(event, WorkCounted):
                self._current = None
                self.findings.work = event.evidence
            elif isinstance(event, CauseFound):
                self.findings.causes.append(event)
        self._read_report(report)
        return ending

    def _end_case(self, place: Place, finding: Finding) -> None:
        if place not in self.findings.cases and place in self._places:
            self.findings.cases[place] = finding
            self._on_case(place[0], finding.verdict)

    def _read_report(self, path: Path) -> None:
        """Take from pytest's own report how many cases ran, and what failed before one could."""
        self._reported = None
        try:
            tests = json.loads(path.read_text(encoding="utf-8"))["tests"]
            self._reported = sum("call" in test for test in tests)
            for test in tests:
                if test["outcome"] == "error":
                    check = test["nodeid"].rpartition("::")[2].partition("[")[0]
                    text = test["setup"]["crash"]["message"]
                    message = Message(headline=f"the judge failed: {text}"[:600])
                    finding = Finding(verdict=Verdict.INTERNAL, message=message)
                    for index in self._cases(self.problem.check(check.removeprefix("test_"))):
                        self._end_case((check.removeprefix("test_"), index), finding)
        except Exception:  # no report, half a report, or something else in its place
            return

    def _came_to_its_end(self, ending: Ending) -> bool:
        return ending.exit_code in _PYTEST_ENDINGS and self._reported is not None

    def _give_up(self, left: set[Place], ending: Ending, *, ran: bool) -> None:
        """Say of the cases that never ran whose fault that is.

        A pytest that dies twice between two cases of a submission that had run was killed by what
        that had left behind; one that dies before anything ran has a fault of its own. What pytest
        says it ran, and nothing was heard of, was taken out of the judge's pipe or spoilt in it.
        Out of a jail nothing of that can be done.
        """
        why = "was stopped" if ending.timed_out or ending.silent else "died"
        verdict, ended = Verdict.CRASH, self._came_to_its_end(ending)
        if self._jailed or not (ran or ended) or (ended and (self._reported or 0) <= self._heard):
            headline = f"the test run {why}: {ending.last_line}"
            verdict = Verdict.INTERNAL
        elif ended:
            headline = "the result did not arrive: your code did something to the judge's pipe"
        else:
            headline = f"not run: the test process {why} after your code had run in another"
        for place in sorted(left):
            self._end_case(place, Finding(verdict=verdict, message=Message(headline=headline)))


def _killed(problem: Problem, place: Place, ending: Ending) -> Finding:
    """The finding of a case in which the judge's own test process came to its end."""
    how = "was stopped" if ending.timed_out or ending.silent else "died"
    message = Message(
        headline=f"the judge's test process {how} while your code ran",
        test=f"test_{place[0]}",
        file=problem.file,
        help="your code, or a process it started, ended or stopped a process that is not its own",
    )
    return Finding(verdict=Verdict.CRASH, message=message)


# -- from findings to checks --------------------------------------------------------------------


def check_results(problem: Problem, findings: Findings, *, seed: str) -> list[CheckResult]:
    """Return the result of every check, in order."""
    results: dict[str, CheckResult] = {}
    for check in problem.checks:
        cases = problem.cases(check, seed)
        result = _check_result(problem, check, cases, findings)
        needed = results.get(check.needs) if check.needs else None
        if needed and needed.verdict is not Verdict.PASS and result.verdict is Verdict.PASS:
            message = Message(headline=f"not counted: {check.needs} does not pass")
            result = result.model_copy(
                update={"verdict": Verdict.SKIPPED, "share": 0.0, "message": message}
            )
        results[check.id] = result
    return list(results.values())


def _check_result(
    problem: Problem, check: Check, cases: dict[int, Case], findings: Findings
) -> CheckResult:
    places = [(check.id, index) for index in cases]
    found = {place: findings.cases[place] for place in places if place in findings.cases}
    verdicts = [finding.verdict for finding in found.values()]
    if len(found) < len(cases):
        verdicts.append(Verdict.SKIPPED)
    verdict = worst(verdicts) if cases else Verdict.NOT_MEASURED
    if verdict is Verdict.PASS and Verdict.NOT_MEASURED in verdicts:  # no check holds in part
        verdict = Verdict.NOT_MEASURED
    shown = _shown(found, verdict, findings)
    place, finding = shown if shown else (None, None)
    cause = findings.cause_of([place]) if place else None
    message = finding.message if finding else None
    if message is not None and cause is not None:
        message = cause.located(message)
    if message is None and verdict is Verdict.SKIPPED:
        message = Message(headline=findings.missing)
    step = message.step if message else None
    return CheckResult(
        id=check.id,
        title=title(problem, check),
        step=cause.step if step is None and cause else step,
        verdict=verdict,
        weight=check.weight,
        message=message,
        diagnosis=cause.diagnosis if cause else None,
        share=_share(problem, check, cases, found),
        cases_passed=verdicts.count(Verdict.PASS),
        cases_total=len(cases),
        duration_s=round(sum(f.duration_s for f in found.values()), 3),
        kernels=tuple(kernel for f in found.values() for kernel in f.kernels),
    )


def _shown(
    found: dict[Place, Finding], verdict: Verdict, findings: Findings
) -> tuple[Place, Finding] | None:
    """Return the case to show: one whose cause is known, else the first with the verdict."""
    alike = [(p, f) for p, f in found.items() if f.verdict is verdict]
    named = [(p, f) for p, f in alike if findings.cause_of([p])]
    return next(iter(named + alike), None)


def _share(
    problem: Problem, check: Check, cases: dict[int, Case], found: dict[Place, Finding]
) -> float:
    """Return the part of a check that holds: the share of its outputs that no case got wrong.

    A case that did not come to numbers, or was not run, counts against all of them.
    """
    judged = problem.judged(check)
    wrong: set[str] = set()
    for index in cases:
        finding = found.get((check.id, index))
        if finding is None:
            return 0.0
        if finding.verdict in (Verdict.PASS, Verdict.NOT_MEASURED):
            continue
        if finding.verdict is not Verdict.FAIL or not finding.wrong_outputs:
            return 0.0
        wrong.update(finding.wrong_outputs)
    return 1.0 - len(wrong.intersection(judged)) / len(judged)


def title(problem: Problem, check: Check) -> str:
    """Return a check's title: the docstring of its test function."""
    titles = _docstrings(problem.folder / f"test_{problem.id}.py")
    return titles.get(check.test_name, check.id.replace("_", " "))


@functools.cache
def _docstrings(path: Path) -> dict[str, str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        where = path.relative_to(ROOT)
        raise ManifestError(f"{where}: no such file; expected a test for each check") from None
    except (SyntaxError, ValueError) as error:
        raise ManifestError(f"{path.relative_to(ROOT)}: not valid Python: {error}") from None
    return {
        node.name: " ".join((ast.get_docstring(node) or node.name).split())
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }
