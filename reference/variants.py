"""Attention in fp64 with every rule replaceable, from which known mistakes are built.

A wrong rule is another `counts`, which says how often a key enters a row (0 hidden, 1 visible,
2 counted twice), another scale, another map of heads, and so on.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch

from .naive import visible_keys
from .rules import rules

TILES = (16, 32, 64, 128)
LOG2_E = math.log2(math.e)
_SMALLEST_NORMAL, _SMALLEST = 2.0**-126, 2.0**-150  # fp32 may, or must, flush to 0 below


@dataclass(frozen=True)
class Mistake:
    """A known mistake, with a prediction of the result of a kernel that makes it.

    Attributes:
        id: the cause in grader/spec/causes; variants by tile size share it.
        problems: ids of the problems in which it can be made.
        fn: (inputs, options) -> dict name -> fp64 tensor. inputs: q, k, v, and dout and
            sink_logits where there are any, or x and w, of any dtype; options: the entry's.
            It returns only the outputs that the mistake determines; all of them must agree
            with a submission's before the mistake is named. NaN marks undetermined elements
            (such as a row that sees no key). Where a mistake makes no difference on the given
            inputs, the prediction is the right answer.
        tile: the tile size that the output depends on, or None.
        variant, figures: the form of its text in the catalogue, and the values for its fields.
    """

    id: str
    problems: tuple[str, ...]
    fn: Callable
    tile: int | None = None
    variant: str = ""
    figures: Mapping = field(default_factory=dict)

    def predict(self, inputs, options):
        """Return the result of `fn`, or None where the mistake has no meaning on these inputs."""
        try:
            return self.fn(inputs, options)
        except (ValueError, RuntimeError, IndexError):
            return None


def known(id, problems, compute, tile=None, variant="", **figures):
    """Return a Mistake from a function of a Case."""

    def fn(inputs, options, problem_id="p01"):
        return compute(case_of(problem_id, inputs, options))

    return Mistake(id, problems, fn, tile, variant, figures)


def known_per_tile(id, problems, compute, variant=""):
    """Return a Mistake per tile size from compute(case, tile).

    In p01 the tile size is an argument, tile_k, and one Mistake covers all its values.
    """
    kernels = tuple(problem for problem in problems if problem != "p01")
    found = [known(id, kernels, partial(compute, tile=tile), tile, variant) for tile in TILES]
    if "p01" in problems:

        def with_argument(case):
            return compute(case, tile=case.tile_k)

        found.append(known(id, ("p01",), with_argument, None, variant))
    return found


def case_of(problem_id, inputs, options):
    """Return the Case of these inputs, shared by all mistakes that are tried on them."""
    return _case(problem_id, tuple(inputs.items()), tuple(options.items()))


@functools.lru_cache(maxsize=1)
def _case(problem_id, inputs, options):
    return Case(problem_id, dict(inputs), dict(options))


class Case:
    """The inputs of one call in fp64, the rule in force, and cached values derived from both.

    Many mistakes share a case: nobody may write to its tensors or to results of its methods. An
    output that a mistake leaves right is the same tensor object for all of them, so that a caller
    compares it only once.
    """

    def __init__(self, problem_id, inputs, options):
        self.problem_id = problem_id
        self.rule = rules(problem_id, options)
        scale = self.rule.pop("softmax_scale")
        self.q, self.k, self.v = (inputs[name].double() for name in ("q", "k", "v"))
        dout, sink = inputs.get("dout"), inputs.get("sink_logits")
        self.dout = None if dout is None else dout.double()
        self.sink_logits = None if sink is None else sink.double()
        self.default_scale = 1.0 / math.sqrt(self.q.shape[-1])
        self.scale = self.default_scale if scale is None else scale
        self.is_causal = self.rule["is_causal"]
        self.window_size = self.rule["window_size"]
        self.num_sink_tokens = self.rule["num_sink_tokens"]
        self.tile_q, self.tile_k = options.get("tile_q", 128), options.get("tile_k", 128)  # of p01
        self.seqlen_q, self.seqlen_k = self.q.shape[2], self.k.shape[2]
        self.num_q_heads, self.num_kv_heads = self.q.shape[1], self.k.shape[1]
        self.group_size = self.num_q_heads // self.num_kv_heads
        device = self.q.device
        self.query = torch.arange(self.seqlen_q, device=device)[:, None]
        self.key = torch.arange(self.seqlen_k, device=device)[None, :]
        # One past the last key that each query's tile visits; in p01 the query tile's own end.
        self.walk_end = torch.full_like(self.query, self.seqlen_k)
        if problem_id == "p01" and self.is_causal:
            self.walk_end = self.query_tile_end.clamp(max=self.seqlen_k)
        self.kv_heads = torch.arange(self.num_q_heads, device=device) // self.group_size
        self._found = {}

    def once(self, compute, **changes):
        """Return compute(case, **changes), cached if at most one change is not None.

        That change must be a mask or a whole number: many mistakes share a mask or a tile size.
        """
        changes = {name: change for name, change in changes.items() if change is not None}
        key = _key(compute, changes)
        if key is None:
            return compute(self, **changes)
        if key not in self._found:
            self._found[key] = compute(self, **changes)
        return self._found[key]

    @property
    def query_tile_end(self):
        """One past the last row of each query's tile in p01, (seqlen_q, 1)."""
        return (self.query // self.tile_q + 1) * self.tile_q

    @property
    def last_key(self):
        """The last key that a kernel has to visit for each query, (seqlen_q, 1)."""
        if self.is_causal and self.problem_id != "p01":
            return self.query
        return self.walk_end - 1

    def visible(self, **changes):
        """Return the mask of the problem, with some of its options changed."""
        rule = self.rule | changes
        return self.once(_visible, rule=None if rule == self.rule else rule)

    def window(self, first=0, last=0, size=None):
        """Return the mask with the edges of its band moved; + shows keys further right."""
        size = self.window_size if size is None else size
        if not self.is_causal:
            return self.visible()
        band = self.key <= self.query + last
        if size is not None:
            inside = self.query - size + first < self.key
            band = band & (inside | (self.key < self.num_sink_tokens))
        return band

    def scores(self, *, scale=None, kv_heads=None, k=None):
        """Return scaled scores without a mask, (batch, num_q_heads, seqlen_q, seqlen_k)."""
        return self.once(_scores, scale=scale, kv_heads=kv_heads, k=k)

    def masked(self, counts=None, **changes):
        """Return scores plus log(counts): hidden keys at minus infinity, repeated ones raised."""
        counts = self.visible() if counts is None else counts
        if counts.dtype == torch.bool:
            return self.scores(**changes).masked_fill(~counts, -math.inf)
        return self.scores(**changes) + counts.double().log()

    def values(self, kv_heads=None, v=None):
        """Return V repeated for every query head."""
        v = self.v if v is None else v
        return v[:, self.kv_heads if kv_heads is None else kv_heads]

    def sink_column(self, sink_logits=None):
        """Return sink logits in a shape to add to lse; minus infinity where there are none."""
        sink = self.sink_logits if sink_logits is None else sink_logits
        if sink is None:
            return self.q.new_full((1, 1, 1), -math.inf)
        return sink[None, :, None]


def _key(compute, changes):
    """Return the cache key of a result with at most one change; None if it is not cached."""
    if not changes:
        return compute
    (name, change), *others = changes.items()
    if others:
        return None
    if isinstance(change, int):
        return compute, name, change
    if isinstance(change, torch.Tensor) and change.dtype == torch.bool:
        return compute, name, change.shape, change.cpu().numpy().tobytes()
    return None


def _visible(case, rule=None):
    shape = (case.seqlen_q, case.seqlen_k)
    return visible_keys(*shape, **(rule or case.rule), device=case.q.device)


def _scores(case, scale=None, kv_heads=None, k=None):
    scale = case.scale if scale is None else scale
    kv_heads = case.kv_heads if kv_heads is None else kv_heads
    k = case.k if k is None else k
    return scale * case.q @ k[:, kv_heads].mT


def unless(given, own):
    """Return `given`, or None if it equals `own`, the case's own value."""
    return None if given is None or given is own or bool((given == own).all()) else given


def in_fp32(row_sum):
    """Return sums of weights with tiny ones as in fp32: 0, or NaN where it may be flushed."""
    rounded = row_sum.masked_fill(row_sum < _SMALLEST_NORMAL, math.nan)
    return torch.where(row_sum < _SMALLEST, torch.zeros_like(row_sum), rounded)


def attend(
    case,
    counts=None,
    *,
    kv_heads=None,
    k=None,
    v=None,
    scale=None,
    zero_keys=0,
    sink_logits=None,
):
    """Return out and lse with some values of the case replaced.

    zero_keys: number of additional keys of score 0 and value 0; the others: see `Case`.
    Rows without any key are NaN. Without a change the shared right tensors are returned.
    """
    found = case.once(
        _attend,
        counts=unless(counts, case.visible()),
        kv_heads=unless(kv_heads, case.kv_heads),
        k=unless(k, case.k),
        v=unless(v, case.v),
        scale=None if scale == case.scale else scale,
        sink=unless(case.sink_column(sink_logits), case.sink_column()),
        zero_keys=zero_keys or None,
    )
    return dict(found)


def _attend(case, counts=None, kv_heads=None, v=None, sink=None, zero_keys=0, **changes):
    scores = case.masked(counts, kv_heads=kv_heads, **changes)
    row_max = scores.amax(-1, keepdim=True)
    row_max.masked_fill_(row_max == -math.inf, 0.0)  # a row without any key
    weights = scores.sub_(row_max).exp_()  # in place: the scores are this function's own
    row_max = row_max[..., 0]
    lse = row_max + weights.sum(-1).log()
    if zero_keys:
        lse = torch.logaddexp(lse, torch.full_like(lse, math.log(zero_keys)))
    empty = lse == -math.inf
    sink = case.sink_column() if sink is None else sink
    lse = torch.logaddexp(lse, sink).masked_fill(empty, math.nan)
    out = weights @ case.values(kv_heads, v) * torch.exp(row_max - lse)[..., None]
    return {"out": out, "lse": lse}
