"""Known mistakes with sink logits."""

import math

import torch

from .mistakes_softmax import out_of
from .variants import LOG2_E, known

LOGIT = ("p09",)

LOGIT_MISTAKES = (
    known(
        "SINK-LOGIT-IGNORED",
        LOGIT,
        lambda case: out_of(case, sink_logits=torch.full_like(case.q[0, :, 0, 0], -math.inf)),
    ),
    known(
        "SINK-LOGIT-ZERO-WHEN-ABSENT",
        LOGIT,
        lambda case: out_of(
            case,
            sink_logits=torch.zeros_like(case.q[0, :, 0, 0])
            if case.sink_logits is None
            else case.sink_logits,
        ),
    ),
    known(
        "SINK-LOGIT-SCALED",
        LOGIT,
        lambda case: out_of(
            case, sink_logits=None if case.sink_logits is None else case.sink_logits * case.scale
        ),
    ),
    known(
        "SINK-LOGIT-UNITS",
        LOGIT,
        lambda case: out_of(
            case, sink_logits=None if case.sink_logits is None else case.sink_logits / LOG2_E
        ),
    ),
)
