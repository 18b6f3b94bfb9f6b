"""Draws the inputs of timed calls and their distribution, so that no kernel can be made for one.

With standard normal inputs a kernel for the timed shape could do without the running maximum.
"""

from __future__ import annotations

import math
import random

from grader.spec.cases import Case
from grader.spec.inputs import Inputs, make_inputs
from grader.spec.problem import Problem

_MOST_SCALE = 2.0
_MOST_OFFSET = 1.0
_SHIFTS = (90.0, 130.0)  # added to all scores of a row: exp of the least is infinite in fp32
_OF_K = 7.0  # the factor of a shift that k has, whose rounding is in dQ; q has the other factor


def drawn_inputs(problem: Problem, case: Case, seed: int, device: str) -> Inputs:
    """Return fresh inputs for a timed call, rounded to its dtype; the seed draws all of them.

    Each input is scaled by 1/2 to 2. An offset of the values moves the result of a right answer as
    much; a shift of all scores of a row changes nothing, since softmax is invariant to it. Scores
    are not shifted in fp32, nor beside the logits of sinks, which would have to be shifted too.
    """
    inputs = make_inputs(problem, case, seed, device)
    draw = random.Random(seed)
    tensors = inputs.all
    for name, tensor in tensors.items():
        if name != "sink_logits":
            tensor.mul_(_MOST_SCALE ** draw.uniform(-1, 1))
    offsets = ("x", "w") if "x" in tensors else () if problem.gradients else ("v",)
    for name in offsets:
        tensors[name].add_(draw.uniform(-_MOST_OFFSET, _MOST_OFFSET))
    shift = draw.choice((0, 0, -1, 1)) * draw.uniform(*_SHIFTS)
    if shift and "q" in tensors and case.dtype != "fp32" and "sink_logits" not in tensors:
        q, k = tensors["q"], tensors["k"]
        scale = case.kwargs.get("softmax_scale") or 1 / math.sqrt(case.head_dim)
        k.sub_(k.mean(-1, keepdim=True))  # else q's shift adds to each key's score its mean
        k.add_(_OF_K / math.sqrt(case.head_dim))
        q.add_(shift / (scale * _OF_K) / math.sqrt(case.head_dim))
    return inputs
