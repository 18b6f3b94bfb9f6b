"""Which kv head each query head reads (p05)."""

from __future__ import annotations

import torch

import reference

from .canvas import MARGIN, WIDTH, Canvas, Picture

NUM_Q_HEADS = 6
GROUPINGS = (
    (6, "MHA: a kv head per query head"),
    (2, "GQA: a kv head per group"),
    (1, "MQA: one kv head for all"),
)


def kv_head_of(num_q_heads: int, num_kv_heads: int) -> list[int]:
    """The kv head that the reference reads for each query head.

    With a single token each output is the value of the kv head that was read.
    """
    head_dim = 16
    q = torch.zeros(1, num_q_heads, 1, head_dim, dtype=torch.float64)
    k = torch.zeros(1, num_kv_heads, 1, head_dim, dtype=torch.float64)
    v = torch.arange(num_kv_heads, dtype=torch.float64)[None, :, None, None].expand_as(k)
    out, _ = reference.gqa_attention(q, k, v)
    return [round(value) for value in out[0, :, 0, 0].tolist()]


def kv_heads() -> Picture:
    """MHA, GQA and MQA: the same query heads, fewer and fewer kv heads."""
    readers = {heads: kv_head_of(NUM_Q_HEADS, heads) for heads, _ in GROUPINGS}
    canvas = Canvas(
        "kv-heads",
        title="Query heads share kv heads: each its own, one per group, one for all",
        desc=f"Three rows with {NUM_Q_HEADS} query heads each. With {NUM_Q_HEADS} kv heads every "
        "query head reads its own. "
        + " ".join(
            f"With {heads} kv {'head' if heads == 1 else 'heads'}, query heads 0 to "
            f"{NUM_Q_HEADS - 1} read kv heads {', '.join(map(str, readers[heads]))}."
            for heads, _ in GROUPINGS[1:]
        ),
        height=578,
    )
    canvas.heading("Query heads share kv heads;", "k and v shrink by the size of the group")
    for number, (heads, words) in enumerate(GROUPINGS):
        _panel(canvas, 84 + 162 * number, words, readers[heads], heads)
    return canvas.finish()


def _panel(canvas: Canvas, y: float, words: str, reader: list[int], num_kv_heads: int) -> None:
    """One grouping: query heads above, the kv heads that they read below."""
    left, pitch, width = 108, 61, 48
    group_size = NUM_Q_HEADS // num_kv_heads
    canvas.text(MARGIN, y + 8, words, bold=True)
    canvas.text(
        WIDTH - MARGIN,
        y + 8,
        f"1/{group_size} of `k`, `v`" if group_size > 1 else "",
        anchor="end",
        fill="soft",
    )
    canvas.text(MARGIN, y + 42, "query head")
    canvas.text(MARGIN, y + 124, "kv head")

    def middle(first: int, last: int) -> float:
        return left + (first + last) / 2 * pitch + width / 2

    for kv_head in range(num_kv_heads):
        group = [q_head for q_head, read in enumerate(reader) if read == kv_head]
        x = middle(group[0], group[-1])
        for q_head in group:
            ends = [
                (middle(q_head, q_head), y + 52),
                (x + (q_head - sum(group) / len(group)) * 8, y + 104),
            ]
            canvas.line(ends, stroke="ink", arrow=True)
        canvas.box(x - width / 2, y + 104, width, 30, "orange")
        canvas.text(x, y + 124, str(kv_head), anchor="middle", bold=True)
    for q_head in range(NUM_Q_HEADS):
        canvas.box(left + q_head * pitch, y + 22, width, 30, "blue")
        canvas.text(middle(q_head, q_head), y + 42, str(q_head), anchor="middle", bold=True)
