"""Computes the right states of a program: online softmax over the tiles that it visited, in fp64.

A pair of a query and a key is due where the key is visible. It counts from the first round in which
the kernel takes it; one that no round takes counts from the last round that holds its key.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from grader.checks.counted_pairs import due_pairs
from grader.kernel.observers.rounds import Rounds
from grader.spec.cases import Case
from grader.spec.inputs import Inputs

_UNDERFLOWS = 80.0  # exp of a score so far below the largest may be 0 in fp32


@dataclasses.dataclass(frozen=True)
class State:
    """The right state of the queries of a tile after a round; arrays by query.

    `largest` is the largest scaled score of the keys that count so far, -inf without one; `held`
    that of all keys of the tiles so far, visible or not. `lse` and `out` are over the keys that
    count, `magnitude` is `out` with the absolute values of v.
    """

    largest: np.ndarray
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


def oracle_of(problem_id: str, case: Case, inputs: Inputs, rounds: Rounds) -> Oracle:
    """Return the right states and the wrong pairs of the rounds of a program."""
    q, k, v = (inputs.tensors[name].double().numpy() for name in ("q", "k", "v"))
    rows, ids = rounds.queries >= 0, np.maximum(rounds.queries, 0)
    planes, places = ids // case.seqlen_q, ids % case.seqlen_q
    group = case.num_q_heads // case.num_kv_heads
    kv_planes = planes // case.num_q_heads * case.num_kv_heads + (
        planes % case.num_q_heads // group
    )
    flat = [tensor.reshape(-1, *tensor.shape[2:]) for tensor in (k, v)]
    of_rows = q.reshape(-1, q.shape[-1])[ids]
    scale = case.kwargs.get("softmax_scale")
    scale = 1.0 / math.sqrt(case.head_dim) if scale is None else float(scale)
    scores = np.empty((len(ids), case.seqlen_k))
    for plane in np.unique(kv_planes):
        here = kv_planes == plane
        scores[here] = scale * of_rows[here] @ flat[0][plane].T
    due = due_pairs(problem_id, case)[places] & rows[:, None]

    count = len(rounds)
    held = np.zeros((count, case.seqlen_k), bool)
    took = np.zeros((count, len(ids), case.seqlen_k), bool)
    positions = np.where(rounds.keys >= 0, rounds.keys % case.seqlen_k, -1)
    other_head, unknown = None, np.zeros(len(ids), bool)
    for r, keys in enumerate(rounds.keys):
        there = keys >= 0
        held[r, positions[r, there]] = True
        np.logical_or.at(
            took[r], (slice(None), positions[r, there]), rounds.taken[r][:, there] & rows[:, None]
        )
        if not rounds.kernel:  # a weight that is NaN is not 0, though its pair is masked
            unknown = unknown | _has_nan(rounds, r)
            took[r, unknown] = due[unknown] & held[r]
        kv = keys[there] // case.seqlen_k
        if other_head is None and not np.isin(kv, kv_planes[rows]).all():
            other_head = r
    counts_from = _counts_from(due, held, took)
    earlier = np.logical_or.accumulate(took, axis=0)
    earlier = np.concatenate([np.zeros_like(took[:1]), earlier[:-1]])
    reached = np.arange(count)[:, None, None] == counts_from
    saw = (rounds.column("products") > 0)[:, None, None]
    padding = (rounds.taken & (rounds.keys < 0)[:, None, :] & rows[:, None]).sum(axis=(1, 2))
    lost = reached & ~took & saw
    if not rounds.kernel:  # a weight of 0 is all that the judge sees of some masks in PyTorch
        top = np.where(due, scores, -np.inf).max(axis=1, keepdims=True)
        lost &= scores > top - _UNDERFLOWS
    pairs = Pairs(took & ~due, took & due & earlier, lost, padding)
    states, own = [], []
    times = np.zeros(scores.shape)
    for r in range(count):
        inside = held[: r + 1].any(axis=0)
        due_times = 1.0 * (counts_from <= r)
        states.append(_state(scores, due_times, inside, flat[1], kv_planes))
        times += took[r]
        same = np.array_equal(times, due_times)
        own.append(states[r] if same else _state(scores, times, inside, flat[1], kv_planes))
    never = due & ~held.any(axis=0)
    return Oracle(
        tuple(states),
        tuple(own),
        pairs,
        rows,
        positions,
        other_head,
        never,
        unknown,
        scale,
        case.seqlen_q,
    )


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
    scores: np.ndarray, times: np.ndarray, held: np.ndarray, values: np.ndarray, planes: np.ndarray
) -> State:
    """Return the state of pairs that count `times` each; the tiles so far have the keys `held`."""
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
        held=np.where(held[None, :], scores, -np.inf).max(axis=1),
        lse=lse,
        out=out,
        magnitude=magnitude,
    )
