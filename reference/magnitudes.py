"""Computes the sum of absolute terms of each output: the scale of its rounding error.

An output that is small because large terms cancel may have a large error relative to itself.
Rounding errors are relative to the sum of the absolute values of its terms.
"""

import math

import torch

from .naive import visible_keys
from .rules import rules

# The magnitudes of problems on rows, from inputs in fp64; for p03 those of its first step.
_OF_ROWS = {
    "p02": lambda x, w: {"y": (x * w).abs().sum(1)},
    "p03": lambda x: {"lse": 1.0 + x.logsumexp(1).abs()},
}


def magnitudes(problem_id, inputs, dout=None, **options):
    """Return the sum of the absolute values of the terms of every output, in fp64.

    Args:
        problem_id: "p01" and so on.
        inputs: q, k, v (and sink_logits), or x and the other inputs of a problem on rows; any
            dtype and strides.
        dout: upstream gradient; without it (and inputs["dout"]) only forward outputs are returned.
        options: the entry's options.
    Returns: dict name -> fp64 tensor in the shape of that output: y; or out, lse and, with dout,
        dq, dk, dv, dsink_logits. For lse it is 1 + |lse|.
    """
    if "x" in inputs:
        return _OF_ROWS[problem_id](**{name: x.double() for name, x in inputs.items()})

    rule = rules(problem_id, options)
    dout = inputs.get("dout") if dout is None else dout
    q, k, v = (inputs[name].double() for name in ("q", "k", "v"))
    batch, num_q_heads, seqlen_q, head_dim = q.shape
    num_kv_heads, seqlen_k = k.shape[1:3]
    scale = rule.pop("softmax_scale")
    scale = 1.0 / math.sqrt(head_dim) if scale is None else scale
    visible = visible_keys(seqlen_q, seqlen_k, device=q.device, **rule)

    grouped = (batch, num_kv_heads, num_q_heads // num_kv_heads, seqlen_q, head_dim)
    q = q.reshape(grouped)
    k, v = k[:, :, None], v[:, :, None]
    scores = (scale * q @ k.mT).masked_fill(~visible, -math.inf)
    lse = torch.logsumexp(scores, dim=-1)
    sink = inputs.get("sink_logits")
    if sink is not None:
        sink = sink.double().reshape(num_kv_heads, -1)[:, :, None]
        lse = torch.logaddexp(lse, sink)
    probs = torch.exp(scores - lse[..., None])
    out = probs @ v.abs()

    per_head = (batch, num_q_heads, seqlen_q)
    result = {
        "out": out.reshape(*per_head, head_dim),
        "lse": 1.0 + lse.abs().reshape(per_head),
    }
    if dout is None:
        return result

    dout = dout.double().reshape(grouped).abs()
    delta = (dout * out).sum(-1)
    dscores = abs(scale) * probs * (dout @ v.abs().mT + delta[..., None])
    result["dq"] = (dscores @ k.abs()).reshape(*per_head, head_dim)
    result["dk"] = (dscores.mT @ q.abs()).sum(2)
    result["dv"] = (probs.mT @ dout).sum(2)
    if sink is not None:
        result["dsink_logits"] = (torch.exp(sink - lse) * delta).sum((0, 3)).reshape(num_q_heads)
    return result
