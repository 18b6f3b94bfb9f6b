"""Runs one problem's tests in a pytest process and reads its report into check results."""

from __future__ import annotations

import ast
import functools
import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from grader.manifest import ROOT, Check, Problem
from grader.model import (
    CheckResult,
    Diagnosis,
    Message,
    Verdict,
    diagnosis_from_json,
    message_from_json,
    worst,
)
from grader.processes import Children

DEADLINE_S = 900.0

# By check id and number of the case: the finding that the plugin recorded.
Findings = dict[str, dict[int, dict[str, Any]]]


def run_tests(
    problem: Problem,
    *,
    submission: Path,
    device: str,
    seed: str,
    children: Children,
    on_case: Any,
) -> tuple[Findings, str]:
    """Run test_pNN.py against `submission`; return the findings, or why there are none.

    `on_case(check_id, verdict)` is called as each case ends.
    """
    with tempfile.TemporaryDirectory(prefix="report-") as folder:
        path = Path(folder) / "report.json"
        arguments = [
            *("-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT)),
            *("-c", str(ROOT / "pyproject.toml"), "--json-report", f"--json-report-file={path}"),
            *("--json-report-omit", "collectors", "log", "traceback", "streams", "keywords"),
            f"--submission={submission}",
            f"--device={device}",
            f"--seed={seed}",
            str(problem.folder / f"test_{problem.id}.py"),
        ]
        outcome: dict[str, Any] = {}
        for event in children.events("pytest", arguments, DEADLINE_S, outcome):
            on_case(event["check"], Verdict(event["verdict"]))
        try:
            return _findings(json.loads(path.read_text(encoding="utf-8"))), ""
        except (OSError, ValueError):
            why = "ran into its deadline" if outcome.get("timed_out") else "wrote no report"
            return {}, f"the test run {why}: {outcome['output'][-400:].strip()}"


def _findings(report: dict[str, Any]) -> Findings:
    found: Findings = {}
    for test in report.get("tests", ()):
        name, _, rest = test["nodeid"].rpartition("::")[2].partition("[")
        properties = {k: v for p in test.get("user_properties", ()) for k, v in p.items()}
        finding = properties.get("finding")
        if finding is None:
            if test.get("setup", {}).get("outcome") == "passed" and "call" not in test:
                continue  # Ctrl-C came during the call: it has no result
            text = test.get("setup", {}).get("crash", {}).get("message", test["outcome"])
            finding = {
                "verdict": Verdict.INTERNAL.value,
                "message": {"headline": f"the judge failed: {text}"},
                "candidates": [],
            }
        finding["duration_s"] = test.get("call", {}).get("duration", 0.0)
        index = int(rest.split("-", 1)[0])
        found.setdefault(name.removeprefix("test_"), {})[index] = finding
    return found


def check_result(
    problem: Problem,
    check: Check,
    device: str,
    found: dict[int, dict],
    missing: str,
    elsewhere: set[str],
) -> CheckResult:
    """Return what the findings of one check's cases come to; `missing` says why cases lack one.

    `elsewhere` are the `likely_causes` of the whole problem.
    """
    cases = check.cases_on(device, triton=problem.uses_triton)
    findings = [found[i] for i in sorted(found)]
    verdicts = [Verdict(f["verdict"]) for f in findings]
    if len(findings) < len(cases):
        verdicts.append(Verdict.SKIPPED)
    verdict = worst(verdicts) if cases else Verdict.NOT_MEASURED
    diagnosis = _common_cause(findings, elsewhere)
    alike = [f for f in findings if f["verdict"] == verdict.value]
    named = [f for f in alike if diagnosis and _explained_by(f, diagnosis.id)]
    shown = next(iter(named + alike), None)
    message = message_from_json(shown["message"]) if shown else None
    if message is None and verdict is Verdict.SKIPPED:
        message = Message(missing)
    return CheckResult(
        id=check.id,
        title=title(problem, check),
        step=check.step,
        verdict=verdict,
        weight=check.weight,
        message=message,
        diagnosis=diagnosis if named else None,
        cases_passed=verdicts.count(Verdict.PASS),
        cases_total=len(cases),
        duration_s=round(sum(f["duration_s"] for f in findings), 3),
    )


def likely_causes(findings: Iterable[dict]) -> set[str]:
    """Return the known mistakes that explain every wrong result that any of them explains."""
    explained = [{c["id"] for c in f["candidates"]} for f in findings if f["candidates"]]
    return set.intersection(*explained) if explained else set()


def _common_cause(findings: Sequence[dict], elsewhere: set[str]) -> Diagnosis | None:
    """Return the one known mistake that explains the wrong results of a check, if there is one.

    A case that no known mistake explains does not speak against one that explains the others: a
    padded key or a second mistake may show there besides. Where several fit, the problem's other
    checks decide (`elsewhere`).
    """
    common = likely_causes(findings)
    if len(common) > 1:
        common &= elsewhere
    if len(common) != 1:
        return None
    (id,) = common
    candidates = (c for f in findings for c in f["candidates"])
    return next(diagnosis_from_json(c) for c in candidates if c["id"] == id)


def _explained_by(finding: dict, id: str) -> bool:
    return any(candidate["id"] == id for candidate in finding["candidates"])


def title(problem: Problem, check: Check) -> str:
    """Return a check's title: the docstring of its test function."""
    return _titles(problem).get(check.test_name, check.id.replace("_", " "))


@functools.cache
def _docstrings(path: Path) -> dict[str, str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.name: " ".join((ast.get_docstring(node) or node.name).split())
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }


def _titles(problem: Problem) -> dict[str, str]:
    return _docstrings(problem.folder / f"test_{problem.id}.py")
