"""Known mistakes with sink logits."""

import math

import torch

from .mistakes_softmax import out_of
from .variants import LOG2_E, known

LOGIT = ("p09",)
_LOGIT = "add exp(logit - maximum) to the denominator of the logit's head, where logits are given"

LOGIT_MISTAKES = (
    known(
        "SINK-LOGIT-IGNORED",
        LOGIT,
        "sink_logits have no effect on the output",
        "your output equals attention without sink_logits",
        _LOGIT,
        lambda case: out_of(case, sink_logits=torch.full_like(case.q[0, :, 0, 0], -math.inf)),
    ),
    known(
        "SINK-LOGIT-ZERO-WHEN-ABSENT",
        LOGIT,
        "a sink logit of 0 counts although none is given",
        "your output equals attention with sink_logits = 0",
        _LOGIT,
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
        "sink_logits are multiplied by softmax_scale",
        "your output equals attention with sink_logits * softmax_scale",
        "take the sink logits as they are: only the scores are scaled",
        lambda case: out_of(
            case,
            sink_logits=None if case.sink_logits is None else case.sink_logits * case.scale,
        ),
    ),
    known(
        "SINK-LOGIT-UNITS",
        LOGIT,
        "sink_logits in natural units are combined with scores in units of log2",
        "your output equals attention with sink_logits * log(2)",
        "multiply the sink logit by log2(e) where the running maximum is in units of log2",
        lambda case: out_of(
            case,
            sink_logits=None if case.sink_logits is None else case.sink_logits / LOG2_E,
        ),
    ),
)
