"""The known mistakes: for each what a kernel that makes it returns, so that it can be named."""

from dataclasses import replace
from functools import partial

import torch

from .mistakes_backward import BACKWARD_MISTAKES
from .mistakes_mask import MASK_MISTAKES
from .mistakes_of_logits import LOGIT_MISTAKES
from .mistakes_of_rows import ROW_MISTAKES
from .mistakes_of_tiles import TILE_MISTAKES
from .mistakes_row_sum import ROW_SUM_MISTAKES
from .mistakes_softmax import SOFTMAX_MISTAKES
from .rules import OUTPUTS
from .variants import Mistake, attend, case_of
from .variants_backward import differentiate

__all__ = ["MISTAKES", "Mistake", "mistakes_for", "relative_distance", "shared_answer"]

# Where two agree on an input, the first is the likelier one.
MISTAKES = (
    *MASK_MISTAKES,
    *SOFTMAX_MISTAKES,
    *LOGIT_MISTAKES,
    *TILE_MISTAKES,
    *ROW_SUM_MISTAKES,
    *BACKWARD_MISTAKES,
    *ROW_MISTAKES,
)


def _for_problem(fn, problem_id, inputs, options):
    result = fn(inputs, options, problem_id)
    return {name: value for name, value in result.items() if name in OUTPUTS[problem_id]}


def mistakes_for(problem_id):
    """The mistakes that can be made in a problem, their `fn` bound to its rule and its outputs.

    In MISTAKES itself `fn` reads in options["is_causal"] whether attention is causal; here the
    problem decides, so that the entry's own options are enough.
    """
    return tuple(
        replace(mistake, fn=partial(_for_problem, mistake.fn, problem_id))
        for mistake in MISTAKES
        if problem_id in mistake.problems
    )


def shared_answer(problem_id, inputs, options):
    """The right tensors, by output, that come back from each mistake that leaves an output right.

    Args: as of a mistake's `fn`. Empty where mistakes share none: on rows.
    """
    if "x" in inputs:
        return {}
    case = case_of(problem_id, inputs, options)
    return differentiate(case) if "dout" in inputs else attend(case)


def relative_distance(got, predicted):
    """Norm of the difference over the norm of `predicted`, on the elements that are not NaN there.

    Args: got: any dtype; predicted: an output of a mistake's `fn`, same shape.
    Returns: float; infinity where `got` is not finite on those elements or none is left.
    """
    known = ~torch.isnan(predicted)
    if not known.any():
        return float("inf")
    predicted = predicted[known].double()
    difference = (got.to(predicted.device)[known].double() - predicted).norm().item()
    size = predicted.norm().item()
    if not difference < float("inf"):
        return float("inf")
    if size == 0.0:
        return 0.0 if difference == 0.0 else float("inf")
    return difference / size
