"""Grade records as the judge makes them, of small problems and answers, in a second or less.

Cases are judged in this process (tests/harness.py) and not in a pytest of their own; what is
measured is given. Everything else is the grader's: sources, findings, checks, points, next step.
Inputs are rounded to eighths, so that sums of them are the same on every machine.
"""

import contextlib
import functools
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from unittest import mock

from rich.console import Console

from grader import api
from grader.api import Grader
from grader.commands.progress import Progress
from grader.judge import case, problem_run
from grader.judge.request import Request
from grader.judge.testrun import Findings
from grader.spec.cases import Case, CaseTable
from grader.spec.findings import Evidence, Finding, Measured, MeasureRequest, write_event
from grader.spec.grade_record import Amount, Environment, GradeRecord, Verdict, WorkFigures
from grader.spec.inputs import Inputs, make_inputs
from grader.spec.problem import Problem, load_problem
from grader.spec.problem_tables import Limits
from tests.environments import CPU
from tests.forked import forked_workers
from tests.harness import judge, run_of

SEED = "5eed"
# Of each problem two cases of a few checks.
_CHECKS = ("plain", "lse", "half", "ragged", "ragged_rows", "scale", "w_stride", "arguments")
_LIMITS = Limits(call_s=1.0, lost_s=1.5, total_s=60.0)
ALL_WORK = Evidence(figures=WorkFigures(elements_read=Amount(done=9, needed=9, naive=18), full=1.1))


def small(problem_id: str) -> Problem:
    """A problem with few and short cases, and little patience."""
    problem = load_problem(problem_id)
    checks = (check for check in problem.checks if check.id in _CHECKS)
    short = (check.model_copy(update={"cases": check.cases[:2]}) for check in checks)
    update: dict[str, object] = {"checks": tuple(short), "limits": _LIMITS}
    if problem.work is not None:
        cases = tuple(_short(table) for table in problem.work.cases)
        update["work"] = problem.work.model_copy(update={"cases": cases})
    return problem.model_copy(update=update)


def _short(table: CaseTable) -> CaseTable:
    size = {"seqlen": 192} if table.seqlen is not None else {"rows": 64, "cols": 256}
    return table.model_copy(update=size)


def _exact_inputs(problem: Problem, case: Case, seed: int) -> Inputs:
    made = make_inputs(problem, case, seed)
    return Inputs({name: (8.0 * t).round() / 8.0 for name, t in made.tensors.items()}, made.dout)


class _InThisProcess:
    """In place of `TestRun`: judges all cases here, and counts the work of what is right.

    On a GPU, which there is none, all cases pass, and the work is what `work` says.
    """

    def __init__(
        self,
        problem: Problem,
        source: bytes,
        request: Request,
        *_: object,
        work: Mapping[str, Evidence | None],
        **__: object,
    ):
        self.interrupted = False
        self._work = work
        self._arguments = (problem, source, request.environment.device, request.seed)

    def run(self) -> Findings:
        problem, source, device, seed = self._arguments
        if source.startswith(b"# fault"):
            raise OSError("no space left on device")
        if device == "cpu":
            judged = judge(source.decode(), problem, seed=seed)
            if not {check for check, _ in judged.wrong} & set(problem.rests_on.work):
                judged.findings.work = count_work(source.decode(), problem, seed)
            return judged.findings
        cases = {(c.id, i) for c in problem.checks for i in problem.cases(c, seed)}
        passed = dict.fromkeys(cases, Finding(verdict=Verdict.PASS))
        return Findings(passed, work=self._work.get(problem.id, ALL_WORK))


def count_work(source: str, problem: Problem, seed: str = SEED) -> Evidence:
    """Count the work of a source, in a worker of its own, whatever PyTorch does in it."""
    run = run_of(source, problem, seed, policy=False)
    try:
        return run.count_work()
    finally:
        run.sessions.close()


class _Measurements:
    """In place of `Children`: says what was measured."""

    def __init__(self, evidence: Mapping[str, tuple[Evidence, Evidence]]) -> None:
        self._evidence = evidence

    def events(self, module: str, arguments: list, request: str, deadline_s: float, ending):
        assert module == "grader.judge.measure"
        ending.exit_code = 0
        for problem, (speed, memory) in self._evidence.items():
            event = Measured(problem=problem, speed=speed, memory=memory)
            yield write_event(event, MeasureRequest.model_validate_json(request).token)

    def stop(self) -> None:
        pass

    def open_server(self, *, differentiate: bool) -> None:
        pass

    close = stop


@contextlib.contextmanager
def in_this_process(
    measured: Mapping[str, tuple[Evidence, Evidence]] | None = None,
    work: Mapping[str, Evidence | None] | None = None,
    problem_of: Callable[[str], Problem] = small,
    inputs_of: Callable[[Problem, Case, int], Inputs] = _exact_inputs,
) -> Iterator[None]:
    """While active the grader judges small problems, here, and measures what `measured` says.

    On a GPU it counts the work that `work` says, by problem; of others full marks. `problem_of`
    makes the problems in place of `small`, `inputs_of` the inputs of their cases.
    """
    run = functools.partial(_InThisProcess, work=work or {})
    with (
        forked_workers(),
        mock.patch.object(case, "make_inputs", inputs_of),
        mock.patch.object(problem_run, "make_inputs", inputs_of),
        mock.patch.object(api, "TestRun", run),
        mock.patch.object(api, "load_problem", problem_of),
        mock.patch.object(api, "Children", lambda: _Measurements(measured or {})),
    ):
        yield


def write_answers(folder: Path, answers: Mapping[str, str]) -> None:
    """Lay out a submission."""
    for problem_id, text in answers.items():
        path = folder / problem_id / load_problem(problem_id).file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def graded(
    folder: Path,
    answers: Mapping[str, str],
    *,
    environment: Environment = CPU,
    measured: Mapping[str, tuple[Evidence, Evidence]] | None = None,
    work: Mapping[str, Evidence | None] | None = None,
    problem_of: Callable[[str], Problem] = small,
) -> GradeRecord:
    """Grade `answers`, sources by problem id; what is measured and counted is given."""
    write_answers(folder, answers)
    request = Request(
        submission=folder,
        shown_as="answers",
        problems=tuple(answers),
        environment=environment,
        seed=SEED,
        jobs=1,
    )
    with in_this_process(measured, work, problem_of):
        return Grader(request, Progress(Console(file=io.StringIO()))).run()
