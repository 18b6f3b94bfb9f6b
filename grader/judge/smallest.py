"""The smallest case that a submission gets wrong in the same way: one to work out by hand.

Sizes, layouts and options are made smaller one by one, for as long as the same output stays wrong.
How many calls that may take is fixed, so that a run with the same seed says the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from grader.causes.state.program import Called
from grader.checks import outcome
from grader.checks.correctness import Difference, expect, find_differences
from grader.isolate.evidence import CallEvidence
from grader.isolate.session import Session
from grader.spec.cases import Case
from grader.spec.inputs import case_seed, make_inputs
from grader.spec.protocol import Reply

_MOST_CALLS = 60
_SIZES = (1, 2, 3, 4, 5, 8, 16, 17, 32, 33, 48, 64, 65, 96, 128, 129, 192, 256, 257)
_HEADS = ((1, 1), (2, 1), (2, 2), (4, 2))  # of queries, of keys
_HEAD_DIMS = (16, 32, 64)
_OPTIONS = {"window_size": 1, "num_sink_tokens": 0, "tile_q": 1, "tile_k": 1}  # and the least


class _TooLong(Exception):
    """No more calls are made."""


def smaller_case(session: Session, called: Called) -> str | None:
    """Say which smaller case is wrong as the one that was `called`, and how; None without one."""
    search, best, case = _Search(session, called), None, called.case
    with contextlib.suppress(_TooLong):
        while (found := search.step(case)) is not None:
            best, (case, _) = found, found
    return f"{best[0]} is wrong, too: {best[1].first}" if best else None


class _Search:
    """Tries cases in which the first wrong output of a call may be wrong too, a NaN as a NaN."""

    def __init__(self, session: Session, called: Called) -> None:
        self._session = session
        self._problem = called.problem
        self._seed = called.seed
        self._name = called.differences[0].name
        self._nan = _has_nan(called.evidence, self._name)
        self._tried: set[Case] = set()

    def step(self, case: Case) -> tuple[Case, Difference] | None:
        """Return the first of the smaller cases that is wrong."""
        for smaller in _smaller(case):
            if smaller in self._tried:
                continue
            difference = self._wrong(smaller)
            if difference is not None:
                return smaller, difference
        return None

    def _wrong(self, case: Case) -> Difference | None:
        if len(self._tried) == _MOST_CALLS:
            raise _TooLong
        self._tried.add(case)
        names = (self._name,)
        try:
            inputs = make_inputs(self._problem, case, case_seed(self._seed, "smallest"))
            expected = expect(self._problem, case, inputs, names)
        except (ValueError, RuntimeError, IndexError):  # these values need more room
            return None
        evidence = self._session.call(case, inputs, names)
        if not isinstance(evidence.result, Reply):  # the worker is gone
            raise _TooLong
        if outcome.of_call(evidence, self._problem.signature) is not None:
            return None
        found = find_differences(evidence.outputs, expected)
        return found[0] if found and _has_nan(evidence, self._name) == self._nan else None


def _has_nan(evidence: CallEvidence, name: str) -> bool:
    return bool(evidence.outputs[name].isnan().any())


def _smaller(case: Case) -> Iterator[Case]:
    """Yield cases that have one thing less, those that are smallest first."""
    kinds = {"layout": "dense", "dout_layout": "dense", "values": "normal", "batch": 1}
    for name, plain in kinds.items():
        if getattr(case, name) != plain:
            yield dataclasses.replace(case, **{name: plain})
    for q, kv in _HEADS:
        if q < case.num_q_heads and kv <= case.num_kv_heads:
            yield dataclasses.replace(case, num_q_heads=q, num_kv_heads=kv)
    if case.rows is not None and case.cols is not None:
        yield from _with(case, _SIZES, case.rows, "rows")
        yield from _with(case, _SIZES, case.cols, "cols")
        return
    yield from _with(case, _HEAD_DIMS, case.head_dim, "head_dim")
    if case.seqlen_q == case.seqlen_k:
        yield from _with(case, _SIZES, case.seqlen_q, "seqlen_q", "seqlen_k")
    else:
        yield from _with(case, _SIZES, case.seqlen_q, "seqlen_q")
        yield from _with(case, _SIZES, case.seqlen_k, "seqlen_k")
    for option, least in _OPTIONS.items():
        for size in dict.fromkeys((least, *_SIZES)):
            value: Any = case.kwargs.get(option)
            if value is not None and size < value:
                options = tuple((n, size if n == option else v) for n, v in case.options)
                yield dataclasses.replace(case, options=options)


def _with(case: Case, sizes: tuple[int, ...], most: int, *names: str) -> Iterator[Case]:
    for size in sizes:
        if size < most:
            yield dataclasses.replace(case, **dict.fromkeys(names, size))
