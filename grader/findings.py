"""What one case came to, and how a worker's reply or end reads as verdict and headline."""

from __future__ import annotations

import dataclasses
from typing import Any

from grader.model import Diagnosis, Message, Verdict
from grader.protocol import Reply, Status
from grader.sandbox import Ended

_STATUS_VERDICT = {
    Status.NOT_IMPLEMENTED: Verdict.NOT_IMPLEMENTED,
    Status.OUT_OF_MEMORY: Verdict.OUT_OF_MEMORY,
    Status.DEVICE_FAULT: Verdict.CRASH,
    Status.GUARD_CHANGED: Verdict.FAIL,
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one case came to. `candidates` are the known mistakes that would explain it."""

    verdict: Verdict
    message: Message | None = None
    candidates: tuple[Diagnosis, ...] = ()
    margin: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the finding as plain data for the test report."""
        data = dataclasses.asdict(self)
        data["verdict"] = self.verdict.value
        return data


class CaseFailed(Exception):
    """A case that did not pass; holds its finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message.headline if finding.message else finding.verdict.value)
        self.finding = finding


def of_reply(reply: Reply, signature: str) -> tuple[Verdict, str, str | None]:
    """Return verdict, headline and extent of a reply that is not OK: all the submission's own.

    An access outside a tensor has the same headline however far it reaches: it is one cause.
    """
    if reply.status == Status.OUT_OF_BOUNDS:
        headline, _, extent = reply.text.partition("; ")
        return Verdict.FAIL, headline, extent or None
    named = f"{reply.error_type}: {reply.text}" if reply.text else reply.error_type
    headline = {
        Status.NOT_IMPLEMENTED: reply.text or "not implemented",
        Status.BAD_RETURN: reply.text,
        Status.NO_ENTRY: f"{reply.text}, expected {signature}",
        Status.GUARD_CHANGED: f"write outside a tensor: {reply.text}",
        Status.OUT_OF_MEMORY: f"out of memory: {named}",
        Status.IMPORT_FAILED: f"the file cannot be imported: {named}",
        Status.COMPILE_FAILED: f"Triton cannot compile the kernel: {reply.text}",
        Status.EXITED: f"the submission called exit: {reply.text}",
    }.get(reply.status, named)
    return _STATUS_VERDICT.get(reply.status, Verdict.ERROR), headline, None


def how_ended(ended: Ended, what: str) -> str:
    """Return one sentence on how the worker ended during its `what`: start, import or call."""
    if ended.timeout:
        return f"no result after {ended.waited_s:.3g} s: the {what} was stopped"
    if ended.signal_name:
        return f"the process died with {ended.signal_name} during the {what}"
    if ended.exit_code is not None:
        return f"the process exited with code {ended.exit_code} during the {what}"
    return f"the process closed its connection to the judge during the {what}"
