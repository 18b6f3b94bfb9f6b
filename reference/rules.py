"""The visibility rule of each problem, as options of the general attention."""

_IS_CAUSAL = {
    "p01": None,  # an option says it
    "p03": False,
    "p04": True,
    "p05": True,
    "p06": True,
    "p07": True,
    "p08": True,
    "p09": True,
}

# the outputs of a problem's entry point, and of its backward pass, in order; `dsink_logits` exists
# only where sink_logits was given
OUTPUTS = {
    "p01": ("out", "lse"),
    "p02": ("y",),
    "p03": ("out", "lse"),
    "p04": ("out", "lse"),
    "p05": ("out", "lse"),
    "p06": ("out", "lse"),
    "p07": ("out", "lse"),
    "p08": ("out", "dq", "dk", "dv"),
    "p09": ("out", "dq", "dk", "dv", "dsink_logits"),
}


def rules(problem_id, options=None):
    """Return the options of a problem's entry point, with the problem's own rule added.

    Args:
        problem_id: a problem on attention.
        options: options of the entry point (softmax_scale, window_size, num_sink_tokens, and for
            p01 is_causal, tile_q, tile_k).
    Returns: dict with is_causal, window_size, num_sink_tokens, softmax_scale: keyword arguments
        of `blocked_attention` and its kin.
    """
    options = options or {}
    is_causal = _IS_CAUSAL[problem_id]
    return {
        "is_causal": bool(options.get("is_causal")) if is_causal is None else is_causal,
        "window_size": options.get("window_size"),
        "num_sink_tokens": options.get("num_sink_tokens", 0),
        "softmax_scale": options.get("softmax_scale"),
    }
