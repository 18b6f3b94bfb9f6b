"""Runs one problem's tests in pytest processes, and collects their findings.

Findings arrive one by one, so that a pytest that dies keeps what was earned: the next one goes on
with the other cases. If it died while a case ran, that case is the submission's crash: nothing else
runs then. The time that is lost so, silence and starts in vain included, is the problem's `lost_s`:
when it is used up, nothing of the submission runs any more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from grader.isolate.processes import Children, Ending
from grader.isolate.sandbox import PATIENCE
from grader.judge.request import Request
from grader.spec.findings import (
    CaseBegins,
    CaseEnds,
    CauseFound,
    Evidence,
    Finding,
    Phase,
    SourceFile,
    TestRequest,
    WorkCounted,
    read_event,
)
from grader.spec.grade_record import Message, Verdict
from grader.spec.problem import ROOT, Problem
from grader.spec.problem_tables import WORK

# Beyond the time of the submission's calls: imports, oracles, naming a cause.
_JUDGE_S = 600.0
_MAX_RUNS = 20
_NO_FAILURES = {Verdict.PASS, Verdict.NOT_MEASURED}
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
        request: Request,
        children: Children,
        *,
        compile_workers: int = 1,
        on_case: Callable[[str, Verdict], None] = lambda check, verdict: None,
        on_phase: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.problem = problem
        self.findings = Findings()
        self.interrupted = False
        self._source = SourceFile.of(problem.id, source)
        self._request = request
        self._children = children
        self._compile_workers = compile_workers
        self._on_case, self._on_phase = on_case, on_phase
        self._spent_s = self._lost_s = 0.0
        self._current: Place | None = None
        self._begun = 0
        self._begun_at = 0.0
        self._reported: int | None = None  # cases that pytest says it ran; None: it does not say
        self._heard = 0
        self._places = {(c.id, i) for c in problem.checks for i in problem.cases(c, request.seed)}

    def run(self) -> Findings:
        """Run all cases, in as many pytest processes as it takes."""
        innocent_deaths, retried = 0, False
        for _ in range(_MAX_RUNS):
            begun, started = self._begun, time.monotonic()
            ending = self._run_pytest()
            # Code in a jail cannot have ended a pytest.
            died_in = None if self.interrupted or self._request.jailed else self._current
            if died_in is not None:
                # A pytest that dies in its first case was started in vain.
                self._lost_s += time.monotonic() - (self._begun_at if self._heard else started)
                self._end_killed(died_in, ending)
            left = self._places - self.findings.cases.keys()
            verdicts = {finding.verdict for finding in self.findings.cases.values()}
            stopped = self._request.exit_first and bool(verdicts - _NO_FAILURES)
            if stopped:
                self.findings.missing = "not run: stopped at the first failure"
            if stopped or self.interrupted:
                return self.findings
            if not left:
                if self.findings.work is None and not self._came_to_its_end(ending):
                    verdict = Verdict.INTERNAL if self._request.jailed else Verdict.CRASH
                    reason = "the test process died before work was counted"
                    self.findings.work = Evidence(verdict=verdict, reason=reason)
                faults = self._faults()
                if retried or not faults:
                    break
                retried = True
                for place in faults:
                    del self.findings.cases[place]
            elif died_in is None:
                innocent_deaths += 1
                if innocent_deaths > 1 or self._came_to_its_end(ending):
                    self._give_up(left, ending, ran=self._begun > begun)
                    break
        return self._without_provoked_faults()

    def _faults(self) -> list[Place]:
        return [p for p, f in self.findings.cases.items() if f.verdict is Verdict.INTERNAL]

    def _without_provoked_faults(self) -> Findings:
        """Blame the submission for faults of the judge that came, twice, only after its code ran.

        Not in a jail, out of which it reaches nothing of the judge's.
        """
        for place in self._faults() if not self._request.jailed else ():
            finding = self.findings.cases[place]
            if finding.after_calls and finding.message is not None:
                help = "your code, or a process it started, did something to the judge's process"
                message = finding.message.model_copy(update={"help": help})
                update = {"verdict": Verdict.CRASH, "message": message}
                self.findings.cases[place] = finding.model_copy(update=update)
        return self.findings

    def _run_pytest(self) -> Ending:
        # A file without a name: nothing can take its place.
        with os.fdopen(os.memfd_create("report", os.MFD_CLOEXEC), "rb") as report:
            return self._hear_pytest(Path(f"/proc/{os.getpid()}/fd/{report.fileno()}"))

    def _hear_pytest(self, report: Path) -> Ending:
        arguments = [
            str(self.problem.folder / f"test_{self.problem.id}.py"),
            *("-q", "-p", "grader.judge.pytest_plugin", "-p", "no:cacheprovider", "--noconftest"),
            *("-p", "pytest_metadata.plugin", "-p", "pytest_jsonreport.plugin"),
            "--tb=native",  # cheap, and nobody reads it
            *("--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")),
            *("--json-report-omit", "collectors", "log", "traceback", "streams", "keywords"),
            *("--json-report", f"--json-report-file={report}"),
            *(["-x"] if self._request.exit_first else []),
        ]
        request = TestRequest(
            **self._request.of_child(),
            source=self._source,
            seed=self._request.seed,
            done=tuple(self.findings.cases),
            first=self._request.first,
            spent_s=self._spent_s,
            lost_s=self._lost_s,
            compile_workers=self._compile_workers,
            kernels=self._children.kernels,
            chips=self._request.chips,
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
            elif isinstance(event, Phase):
                self._on_phase(event.text)
            elif isinstance(event, CauseFound):
                self.findings.causes.append(event)
        self._read_report(report)
        return ending

    def _end_case(self, place: Place, finding: Finding) -> None:
        if place not in self.findings.cases and place in self._places:
            self.findings.cases[place] = finding
            self._on_case(place[0], finding.verdict)

    def _end_killed(self, place: Place, ending: Ending) -> None:
        """End a case, or the count of work, in which the judge's own test process ended."""
        message = Message(
            headline=f"the judge's test process {_how(ending)} while your code ran",
            test=f"test_{place[0]}",
            file=self.problem.file,
            help="your code, or a process it started, ended or stopped a process that is not its"
            " own",
        )
        self._end_case(place, Finding(verdict=Verdict.CRASH, message=message))
        if place[0] == WORK:
            self.findings.work = Evidence(verdict=Verdict.CRASH, reason=message.headline)

    def _read_report(self, path: Path) -> None:
        """Read from pytest's own report how many cases ran: no event of the pipe says so."""
        self._reported = None
        with contextlib.suppress(Exception):  # no report, or something else in its place
            tests = json.loads(path.read_text(encoding="utf-8"))["tests"]
            self._reported = sum("call" in test for test in tests)

    def _came_to_its_end(self, ending: Ending) -> bool:
        return ending.exit_code in _PYTEST_ENDINGS and self._reported is not None

    def _give_up(self, left: set[Place], ending: Ending, *, ran: bool) -> None:
        """End the cases that never ran, with a finding that says whose fault that is.

        A pytest that dies twice between two cases of a submission that had run was killed by what
        that had left behind; one that dies before anything ran has a fault of its own. Cases that
        pytest reports and no event does were removed from the judge's pipe or spoilt in it. A
        jailed submission can do none of that.
        """
        verdict, ended = Verdict.CRASH, self._came_to_its_end(ending)
        complete = ended and (self._reported or 0) <= self._heard
        if self._request.jailed or complete or not (ran or ended):
            headline = f"the test run {_how(ending)}: {ending.last_line}"
            verdict = Verdict.INTERNAL
        elif ended:
            headline = "the result did not arrive: your code did something to the judge's pipe"
        else:
            headline = f"not run: the test process {_how(ending)} after your code had run in"
            headline += " another"
        for place in sorted(left):
            self._end_case(place, Finding(verdict=verdict, message=Message(headline=headline)))


def _how(ending: Ending) -> str:
    return "was stopped" if ending.timed_out or ending.silent else "died"
