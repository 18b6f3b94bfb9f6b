"""Distinguishes a rounding from a wrong formula, by a call whose numbers are not rounded.

If its result is right, each place that rounds to 16 bits rounds alone in one more call.
"""

from __future__ import annotations

import dataclasses
import json
import re

import torch

from grader.causes.rules.numbers import Rounding
from grader.causes.state.program import Called
from grader.checks import outcome
from grader.checks.correctness import (
    Difference,
    Expected,
    expect,
    find_differences,
    is_of_tf32,
)
from grader.isolate.evidence import CallEvidence
from grader.isolate.session import Session
from grader.spec.protocol import Reply

_MOST_SITES = 12  # each takes a call
_BY_FP32 = "what fp32 allows"
_SHORT = {"fp16": torch.float16, "bf16": torch.bfloat16}
_FEWEST, _SHARE = 8, 1 / 8  # different numbers of 16 bits, in an output of others


def rounding(session: Session, called: Called) -> Rounding | None:
    """Return the rounding that alone makes a wrong result wrong.

    None where the result is wrong without any, or where each is small enough by itself.
    """
    names = tuple(difference.name for difference in called.differences)
    return _largest(session, called, names, _of(called.expected, names))


def of_tf32(called: Called, wrong: list[Difference]) -> bool:
    """Whether outputs of a GPU are wrong because dots cut their operands to TF32.

    That is no sign of another mistake; the machine refuses such dots before.
    """
    case, got = called.case, called.evidence.outputs
    if not called.problem.asks_ieee(case):
        return False
    cut = expect(called.problem, case, called.inputs, tuple(got), tf32=True)
    return all(is_of_tf32(got[d.name], d.name, called.expected, cut) for d in wrong)


def hidden_rounding(session: Session, called: Called) -> Rounding | None:
    """Return the rounding in a right result of a number from which others are computed.

    The operands of a dot may be rounded, and what is stored at the end; all else has to be as good
    as fp32.
    """
    names = tuple(called.evidence.outputs)
    found = _largest(session, called, names, None)
    return dataclasses.replace(found, allowed=_BY_FP32) if found else None


def rounded_output(called: Called) -> Rounding | None:
    """Return that an fp32 output of 16-bit inputs holds numbers of 16 bits, if one does.

    Its tolerance is that of the inputs, and would let such a rounding pass. Of fp32 numbers, one in
    8192 ends in 13 zeros by chance.
    """
    due = called.expected.truth if called.case.dtype != "fp32" else {}
    for name, got in called.evidence.outputs.items():
        if name not in due or got.dtype != torch.float32:
            continue
        for short, dtype in _SHORT.items():
            long = _rounds_to(due[name].float(), dtype).logical_not()
            cut = _rounds_to(got, dtype) & long
            few = len(got[cut].unique()) < _FEWEST or cut.sum() < _SHARE * long.sum()
            wrong = not few and find_differences({name: got}, _strict(called.expected, (name,)))
            if wrong:
                return Rounding(0, name, short, "", wrong[0].margin, (name,), _BY_FP32)
    return None


def _rounds_to(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return which numbers are as they are in a shorter type."""
    return numbers == numbers.to(dtype).float()


def _largest(
    session: Session,
    called: Called,
    names: tuple[str, ...],
    allowed: Expected | None,
) -> Rounding | None:
    """Return the rounding that changes most.

    With `allowed`, it is measured against that, and the result must be right without rounding.
    Else only numbers count from which others are computed, by what their rounding changes beyond
    fp32 in the result without rounding: constants of 16 bits may keep that from the truth.
    """
    if called.case.layout == "far":  # what lies between its rows would be read
        return None
    exact, strict = _call(session, called, ()), _strict(called.expected, names)
    if exact is None or (allowed and find_differences(exact.outputs, strict)):
        return None
    sites = [site for site in _sites(exact) if allowed or site.computed]
    allowed = allowed or dataclasses.replace(strict, truth=exact.outputs, honest=exact.outputs)
    found = None
    for site in sites:
        alone = _call(session, called, (site.key,))
        wrong = find_differences(alone.outputs, allowed) if alone else []
        margin = max((difference.margin for difference in wrong), default=0.0)
        if margin > (found.margin if found else 1.0):
            at = tuple(difference.name for difference in wrong)
            found = dataclasses.replace(site, margin=margin, wrong=at)
    return found


def _call(session: Session, called: Called, rounding: tuple[int, ...]) -> CallEvidence | None:
    names = tuple(called.evidence.outputs)
    evidence = session.call(called.case, called.inputs, names, rounding=rounding)
    return None if outcome.of_call(evidence, called.problem.signature) else evidence


def _of(expected: Expected, names: tuple[str, ...]) -> Expected:
    return dataclasses.replace(expected, truth={name: expected.truth[name] for name in names})


def _strict(expected: Expected, names: tuple[str, ...]) -> Expected:
    """Return what is expected of numbers that were not rounded: constants are fp32."""
    expected = _of(expected, names)
    return dataclasses.replace(expected, honest=expected.truth, precision="fp32")


def _sites(evidence: CallEvidence) -> list[Rounding]:
    """Return the places that round from the reply of a worker, which may hold anything."""
    reply, found = evidence.result, []
    try:
        said = json.loads(reply.text) if isinstance(reply, Reply) else []
        for key, name, dtype, op in said[:_MOST_SITES]:
            if all(re.fullmatch(r"[\w.]{0,64}", text) for text in (name, dtype, op)):
                found.append(Rounding(int(key), name, dtype, op))
    except (ValueError, TypeError):
        return []
    return found
