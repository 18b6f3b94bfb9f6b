"""Which query heads a wrong gradient of a kv head adds up, if not those of its group."""

from __future__ import annotations

import torch

from grader.causes.rules.head import Head
from grader.causes.rules.sighting import Sighting, by_numbers
from grader.spec.cases import Case
from grader.spec.inputs import Inputs
from reference.variants import attend, case_of
from reference.variants_backward import row_delta

_MOST_HEADS = 32  # over all batches
_SAME = 5e-2  # of a count
_MOST_TIMES = 4


def other_heads(problem_id: str, case: Case, inputs: Inputs, head: Head) -> Sighting | None:
    """Each query head gives its share whole, to a kv head that is not its own."""
    heads = case.batch * case.num_q_heads
    if head.name == "dq" or not 1 < heads <= _MOST_HEADS:
        return None
    shares = _shares(problem_id, case, inputs, head).flatten(0, 1)
    numbers = head.solved(list(shares))
    if numbers is None:
        return None
    times = torch.tensor(numbers)
    counts = times.round()
    if bool(((times - counts).abs() > _SAME).any()):
        return None
    group = case.num_q_heads // case.num_kv_heads
    own = torch.zeros(heads, dtype=torch.bool)
    own[(first := head.batch * case.num_q_heads + head.first_head) : first + group] = True
    others = bool((counts[~own] != 0).any())
    if not others or bool((counts < 0).any()) or bool((counts > _MOST_TIMES).any()):
        return None  # of its own group alone: the pairs are told
    got = _named(counts, case)
    return by_numbers(
        "GROUP-OF-OTHER-HEADS",
        name=head.name,
        where=head.where,
        got=got,
        group=_named(own.double(), case),
    )


def _shares(problem_id: str, case: Case, inputs: Inputs, head: Head) -> torch.Tensor:
    """Return what each query head gives to the gradient, (batch, q heads, keys, columns)."""
    known = case_of(problem_id, inputs.all, case.kwargs)
    lse = attend(known)["lse"][..., None]
    weights = torch.exp(known.scores().masked_fill(~known.visible(), -float("inf")) - lse)
    rows = known.dout
    if head.name == "dk":
        weights = weights * (known.dout @ known.values().mT - row_delta(known)[..., None])
        weights, rows = known.scale * weights, known.q
    return weights.mT @ rows[..., : head.got.shape[-1]]


def _named(counts: torch.Tensor, case: Case) -> str:
    """Name the heads that count, and how often those do that count more than once."""
    parts = []
    for batch, of_batch in enumerate(counts.unflatten(0, (case.batch, case.num_q_heads))):
        heads = [
            f"{head}{f' ({int(of_batch[head])} times)' if of_batch[head] > 1 else ''}"
            for head in torch.nonzero(of_batch).flatten().tolist()
        ]
        if heads:
            of = f" of batch {batch}" if case.batch > 1 else ""
            parts.append(f"query head{'s'[: len(heads) > 1]} {', '.join(heads)}{of}")
    return " and ".join(parts)
