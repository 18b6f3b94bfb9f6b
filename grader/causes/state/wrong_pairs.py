"""Finds pairs and heads that a followed program took though it must not."""

from __future__ import annotations

import numpy as np

from grader.causes.rules.pointers import elsewhere
from grader.causes.rules.sighting import Sighting
from grader.causes.state.comparing import Compared
from grader.checks.correctness import named_ranges
from grader.checks.counted_pairs import due_pairs
from grader.kernel.observers.rounds import Rounds
from grader.spec.cases import Case


def of_heads(case: Case, rounds: Rounds, compared: Compared) -> Sighting | None:
    """Find a tile of K of another head than the queries, or a tile of V of another than these."""
    oracle, mixed = compared.oracle, rounds.column("mixed")
    own = int(rounds.queries[rounds.queries >= 0][0]) // case.seqlen_q
    of = own * case.num_kv_heads // case.num_q_heads
    if oracle.other_head is not None:
        keys = rounds.keys[oracle.other_head]
        line = int(rounds.column("line")[oracle.other_head])
        plane, operand = int(keys[keys >= 0][0]) // case.seqlen_k, "k"
    elif mixed.any():
        r = int((mixed > 0).argmax())
        line, plane = int(rounds.column("product_line")[r]), int(mixed[r] - 1) // case.seqlen_k
        operand = "v"
    else:
        return None
    if plane == of:
        return None
    there, due = (divmod(n, case.num_kv_heads) for n in (plane, of))
    return elsewhere(line, operand, own % case.num_q_heads, there, due)


def of_pairs(problem_id: str, case: Case, rounds: Rounds, compared: Compared) -> Sighting | None:
    """Find wrong pairs in the tile where the state goes wrong, at the line of its mask, if any.

    If that tile is not known, in the first tile with wrong pairs. None where pairs are right, where
    a pair is taken again, and where keys are extra that are not after the query.
    """
    oracle, part = compared.oracle, compared.part
    astray = (r for r in range(len(rounds)) if oracle.pairs.any_in(r))
    at = part.round if part is not None else next(astray, None)
    if at is None or oracle.pairs.again[at].any():
        return None
    mask = int(rounds.column("mask_line")[at])
    extra, lost = oracle.pairs.extra[at], oracle.pairs.lost[at]
    wrong = extra & lost.any(1)[:, None] if (extra.any(1) & lost.any(1)).any() else extra | lost
    if not wrong.any() or not (mask or extra.any()):
        return None
    row = int(wrong.any(1).argmax())
    plane, query = divmod(int(rounds.queries[row]), case.seqlen_q)
    head = plane % case.num_q_heads
    said = f"query {query} of head {head}"
    if not lost.any():
        after = np.arange(case.seqlen_k) > (rounds.queries % case.seqlen_q)[:, None]
        if (extra & ~after).any():
            return None
        return Sighting(
            "KEYS-AFTER-THE-QUERY",
            mask,
            located=mask > 0,
            variant="" if mask else "not_masked",
            product="out",
            row=f"{said} counted {named_ranges('key', extra[row])}",
            tiles="",
        )
    if not extra.any():
        never = f"{said} never counted {named_ranges('key', lost[row])}"
        figures = {"visible": "visible keys", "row": never, "keys": "keys"}
        return Sighting("VISIBLE-KEYS-MASKED", mask, located=True, **figures)
    took = np.zeros(case.seqlen_k, bool)
    for keys, taken in zip(oracle.positions, rounds.taken[:, row], strict=True):
        took[keys[(keys >= 0) & taken]] = True
    return Sighting(
        "OTHER-PAIRS",
        mask,
        located=mask > 0,
        product="out",
        what="keys",
        row=f"query {query}",
        took=named_ranges("key", took) if took.any() else "no key",
        head=head,
        verb="sees",
        due=named_ranges("key", due_pairs(problem_id, case)[query]),
        tiles="",
    )
