# ruff: noqa: F821  (appended to the model answer, whose names it uses)
"""Settings in a dataclass, checks that raise an error of the file, below ValueError."""

import dataclasses

SUPPORTED_HEAD_DIMS = frozenset({16, 32, 64, 128})
SUPPORTED_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclasses.dataclass(frozen=True, slots=True)
class KernelConfig:
    block_m: int
    block_n: int
    num_warps: int = 4
    num_stages: int = 2

    @classmethod
    def for_head_dim(cls, head_dim: int, dtype: torch.dtype):
        match head_dim, dtype:
            case (128, torch.float32):
                return cls(block_m=32, block_n=32, num_stages=1)
            case (128, _):
                return cls(block_m=64, block_n=32)
            case _:
                return cls(block_m=64, block_n=32, num_stages=1)

    def as_kwargs(self):
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }


class UnsupportedInput(ValueError):
    """Raised where an argument cannot be used."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name


def validate(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None) -> None:
    tensors = dict(q=q, k=k, v=v)
    for name, t in tensors.items():
        if t.ndim != 4:
            raise UnsupportedInput(name, f"{t.ndim} dimensions")
    if q.dtype not in SUPPORTED_DTYPES:
        raise UnsupportedInput("dtype", str(q.dtype))
    batch, hq, n, d = q.shape
    if d not in SUPPORTED_HEAD_DIMS:
        raise UnsupportedInput("head_dim", f"{d=} not in {sorted(SUPPORTED_HEAD_DIMS)}")
    for name in "kv":
        if tensors[name].dtype != q.dtype:
            raise UnsupportedInput(name, "dtype")
    if k.shape[2] != n:
        raise UnsupportedInput("seqlen", f"{n} vs {k.shape[2]}")
    hk = k.shape[1]
    if hk == 0 or hq % hk:
        raise UnsupportedInput("num_kv_heads", f"{hk} does not divide {hq}")
    for name in "kv":
        if (got := tuple(tensors[name].shape)) != (want := (batch, hk, n, d)):
            raise UnsupportedInput(name, f"shape {got}, want {want}")
    for name, t in tensors.items():
        if t.stride(-1) != 1:
            raise UnsupportedInput(name, "last dim is strided")
    if scale is not None and (math.isnan(scale) or math.isinf(scale)):
        raise UnsupportedInput("softmax_scale", f"{scale}")


@triton.jit
def _gqa_fwd(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, stride_qb, stride_qh, stride_qm, stride_kb, stride_kh,
    stride_kn, stride_vb, stride_vh, stride_vn,
    NUM_Q_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, seqlen, scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    GROUP: tl.constexpr = NUM_Q_HEADS // NUM_KV_HEADS
    m_block = tl.program_id(0)
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    kv_head = head // GROUP
    offs_m = m_block * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, HEAD_DIM)
    q_base = q_ptr + batch * stride_qb + head * stride_qh
    k_base = k_ptr + batch * stride_kb + kv_head * stride_kh
    v_base = v_ptr + batch * stride_vb + kv_head * stride_vh
    q = tl.load(
        q_base + offs_m[:, None] * stride_qm + offs_d[None, :],
        mask=offs_m[:, None] < seqlen,
        other=0.0,
    )
    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    m_i = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    for start_n in range(0, (m_block + 1) * BLOCK_M, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        kv_mask = offs_n < seqlen
        k = tl.load(
            k_base + offs_n[:, None] * stride_kn + offs_d[None, :], mask=kv_mask[:, None], other=0.0
        )
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where((offs_m[:, None] >= offs_n[None, :]) & kv_mask[None, :], s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, axis=1))
        alpha = tl.exp(m_i - m_new)
        p = tl.exp(s - m_new[:, None])
        l_i = l_i * alpha + tl.sum(p, axis=1)
        v = tl.load(
            v_base + offs_n[:, None] * stride_vn + offs_d[None, :], mask=kv_mask[:, None], other=0.0
        )
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m_i = m_new
    acc = acc / l_i[:, None]
    row = (batch * NUM_Q_HEADS + head) * seqlen + offs_m
    tl.store(
        out_ptr + row[:, None] * HEAD_DIM + offs_d[None, :],
        acc.to(out_ptr.dtype.element_ty),
        mask=offs_m[:, None] < seqlen,
    )
    tl.store(lse_ptr + row, m_i + tl.log(l_i), mask=offs_m < seqlen)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, softmax_scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal grouped-query attention."""
    validate(q, k, v, softmax_scale)
    B, HQ, N, D = q.shape
    cfg = KernelConfig.for_head_dim(D, q.dtype)
    out = torch.empty((B, HQ, N, D), dtype=q.dtype, device=q.device)
    lse = torch.empty((B, HQ, N), dtype=torch.float32, device=q.device)
    _gqa_fwd[(triton.cdiv(N, cfg.block_m), HQ, B)](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], HQ, k.shape[1], N,
        D**-0.5 if softmax_scale is None else softmax_scale, HEAD_DIM=D, **cfg.as_kwargs(),
    )  # fmt: skip
    return out, lse
