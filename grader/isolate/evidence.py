"""What was seen of a submission, before anybody judged it."""

from __future__ import annotations

import dataclasses

import torch

from grader.kernel.observers.rounds import Rounds
from grader.kernel.observers.trace import Trace
from grader.spec.protocol import Ended, Reply


@dataclasses.dataclass(frozen=True)
class CallEvidence:
    """One call of an entry point.

    `result` is the worker's reply or how it ended, during its `what` ("import" or "call"). It is
    None when no call was made: because of `not_run`, an earlier one after which none can succeed,
    or because the problem's time is used up (`over_budget`).

    Of a call that came back `outputs` holds private copies; `unwritten`, where they still have the
    bytes that the judge had put there; `left_over`, where they have those of other memory that
    nobody wrote, or what was made of those; `overwritten`, the first input that was written to;
    `changed`, what was written outside of all tensors; `trace`, what its kernels did, where that
    was asked for and could be seen. `rounds`, those of one program that was followed, are there
    for a call that did not come back too, as far as it went.
    """

    result: Reply | Ended | None = None
    what: str = "call"
    outputs: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    unwritten: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    left_over: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    overwritten: str | None = None
    changed: str | None = None
    trace: Trace | None = None
    rounds: Rounds | None = None
    output: str = ""
    not_run: CallEvidence | None = None
    over_budget: str | None = None
