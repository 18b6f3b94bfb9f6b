"""The known mistakes, each with a function that predicts the result of a kernel that makes it."""

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

# In order of likelihood: where two predict the same result, the first is named.
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
    """Return the mistakes that can be made in a problem, `fn` bound to its rule and outputs.

    In MISTAKES `fn` reads options["is_causal"]; here the problem decides, so that the options of
    the entry point suffice.
    """
    return tuple(
        replace(mistake, fn=partial(_for_problem, mistake.fn, problem_id))
        for mistake in MISTAKES
        if problem_id in mistake.problems
    )


def shared_answer(problem_id, inputs, options):
    """Return the right tensors, by output, that every mistake returns for outputs it leaves right.

    Args: as of a mistake's `fn`. Mistakes in problems on rows share none: the result is empty.
    """
    if "x" in inputs:
        return {}
    case = case_of(problem_id, inputs, options)
    return differentiate(case) if "dout" in inputs else attend(case)


def relative_distance(got, predicted):
    """Return the norm of the difference over that of `predicted`, without elements predicted NaN.

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
