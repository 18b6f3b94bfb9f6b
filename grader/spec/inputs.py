"""Makes the inputs of a case: values on which the rule under test depends."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from typing import Any

import torch

import reference
from grader.base.dtypes import TORCH_DTYPES
from grader.spec.cases import Case
from grader.spec.problem import Problem

_LARGE_LOGIT = 100.0
_NEEDLE_LOGIT = 4.0


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Dense values of every input, by parameter name; `dout` is the upstream gradient."""

    tensors: dict[str, torch.Tensor]
    dout: torch.Tensor | None = None

    @property
    def all(self) -> dict[str, torch.Tensor]:
        """All tensors that travel to the worker."""
        return self.tensors | ({} if self.dout is None else {"dout": self.dout})


def case_seed(seed: str, *parts: object) -> int:
    """Derive the 63-bit seed of one case from the run's seed and the case's place."""
    text = "/".join([seed, *map(str, parts)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def make_inputs(problem: Problem, case: Case, seed: int, device: str = "cpu") -> Inputs:
    """Return fresh inputs for `case`, rounded to its dtype."""
    generator = torch.Generator(device).manual_seed(seed)
    dtype = TORCH_DTYPES[case.dtype]

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, device=device, dtype=torch.float32)

    if case.rows is not None:
        x, w = normal(case.rows, case.cols), normal(case.cols)
        if case.values == "offset":
            x, w = x + 1, w + 1
        elif case.values == "large":  # the sum climbs high, then falls back
            x, w = x + torch.linspace(8.0, -8.0, case.cols, device=device), w + 1
        elif case.values == "cancelling":
            x, w = _cancelling_columns(x, w, dtype)
        elif case.values == "falling":
            x = x + torch.linspace(_LARGE_LOGIT, -_LARGE_LOGIT, case.cols, device=device)
        tensors = {"x": x.to(dtype), "w": w.to(dtype)}
        return Inputs({name: tensors[name] for name in problem.inputs})

    q = normal(case.batch, case.num_q_heads, case.seqlen_q, case.head_dim)
    k = normal(case.batch, case.num_kv_heads, case.seqlen_k, case.head_dim)
    v = normal(case.batch, case.num_kv_heads, case.seqlen_k, case.head_dim)
    if case.values == "offset":
        k, v = k + 0.5, v + 3.0
    elif case.values == "peaked":
        q, k = 4.0 * q, 2.0 * k
    elif case.values in ("large", "falling"):
        q, k = _large_logits(q, k, first=-1.0 if case.values == "large" else 1.0)
    elif case.values == "uneven":  # a maximum that rows share takes all weight from every other one
        small = q
        q, k = _large_logits(q, k, first=-1.3)
        q[:, :, 1::2] = small[:, :, 1::2]
    elif case.values == "negative":  # every score is about -130, of which exp is 0 in fp32
        q, k = _large_logits(q, k, first=-1.3, last=-1.3)
    elif case.values == "needle":
        q = _needle_queries(q, k, case)
    tensors = {"q": q.to(dtype), "k": k.to(dtype), "v": v.to(dtype)}
    if case.sink_logits:
        # Away from 0, which is the same in any unit; of either sign, the first positive.
        logits = 2.0 + normal(case.num_q_heads).abs()
        logits[1::2] *= -1.0
        if case.sink_logits_values == "neg_inf":
            logits = torch.full_like(logits, -math.inf)
        half = case.sink_logits_values == "half"
        tensors["sink_logits"] = logits.to(dtype) if half else logits
    dout = None
    if problem.gradients or "dout" in problem.inputs:
        dout = normal(*q.shape)
        if case.values == "offset":  # delta has one sign: a sum over rows does not cancel
            dout = dout + 0.5
        if case.dout_layout == "expanded":
            dout = dout[:, :, :1].expand_as(q)
        elif case.dout_layout == "one_number":
            dout = dout[:1, :1, :1, :1].expand_as(q)
        elif case.dout_layout == "zeros":
            dout = torch.zeros_like(dout)
        dout = dout.to(dtype)
    if "lse" in problem.inputs:  # a backward pass alone gets the results of the forward pass
        values = [tensors[name].double() for name in ("q", "k", "v")]
        out, lse = reference.gqa_attention(*values, **case.kwargs)
        tensors |= {"out": out.to(dtype), "lse": lse.float(), "dout": dout}
        dout = None
    return Inputs(tensors, dout)


def _cancelling_columns(
    x: torch.Tensor, w: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Let the right half of each row cancel the left half but for the rounding of its elements.

    A product that is rounded to 16 bits is off by as much as the whole sum, in every row and under
    every seed; a product in fp32 is exact, since it has 22 bits.
    """
    half = x.shape[1] // 2
    w = torch.where(w < 0, w - 0.5, w + 0.5).to(dtype).float()
    left = x[:, :half].to(dtype).float()
    x[:, half : 2 * half] = -left * w[:half] / w[half : 2 * half]
    x[:, 2 * half :] = 0.0
    return x, w


def _large_logits(
    q: torch.Tensor, k: torch.Tensor, *, first: float, last: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return q, k whose logits go from 100 * `first` to 100 * `last` (-`first`) along the keys.

    Where they rise, the running maximum keeps growing. Where they fall, an update that forgets the
    maximum so far computes exp of a large number.
    """
    head_dim, seqlen_k = k.shape[-1], k.shape[-2]
    amplitude = math.sqrt(_LARGE_LOGIT * math.sqrt(head_dim))
    direction = torch.ones(head_dim, device=q.device) / math.sqrt(head_dim)
    last = -first if last is None else last
    ramp = torch.linspace(first, last, seqlen_k, device=q.device)[:, None]
    return 0.3 * q + amplitude * direction, 0.3 * k + amplitude * ramp * direction


def _needle_queries(q: torch.Tensor, k: torch.Tensor, case: Case) -> torch.Tensor:
    """Point each query at the keys on both sides of every edge that its mask may have."""
    options = case.kwargs
    window, sinks = options.get("window_size"), options.get("num_sink_tokens")
    edges = [(1, 0), (1, 1), (1, -1)]  # (follows the query?, offset): the diagonal's two sides
    if window is not None:
        edges += [(1, -window + 1), (1, -window)]
    if sinks is not None:
        edges += [(0, sinks - 1), (0, sinks)]
    edges += [(0, 0), (0, case.seqlen_k - 1)]
    group = case.num_q_heads // case.num_kv_heads
    keys = k.repeat_interleave(group, dim=1)
    rows = torch.arange(case.seqlen_q, device=q.device)
    needles = torch.zeros_like(q)
    for follows, offset in dict.fromkeys(edges):
        index = rows * follows + offset
        inside = ((index >= 0) & (index < case.seqlen_k)).to(q.dtype)
        index = index.clamp(0, case.seqlen_k - 1)
        needles += keys[:, :, index] * inside[None, None, :, None]
    scale = options.get("softmax_scale") or 1.0 / math.sqrt(case.head_dim)
    return 0.5 * q + _NEEDLE_LOGIT / (case.head_dim * scale) * needles


def invalidate(inputs: Inputs, mutation: str | None) -> Inputs:
    """Make one argument unsupported, for the checks that ValueError is raised.

    Raises:
        ValueError: problem.toml names a mutation that does not exist.
    """
    tensors = dict(inputs.tensors)
    first = next(iter(tensors))
    other = torch.float32 if tensors[first].dtype == torch.float16 else torch.float16
    subject, _, change = (mutation or "").partition("_")
    if mutation is None or change == "strided":  # placing.py makes such strides
        return inputs
    if mutation in ("float64", "integer"):
        dtype = torch.float64 if mutation == "float64" else torch.int32
        tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    elif mutation == "ndim":
        tensors[first] = tensors[first][0]
    elif subject in tensors and change in _CHANGES:
        tensors[subject] = _CHANGES[change](tensors[subject], other)
    else:
        raise ValueError(
            f"mutate: got {mutation!r}, expected <argument>_<change> with one of"
            f" {', '.join(_CHANGES)}, strided, or float64, integer, ndim"
        )
    return Inputs(tensors, inputs.dout)


def _doubled(dim: int) -> Any:
    return lambda tensor, other: torch.cat([tensor, tensor], dim=dim)


_CHANGES = {
    "batch": _doubled(0),
    "heads": lambda tensor, other: torch.cat([tensor, tensor, tensor[:, :1]], dim=1),
    "seqlen": _doubled(2),
    "head_dim": _doubled(3),
    "cols": _doubled(0),
    "ndim": lambda tensor, other: tensor[None],
    "dtype": lambda tensor, other: tensor.to(other),
}
