"""The oracle: naive PyTorch, exact in fp64, with its gradients, and the known mistakes."""

import torch

from .blocked import blocked_attention, blocked_gradients
from .gradients import attention_gradients, gqa_gradients, gradients
from .magnitudes import magnitudes
from .mistakes import MISTAKES, Mistake, mistakes_for, relative_distance, shared_answer
from .mistakes_of_bridges import bridge_mistakes_for
from .naive import (
    causal_attention,
    flash_attention,
    gqa_attention,
    gqa_attention_training,
    noncausal_attention,
    row_logsumexp,
    sink_attention,
    sink_window_attention,
    sliding_window_attention,
    visible_keys,
    weighted_row_sum,
)
from .rules import OUTPUTS, rules

__all__ = [
    "MISTAKES",
    "OUTPUTS",
    "Mistake",
    "attention_gradients",
    "blocked_attention",
    "blocked_gradients",
    "bridge_mistakes_for",
    "causal_attention",
    "flash_attention",
    "gqa_attention",
    "gqa_attention_training",
    "gqa_gradients",
    "gradients",
    "magnitudes",
    "make_first_calls",
    "mistakes_for",
    "noncausal_attention",
    "relative_distance",
    "row_logsumexp",
    "rules",
    "shared_answer",
    "sink_attention",
    "sink_window_attention",
    "sliding_window_attention",
    "visible_keys",
    "weighted_row_sum",
]


def make_first_calls():
    """Call exp and log once on one element; do this before the first oracle of a process.

    On a CPU the first call of a process may have a low accuracy in one of several threads
    (github.com/pytorch/pytorch/issues/188792, with oneMKL before 2025.0). A call on one element
    runs on one thread, and the oracle's is then not the first.
    """
    for dtype in (torch.float32, torch.float64):
        torch.ones(1, dtype=dtype).exp().log()
