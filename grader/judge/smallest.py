"""Finds a small case that a submission gets wrong in the same way: one to work out by hand.

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


class _Gone(Exception):
    """The worker is gone: no more calls are made."""


def smaller_case(session: Session, called: Called) -> str | None:
    """Say which smaller case is wrong as the one that was `called`, and how; None without one."""
    tried: set[Case] = set()
    found, waiting = None, _smaller(called.case)
    with contextlib.suppress(_Gone):
        while (case := next(waiting, None)) is not None and len(tried) < _MOST_CALLS:
            difference = None if case in tried else _wrong(session, called, case)
            tried.add(case)
            if difference is not None:
                found, waiting = f"{case} is wrong, too: {difference.first}", _smaller(case)
    return found


def _wrong(session: Session, called: Called, case: Case) -> Difference | None:
    """Say how the first wrong output of a call is wrong in another case; NaN must stay NaN."""
    problem, name = called.problem, called.differences[0].name
    try:
        inputs = make_inputs(problem, case, case_seed(called.seed, "smallest"))
        expected = expect(problem, case, inputs, (name,))
    except (ValueError, RuntimeError, IndexError):  # these values need more room
        return None
    evidence = session.call(case, inputs, (name,))
    if not isinstance(evidence.result, Reply):
        raise _Gone
    if outcome.of_call(evidence, problem.signature) is not None:
        return None
    found = find_differences(evidence.outputs, expected)
    same = _has_nan(evidence, name) == _has_nan(called.evidence, name)
    return found[0] if found and same else None


def _has_nan(evidence: CallEvidence, name: str) -> bool:
    return bool(evidence.outputs[name].isnan().any())


def _smaller(case: Case) -> Iterator[Case]:
    """Yield cases that are smaller in one respect, the smallest first."""
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
