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

    For a call that came back, `outputs` holds private copies; `unwritten` is where nobody wrote to
    them; `left_over`, where they hold other memory that nobody wrote, or what was computed from
    such; `overwritten`, the first input that was written to; `changed`, what was written outside of
    all tensors; `trace`, what its kernels did, if that was asked for and could be seen. `rounds`,
    those of the program that was followed, exist as far as it went if a call did not come back.
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
