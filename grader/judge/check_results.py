"""Makes the result of each check from the findings of its cases."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from grader.causes.decide import PLAIN
from grader.judge.testrun import Findings, Place
from grader.source.submission import Source
from grader.spec.cases import Case
from grader.spec.causes import entries
from grader.spec.findings import Finding
from grader.spec.grade_record import CheckResult, Message, Verdict, worst
from grader.spec.problem import ROOT, ManifestError, Problem
from grader.spec.problem_tables import Check


def check_results(
    problem: Problem, findings: Findings, *, seed: str, source: Source
) -> list[CheckResult]:
    """Return the result of every check, in order, of a file that is graded."""
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
    found = list(results.values())
    steps = _steps_of_causes(problem, findings, found) if source.keeps_given else {}
    return [_located(problem, result, found, steps, source, findings) for result in found]


def _located(
    problem: Problem,
    result: CheckResult,
    results: list[CheckResult],
    steps: dict[str | None, int],
    source: Source,
    findings: Findings,
) -> CheckResult:
    """Add where a failure is, if no line is known: the step of its cause, and the step's lines.

    If one of these lines makes what is wrong, that line alone.
    """
    message, step = result.message, result.step
    if message is not None and message.line is not None:
        step = _among(problem, result, results, source) if step is None else step
        message = message.model_copy(update={"step": step})
        return result.model_copy(update={"step": step, "message": message})
    if step is None and result.verdict is Verdict.FAIL:
        step = steps.get(_id(result)) or _of_products(problem, result, source)
        if step is None and message is not None:
            raising = _step_that_raises(results, source)
            step, help = _left_undone(source) or (raising, message.help)
            message = message.model_copy(update={"help": help})
    if message is not None and step is not None:
        of_check = [f for (check, _), f in findings.cases.items() if check == result.id]
        outputs = {name for finding in of_check for name in finding.wrong_outputs}
        id = (_id(result) or "").removeprefix(f"{problem.id.upper()}-")
        part = entries()[id].part if id in entries() else ""
        found = source.statement_of_step(step, outputs, part)
        where: dict[str, object] = {"step_lines": source.lines_of_step(step)}
        message = message.model_copy(
            update={"line": found[0], "fed_by": found[1]} if found else where
        )
    return result.model_copy(update={"step": step, "message": message})


def _of_products(problem: Problem, result: CheckResult, source: Source) -> int | None:
    """Return the step that turns a check green, if the check counts products and no numbers."""
    counts = [check.id for check in problem.checks if check.judges == "products"]
    behind = problem.first_step_behind({result.id}.intersection(counts))
    return behind[0] if behind and source.keeps_given else None


def _left_undone(source: Source) -> tuple[int, str] | None:
    """Return the one step with code that leaves a name as it was given, and what to do about it."""
    given = source.left_as_given.items() if source.keeps_given else ()
    left = {step: (n, name) for n, (step, name) in given if source.lines_of_step(step)}
    if len(left) != 1:
        return None
    ((step, (line, name)),) = left.items()
    return step, f"set {name} in step {step}: it still has the value that line {line} gave it"


def _step_that_raises(results: list[CheckResult], source: Source) -> int | None:
    """Return the one step in which other checks fail with an error, as their sizes do not fit it.

    None where given code was changed, which may pass what does not fit to the step.
    """
    if not source.keeps_given:
        return None
    errors = [one.message for one in results if one.verdict is Verdict.ERROR and one.message]
    steps = {source.step_at(message.line) if message.line else None for message in errors}
    return steps.pop() if len(steps) == 1 else None


def _among(
    problem: Problem, result: CheckResult, results: list[CheckResult], source: Source
) -> int | None:
    """Return the step at fault among those whose lines lead to a failure: that of a known cause.

    Or the only one of them with a failing check of its own, if the checks of the others hold.
    """
    message = result.message
    if message is None or not source.keeps_given:
        return None
    lines = [n for n in (message.line, *message.fed_by) if n]
    steps = {step for n in lines if (step := source.step_at(n))}
    known = {one.step for one in results if one.diagnosis and one.step}
    if len(known) == 1 and known <= steps:
        return known.pop()
    holds = {one.id: one.verdict is Verdict.PASS for one in results}
    own = {n: [holds[id] for id in problem.steps[n - 1].turns_green if id in holds] for n in steps}
    failing = [n for n, checks in own.items() if not all(checks)]
    return failing[0] if len(failing) == 1 and len(steps) > 1 and all(own.values()) else None


def _steps_of_causes(
    problem: Problem, findings: Findings, results: list[CheckResult]
) -> dict[str | None, int]:
    """Return for each cause the step that makes all its wrong outputs, if others are right."""
    wrong: dict[str | None, set[str]] = {}
    right: dict[str | None, set[str]] = {}
    by_id = {result.id: _id(result) for result in results if result.verdict is Verdict.FAIL}
    passed = {result.id for result in results if result.verdict is Verdict.PASS}
    always = {name for c in problem.checks if c.id in passed for name in problem.judged(c)}
    for check in problem.checks:
        for (id, _), finding in findings.cases.items():
            if id == check.id in by_id and finding.wrong_outputs:
                wrong.setdefault(by_id[id], set()).update(finding.wrong_outputs)
                right.setdefault(by_id[id], set()).update(problem.judged(check))
    steps = {}
    for cause, names in wrong.items():
        of = [(len(s.makes), n) for n, s in enumerate(problem.steps, 1) if names <= set(s.makes)]
        at_core = len(names) == 1 or by_id.get(PLAIN, "") == cause  # not only at heads or lengths
        others = right[cause] | (always if not names & always else set())
        if of and at_core and others - names:
            steps[cause] = min(of)[1]  # the step that makes the fewest other outputs
    return steps


def _id(result: CheckResult) -> str | None:
    return result.diagnosis.id if result.diagnosis else None


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
        predicted=next((f.predicted for f in found.values() if f.predicted is not None), None),
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

    A case without numbers, or that was not run, counts against all of them.
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
