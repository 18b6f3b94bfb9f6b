"""Draws which keys a known mistake takes, and which heads it reads, from the mistake itself.

With queries of zeros all visible keys have the same weight, and with V the identity the output is
the matrix of weights: a key that takes part shows, and one that is counted twice has twice the
weight of its neighbours.
"""

import torch

import reference
from grader.spec.problem import problem_ids

_LENGTH = 12
_OPTIONS = {
    "p01": {"is_causal": True, "tile_q": 4, "tile_k": 4},
    "p06": {"window_size": 5},
    "p07": {"window_size": 4, "num_sink_tokens": 2},
    "p09": {"window_size": 4, "num_sink_tokens": 2},
}
# What the plain options above do not show.
_SPECIAL = {
    "SKIPPED-WITHOUT-CAUSAL": {"is_causal": False},
    "CAUSAL-NOT-ASKED": {"is_causal": False},
    "PADDED-KEYS-COUNTED": {"is_causal": False},
    "LAST-KEY-TILE-DROPPED": {"tile_k": 5},
    "KEY-TILES-END-AT-TILE-Q": {"tile_k": 3},
    "KEY-TILES-BEGIN-AT-TILE-Q": {"tile_k": 3},
    "MASK-INSIDE-THE-TILE": {"tile_q": 4, "tile_k": 2},
}
_TALL = {"WINDOW-EDGE-UNMASKED": (40, {"window_size": 9}), "SINKS-WHOLE-TILE": (24, {})}
_NOT_OF_PAIRS = {"K-V-SWAPPED", "PADDED-KEYS-COUNTED", "HEADS-ZERO", "BATCH-ZERO"}
_WORDS = {
    "#": "counted, correctly",
    "x": "visible, skipped",
    "!": "hidden, counted",
    "2": "counted twice",
    "?": "depends on the kernel",
}


def of(id: str) -> tuple[str, list[str]] | None:
    """Return the picture of a known mistake: what its letters mean, "" where it has none; rows."""
    known: dict[str, reference.Mistake] = {}
    for problem in problem_ids():
        for mistake in reference.mistakes_for(problem):
            if mistake.id == id:
                known.setdefault(problem, mistake)
    for problem, mistake in known.items():
        rows = pairs(mistake, problem)
        if rows:
            return legend(rows), [" ".join(row) if len(row) < 30 else row for row in rows]
    for problem, mistake in reversed(known.items()):
        rows = heads(mistake, problem)
        if rows:
            return "", rows
    return None


def pairs(mistake: reference.Mistake, problem: str) -> list[str]:
    """Return rows of letters, queries down and keys across; none where no pair is wrong."""
    if mistake.id in _NOT_OF_PAIRS or mistake.id.startswith("HEADS-"):
        return []
    options = dict(_OPTIONS.get(problem, {}))
    length, special = _TALL.get(mistake.id, (_LENGTH, _SPECIAL.get(mistake.id, {})))
    options |= special
    if problem != "p01":
        options = {name: n for name, n in options.items() if not name.startswith(("tile", "is_"))}
    inputs = _weights_show(length)
    predicted = mistake.predict(inputs, options)
    if not predicted or set(predicted) - {"out", "lse"} or "out" not in predicted:
        return []
    weights = predicted["out"][0, 0]
    rule = reference.rules(problem, options)
    rule.pop("softmax_scale")
    due = reference.visible_keys(length, length, **rule)
    return _letters(weights, due)


def _weights_show(length: int) -> dict[str, torch.Tensor]:
    zeros = torch.zeros(1, 1, length, length, dtype=torch.float64)
    return {"q": zeros, "k": zeros, "v": torch.eye(length, dtype=torch.float64)[None, None]}


def _letters(weights: torch.Tensor, due: torch.Tensor) -> list[str]:
    rows = []
    for row, visible in zip(weights, due, strict=True):
        usual = row[row > 1e-9].min() if (row > 1e-9).any() else torch.tensor(1.0)
        letters = []
        for weight, is_due in zip(row.tolist(), visible.tolist(), strict=True):
            if weight != weight:
                letters.append("?")
            elif weight <= 1e-9:
                letters.append("x" if is_due else ".")
            elif weight > 1.5 * usual:
                letters.append("2")
            else:
                letters.append("#" if is_due else "!")
        rows.append("".join(letters))
    return rows if set("".join(rows)) & set("x!2") else []


def legend(rows: list[str]) -> str:
    """Return what the letters of a picture mean."""
    used = "".join(rows)
    return ", ".join(f"`{letter}` {words}" for letter, words in _WORDS.items() if letter in used)


def heads(mistake: reference.Mistake, problem: str) -> list[str]:
    """Return which kv head each query head reads and which is due; none where they agree."""
    if not mistake.id.startswith("HEADS-"):
        return []
    num_q_heads, num_kv_heads = (6, 2) if problem not in ("p01", "p03", "p04") else (4, 4)
    q = torch.zeros(1, num_q_heads, 4, 4, dtype=torch.float64)
    kv = torch.zeros(1, num_kv_heads, 4, 4, dtype=torch.float64)
    values = kv + torch.arange(num_kv_heads, dtype=torch.float64)[None, :, None, None]
    options = {n: v for n, v in _OPTIONS.get(problem, {}).items() if not n.startswith("tile")}
    predicted = mistake.predict({"q": q, "k": kv, "v": values}, options)
    if not predicted:
        return []
    read = [_head(value) for value in predicted["out"][0, :, 0, 0].tolist()]
    due = [str(head // (num_q_heads // num_kv_heads)) for head in range(num_q_heads)]
    numbers = [str(head) for head in range(num_q_heads)]
    return [
        "query head      " + " ".join(numbers),
        "reads kv head   " + " ".join(read),
        "should read     " + " ".join(due),
    ]


def _head(value: float) -> str:
    return "?" if value != value else str(round(value))
