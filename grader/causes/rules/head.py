"""One head of a wrong gradient, and all that it is made of, in fp64."""

from __future__ import annotations

import dataclasses

import torch

from grader.causes.outputs import Outputs, factors_of, unexplained
from reference.variants import attend
from reference.variants_backward import row_delta

NAMES = ("dv", "dq", "dk")  # dv first, which depends on the fewest tensors
_WRONG = 1e-3  # of the right gradient: less is rounding
OPERANDS = {"(dout k^T)": ("dout", "k"), "(q v^T)": ("q", "v"), "(out v^T)": ("out", "v")}
DELTA_OF_TILE = "delta of each tile of"
# The rows that a gradient sums up, and others that are taken for them.
ROWS = {"dq": ("k", "v"), "dk": ("q", "dout", "out"), "dv": ("dout", "out", "q")}


@dataclasses.dataclass(frozen=True)
class Head:
    """A head of a gradient: dq of one query head, dk or dv of a kv head with its group.

    The first dimension of all but `got`, `truth`, k and v is that of the query heads; it has size
    one for dq. scores are scaled and not masked.
    """

    name: str
    got: torch.Tensor  # (rows, head_dim)
    truth: torch.Tensor
    scores: torch.Tensor  # (heads, queries, keys)
    visible: torch.Tensor  # (queries, keys)
    probs: torch.Tensor  # (heads, queries, keys), 0 where not visible
    dprobs: torch.Tensor
    lse: torch.Tensor  # (heads, queries)
    delta: torch.Tensor
    q: torch.Tensor  # (heads, queries, head_dim)
    dout: torch.Tensor
    out: torch.Tensor
    k: torch.Tensor  # (keys, head_dim)
    v: torch.Tensor
    scale: float
    where: str  # "query head 3"
    first_head: int
    batch: int

    def of_columns(self, count: int) -> Head:
        """Return the same with the first columns of head_dim of the gradient alone: less to do."""
        return dataclasses.replace(self, got=self.got[:, :count], truth=self.truth[:, :count])

    @property
    def most(self) -> float:
        """The largest norm of a residual that a fit may leave."""
        # A gradient near 0 must be explained relative to its own size.
        return min(unexplained(self.got, truth) for truth in (self.truth, 0.0))

    def explained(self, made: torch.Tensor) -> bool:
        """Whether `made` explains the gradient."""
        return float((made - self.got).norm()) <= self.most

    def term(self, name: str) -> torch.Tensor:
        """Return a term of dS by its name, (heads, queries, keys), not masked if P is not in it."""
        value = torch.ones_like(self.probs)
        for factor in name.split(" * "):
            value = value * self._factor(factor)
        return value

    def _factor(self, name: str) -> torch.Tensor:
        if name in ("delta", "lse"):
            return getattr(self, name)[..., None]
        if name in ("P", "dP", "S"):
            return {"P": self.probs, "dP": self.dprobs, "S": self.scores}[name]
        if name in OPERANDS:
            one, other = (getattr(self, operand) for operand in OPERANDS[name])
            return one @ other.mT
        tile = int(name.rpartition(" ")[2])  # delta summed up over tiles of so many keys
        keys = self.probs.shape[-1]
        padded = torch.nn.functional.pad(self.probs * self.dprobs, (0, -keys % tile))
        sums = padded.unflatten(-1, (-1, tile)).sum(-1, keepdim=True)
        return sums.expand(*sums.shape[:-1], tile).flatten(-2)[..., :keys]

    def weights(self, probs: torch.Tensor) -> torch.Tensor:
        """Return what the gradient weighs its rows by: P or, but for softmax_scale, dS."""
        return probs if self.name == "dv" else probs * (self.dprobs - self.delta[..., None])

    def product(self, weights: torch.Tensor, rows_of: str = "") -> torch.Tensor:
        """Return the gradient of these weights: sums over keys, or over the queries of all heads.

        dq and dk have the factor softmax_scale. The rows are those that are due if not named.
        """
        rows = getattr(self, rows_of or ROWS[self.name][0])[..., : self.got.shape[-1]]
        if self.name == "dq":
            return self.scale * (weights[0] @ rows)
        return (1.0 if self.name == "dv" else self.scale) * (weights.mT @ rows).sum(0)

    def solved(self, products: list[torch.Tensor]) -> list[float] | None:
        """Return the factors with which the products add up to the gradient, None if none do."""
        if not all(0.0 < float(product.norm()) < float("inf") for product in products):
            return None
        parts = torch.stack([product.flatten() for product in products])
        found = factors_of(parts, self.got.flatten(), self.most)
        return None if found is None else found.tolist()


def head_of(name: str, wrong: Outputs) -> Head | None:
    """Return the head of a gradient with the largest relative error, None if all are right."""
    grad, truth = wrong.got[name].double(), wrong.expected.truth[name]
    off = (grad - truth).norm(dim=(2, 3)) / truth.norm(dim=(2, 3)).clamp(min=1e-300)
    off = off.masked_fill(truth.norm(dim=(2, 3)) == 0.0, 0.0)
    # Prefer a head that is not 0 throughout: zeros do not show what they are made of.
    some = off.masked_fill((grad == 0.0).all(3).all(2), 0.0)
    off = some if float(some.max()) > _WRONG else off
    batch, head = divmod(int(off.argmax()), off.shape[1])
    if not float(off[batch, head]) > _WRONG:
        return None
    known = wrong.known
    if known.dout is None or not known.scale:
        return None
    what, count = ("query", 1) if name == "dq" else ("kv", known.group_size)
    heads = slice(head * count, head * count + count)
    kv_head = int(known.kv_heads[heads.start])
    k, v = known.k[batch, kv_head], known.v[batch, kv_head]
    q, dout = known.q[batch, heads], known.dout[batch, heads]
    right = attend(known)
    lse, out = right["lse"][batch, heads], right["out"][batch, heads]
    visible = known.visible().expand(known.seqlen_q, known.seqlen_k)
    scores = known.scale * q @ k.mT
    probs = torch.exp((scores - lse[..., None]).masked_fill(~visible, -float("inf")))
    if not lse.isfinite().all():
        return None
    return Head(
        name=name,
        got=grad[batch, head],
        truth=truth[batch, head],
        scores=scores,
        visible=visible,
        probs=probs,
        dprobs=dout @ v.mT,
        lse=lse,
        delta=row_delta(known)[batch, heads],
        q=q,
        dout=dout,
        out=out,
        k=k,
        v=v,
        scale=known.scale,
        where=f"{what} head {head}" + (f" of batch {batch}" if wrong.case.batch > 1 else ""),
        first_head=heads.start,
        batch=batch,
    )
