"""What pytest prints of failures, when all cases are in: each cause once.

What one case looks like, another may contradict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grader.report.message import event, failure_text
from grader.spec.findings import CauseFound


def show_each_cause_once(reporter: Any, causes: Mapping[Any, CauseFound]) -> None:
    """Leave one failure of each cause among pytest's failures; the others are counted apart.

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
        reporter.stats["failed for a cause told above"] = again
    if any(key[0] != "other" for key in shown):
        # pytest's own summary would cut the cause to the width of the terminal.
        reporter.reportchars = "".join(c for c in reporter.reportchars if c not in "fE")


def _kind(message: Any) -> str:
    """What failures without a known cause have in common: their headline, or a refusal's check."""
    return message.test if "invalid=" in (message.input or "") else event(message)


def name_causes(reporter: Any) -> None:
    """Name each cause once more, whole, at the end."""
    for report in reporter.stats.get("failed", ()):
        if getattr(report, "finding", None) is not None:
            reporter.write_line(str(report.longrepr).splitlines()[0], red=True)
