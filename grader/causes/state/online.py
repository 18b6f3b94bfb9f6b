"""Computes the right states of a program: online softmax over the tiles that it visited, in fp64.

A pair of a query and a key is due where the key is visible. It counts from the first round in which
the kernel takes it; one that no round takes counts from the last round that holds its key.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from grader.checks.counted_pairs import due_pairs
from grader.kernel.observers.rounds import Rounds
from grader.spec.cases import Case
from grader.spec.inputs import Inputs
from reference.variants import case_of

_UNDERFLOWS = 80.0  # exp of a score so far below the largest may be 0 in fp32


@dataclasses.dataclass(frozen=True)
class State:
    """The right state of the queries of a tile after a round; arrays by query.

    `largest` is the largest scaled score of the keys that count so far, -inf without one; `of_tile`
    that of those that count from this round on, `held` that of all keys of the tiles so far,
    visible or not. `lse` and `out` are over the keys that
    count, `magnitude` is `out` with the absolute values of v.
    """

    largest: np.ndarray
    of_tile: np.ndarray
    held: np.ndarray
    lse: np.ndarray
    out: np.ndarray
    magnitude: np.ndarray


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Wrong pairs of a query of the tile and a key, boolean, (rounds, queries, keys).

    `extra` were taken though not due, `again` a second time; `lost` are due and were never taken.
    `padding` counts by round the pairs of a query and a lane past the last key that were taken.
    """

    extra: np.ndarray
    again: np.ndarray
    lost: np.ndarray
    padding: np.ndarray

    def any_in(self, r: int) -> bool:
        """Whether any pair is wrong in a round."""
        wrong = (self.extra, self.again, self.lost, self.padding)
        return any(bool(pairs[r].any()) for pairs in wrong)


@dataclasses.dataclass(frozen=True)
class Oracle:
    """The right state after each round, and the wrong pairs of each round.

    `own` are the states of the pairs that the kernel took, due or not, as often as it took them:
    they identify its variables. `rows` says which queries of the tile exist. `positions`
    holds the keys of each round by their number in the sequence, -1 for none. `other_head` is the
    first round whose keys are of another kv head than the queries', None without one. `never` are
    the keys that are due, (queries, keys), and that no round holds. `unknown` are the queries whose
    weights became NaN: which pairs they took is not known. `scale` is softmax_scale.
    """

    states: tuple[State, ...]
    own: tuple[State, ...]
    pairs: Pairs
    rows: np.ndarray
    positions: np.ndarray
    other_head: int | None
    never: np.ndarray
    unknown: np.ndarray
    scale: float
    seqlen_q: int


def oracle_of(
    problem_id: str, case: Case, inputs: Inputs, rounds: Rounds, counted: np.ndarray | None = None
) -> Oracle:
    """Return the right states and the wrong pairs of the rounds of a program.

    `counted`, (batch * heads * seqlen_q, seqlen_k), are the pairs that any program counted: those
    that others count are not due in this one.
    """
    known = case_of(problem_id, inputs.all, case.kwargs)
    rows, sizes = rounds.queries >= 0, (case.batch, case.num_q_heads, case.seqlen_q)
    batches, heads, places = np.unravel_index(np.maximum(rounds.queries, 0), sizes)
    planes = batches * case.num_kv_heads + known.kv_heads.numpy()[heads]
    keys, values = (tensor.flatten(0, 1).numpy() for tensor in (known.k, known.v))
    queries = known.scale * known.q[batches, heads, places].numpy()
    scores = np.empty((len(rows), case.seqlen_k))
    for plane in np.unique(planes):
        scores[planes == plane] = queries[planes == plane] @ keys[plane].T
    due = due_pairs(problem_id, case)[places] & rows[:, None]

    positions = np.where(rounds.keys >= 0, rounds.keys % case.seqlen_k, -1)
    held, took, unknown = _seen(rounds, positions, due)
    if counted is not None:
        due &= took.any(axis=0) | ~counted[np.maximum(rounds.queries, 0)]
    counts_from = _counts_from(due, held, took)
    states, own, times = [], [], np.zeros(scores.shape)
    for r in range(len(rounds)):
        inside, due_times = held[: r + 1].any(axis=0), 1.0 * (counts_from <= r)
        states.append(_state(scores, due_times, counts_from == r, inside, values, planes))
        times += took[r]
        same = np.array_equal(times, due_times)
        own.append(states[r] if same else _state(scores, times, took[r], inside, values, planes))
    of_tiles = [of[of >= 0] // case.seqlen_k for of in rounds.keys]
    astray = (r for r, of in enumerate(of_tiles) if not np.isin(of, planes[rows]).all())
    return Oracle(
        states=tuple(states),
        own=tuple(own),
        pairs=_wrong_pairs(rounds, scores, due, took, counts_from),
        rows=rows,
        positions=positions,
        other_head=next(astray, None),
        never=due & ~held.any(axis=0),
        unknown=unknown,
        scale=known.scale,
        seqlen_q=case.seqlen_q,
    )


def _seen(
    rounds: Rounds, positions: np.ndarray, due: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return by round the keys held and the pairs taken, and queries whose pairs are unknown."""
    rows, unknown = rounds.queries >= 0, np.zeros(len(due), bool)
    held = np.zeros((len(rounds), due.shape[1]), bool)
    took = np.zeros((len(rounds), *due.shape), bool)
    for r, keys in enumerate(positions):
        there = keys >= 0
        held[r, keys[there]] = True
        taken = rounds.taken[r][:, there] & rows[:, None]
        np.logical_or.at(took[r], (slice(None), keys[there]), taken)
        # A weight that is NaN is not 0, though its pair may have been masked unseen.
        if not rounds.kernel and not rounds.column("mask_line")[r]:
            unknown = unknown | _has_nan(rounds, r)
            took[r, unknown] = due[unknown] & held[r]
    return held, took, unknown


def _wrong_pairs(
    rounds: Rounds, scores: np.ndarray, due: np.ndarray, took: np.ndarray, counts_from: np.ndarray
) -> Pairs:
    earlier = np.zeros_like(took)
    earlier[1:] = np.logical_or.accumulate(took, axis=0)[:-1]
    reached = np.arange(len(took))[:, None, None] == counts_from
    lost = reached & ~took & (rounds.column("products") > 0)[:, None, None]
    if not rounds.kernel:  # a weight of 0 is all that the judge sees of some masks in PyTorch
        top = np.where(due, scores, -np.inf).max(axis=1, keepdims=True)
        lost &= scores > top - _UNDERFLOWS
    exist = (rounds.queries >= 0)[:, None]
    padding = (rounds.taken & (rounds.keys < 0)[:, None, :] & exist).sum(axis=(1, 2))
    return Pairs(took & ~due, took & due & earlier, lost, padding)


def _has_nan(rounds: Rounds, r: int) -> np.ndarray:
    """Return the rows in which a carried variable is NaN after a round."""
    held = [of.values[r] for of in (*rounds.vectors, *rounds.matrices) if of.carried]
    nan = [np.isnan(values).reshape(len(values), -1).any(1) for values in held]
    return functools.reduce(np.logical_or, nan, np.zeros(len(rounds.queries), bool))


def _counts_from(due: np.ndarray, held: np.ndarray, took: np.ndarray) -> np.ndarray:
    """Return the round from which each pair counts; behind the last for those that never do."""
    count = len(held)
    taken = took.any(axis=0)
    last_held = count - 1 - held[::-1].argmax(axis=0)
    found = np.where(taken, took.argmax(axis=0), last_held[None, :])
    return np.where(due & held.any(axis=0), found, count)


def _state(
    scores: np.ndarray,
    times: np.ndarray,
    tile: np.ndarray,
    held: np.ndarray,
    values: np.ndarray,
    planes: np.ndarray,
) -> State:
    """Return the state of pairs that count `times` each, the last ones those of `tile`.

    The tiles so far have the keys `held`.
    """
    visible = np.where(times > 0, scores, -np.inf)
    largest = visible.max(axis=1)
    safe = np.where(np.isfinite(largest), largest, 0.0)
    weights = times * np.exp(visible - safe[:, None])
    total = weights.sum(axis=1)
    share = weights / np.where(total > 0, total, 1.0)[:, None]
    lse = safe + np.log(total)
    out = np.empty((len(scores), values.shape[-1]))
    magnitude = np.empty_like(out)
    for plane in np.unique(planes):
        here = planes == plane
        out[here] = share[here] @ values[plane]
        magnitude[here] = share[here] @ np.abs(values[plane])
    return State(
        largest=largest,
        of_tile=np.where(tile, scores, -np.inf).max(axis=1),
        held=np.where(held[None, :], scores, -np.inf).max(axis=1),
        lse=lse,
        out=out,
        magnitude=magnitude,
    )
