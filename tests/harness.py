"""Runs source code through the judge's own rooms, in this process: what many tests begin with."""

import ast
import dataclasses
import functools
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

from grader.isolate.compiled import compile_calls
from grader.isolate.session import Budget, Session
from grader.judge import compile_run
from grader.judge.case import CheckCase
from grader.judge.check_results import check_results
from grader.judge.problem_run import ProblemRun
from grader.judge.scoring import score_correctness
from grader.judge.sessions import Sessions
from grader.judge.testrun import Findings
from grader.source.submission import Source
from grader.spec.cases import Case
from grader.spec.findings import Finding
from grader.spec.grade_record import CheckResult, ComponentResult, Verdict
from grader.spec.problem import GIVEN, ROOT, Problem, load_problem
from grader.spec.problem_tables import Check

SEED = "5eed"
# Long enough for what is done at once on a busy machine, short beside the ten minutes that the
# processes of these tests sleep.
PROMPT_S = 120.0


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and nobody has asked about does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def until(condition: Callable[[], Any], within_s: float = PROMPT_S) -> Any:
    """Wait until `condition` returns something true, but not for ever; return what it did last."""
    deadline = time.monotonic() + within_s
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


@functools.cache
def model_answer(problem_id: str) -> str:
    """Source of the model answer."""
    return (ROOT / "solutions" / problem_id / load_problem(problem_id).file).read_text("utf-8")


@functools.cache
def whole_answer(problem_id: str) -> str:
    """Source of the model answer with what it imports from `given` written out in it.

    A mistake in those lines is one that a kernel without `given` can make.
    """
    text, parts = model_answer(problem_id), {}
    imports = sorted(_FROM_GIVEN.finditer(text), key=lambda match: match[1] == "loops")
    for match in imports:  # loops last: they are made of the others
        _write_out(match[1], set(re.findall(r"\w+", match[2])), parts)
    lines = _FROM_GIVEN.sub("", text).split("\n")
    last = max(n for n, line in enumerate(lines) if re.match("(import|from) ", line))
    return "\n".join([*lines[: last + 1], *parts, *lines[last + 1 :]])


def edited(text: str, *edits: tuple) -> str:
    """Return a text with edits: (old, new), or (old, new, how often the old text occurs).

    Raises:
        ValueError: one does not fit, for the text has changed.
    """
    for old, new, *count in edits:
        if text.count(old) != (expected := count[0] if count else 1):
            raise ValueError(f"got {text.count(old)} times {old!r}, expected {expected}")
        text = text.replace(old, new)
    return text


_FROM_GIVEN = re.compile(r"^from given\.(\w+) import (\([^)]*\)|[^\n]*)\n", re.MULTILINE)


def _write_out(module: str, wanted: set[str], parts: dict[str, None]) -> None:
    """Add the functions of these names in a module of `given`, behind all that they need."""
    text = (GIVEN / f"{module}.py").read_text("utf-8")
    lines = text.split("\n")
    body = ast.parse(text).body[1:]
    functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    names = set(wanted)
    while True:
        used = {n.id for name in names & functions.keys() for n in ast.walk(functions[name])
                if isinstance(n, ast.Name)}  # fmt: skip
        if used <= names:
            break
        names |= used
    for match in _FROM_GIVEN.finditer(text):
        _write_out(match[1], names & set(re.findall(r"\w+", match[2])), parts)
    for node in body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("given"):
            continue
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            continue  # a former name
        if not isinstance(node, ast.FunctionDef) or node.name in names:
            parts["\n".join(lines[first - 1 : node.end_lineno]) + "\n"] = None


@dataclasses.dataclass
class Judged:
    """What the judge made of one source: findings by check and case, causes, scored checks."""

    problem: Problem
    findings: Findings
    checks: list[CheckResult]

    def of(self, check_id: str) -> CheckResult:
        """The result of one check."""
        return next(check for check in self.checks if check.id == check_id)

    @property
    def wrong(self) -> dict[tuple[str, int], Finding]:
        """The cases that did not pass."""
        return {p: f for p, f in self.findings.cases.items() if f.verdict is not Verdict.PASS}

    @property
    def named(self) -> set[str]:
        """Ids of the causes that were named, without the problem's prefix."""
        return {c.diagnosis.id.partition("-")[2] for c in self.findings.causes}

    @property
    def correctness(self) -> ComponentResult:
        """Correctness as it is scored; checks that were left out count as not passed."""
        return score_correctness(self.checks, self.problem.points.correctness)[0]


def cases_of(
    problem: Problem, checks: Iterable[str], seed: str = SEED, device: str = "cpu"
) -> list[tuple[Check, int, Case]]:
    """All cases of these checks in their order, each with its check and number."""
    chosen = [check for check in problem.checks if check.id in set(checks)]
    return [(c, i, case) for c in chosen for i, case in problem.cases(c, seed).items()]


def run_of(
    source: str, problem: Problem, seed: str = SEED, *, device: str = "cpu", policy: bool = True,
    sessions: Any = None, **options: Any,
) -> ProblemRun:  # fmt: skip
    """The run of `source`, in sessions of its own or in some that stand for them."""
    data = Source(problem.id, source.encode(), policy=policy)
    sessions = sessions or Sessions(problem, data, device, Budget(problem.limits))
    return ProblemRun(problem, data, seed, sessions, **options)


def judge(
    source: str,
    problem: Problem,
    *,
    checks: Iterable[str] | None = None,
    seed: str = SEED,
    device: str = "cpu",
    policy: bool = True,
    enough: Callable[[dict[tuple[str, int], Finding]], bool] = lambda findings: False,
    last: Callable[[Session], None] = lambda session: None,
) -> Judged:
    """Judge `source` in the cases of `checks`, until `enough` findings are in.

    By default those of all checks but of the one that compiles, which counts as passed. It compiles
    for one chip here: tests/test_compiling.py and gradings compile for all.

    On the CPU kernels run on the tile machine; on cuda all cases run on the GPU. The text of
    `source` is not looked at; with `policy` what its calls have PyTorch do is. `last` may call
    the problem's entry once more, in the worker that is there.
    """
    run = run_of(source, problem, seed, device=device, policy=policy)
    findings = Findings()
    for_one = functools.partial(compile_calls, capabilities=(80,))
    wanted = set(checks) if checks is not None else {check.id for check in problem.checks}
    try:
        for check in problem.checks:
            if check.id not in wanted:
                continue
            if check.compiles and checks is None:
                findings.cases[(check.id, 0)] = Finding(verdict=Verdict.PASS)
                continue
            for index, case in problem.cases(check, seed).items():
                if device == "cuda":
                    case = dataclasses.replace(case, gpu=True)
                at = CheckCase(problem, check, index, case)
                with mock.patch.object(compile_run, "compile_calls", for_one):
                    findings.cases[at.place] = run.judge(at)
                if enough(findings.cases):
                    break
        causes = run.causes()
        last(run.sessions.open(problem, on_gpu=device == "cuda"))
    finally:
        run.sessions.close()
    findings.causes = causes
    checks = check_results(problem, findings, seed=seed, source=run.source)
    return Judged(problem, findings, checks)
