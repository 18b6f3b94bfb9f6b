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


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, softmax_scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal grouped-query attention."""
    validate(q, k, v, softmax_scale)
    scale = q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale
    config = KernelConfig.for_head_dim(q.shape[3], q.dtype)
    q, scale = positive_scale(q, scale)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    strides = [tensor.stride()[:3] for tensor in (q, k, v, out)]
    _attention_kernel[grid_of_queries(q, k, config.block_m)](
        q, k, v, out, lse, *strides, q.shape[1], q.shape[1] // k.shape[1], q.shape[2],
        scale * LOG2_E.value, HEAD_DIM=q.shape[3], IS_EVEN=False, **config.as_kwargs(),
    )  # fmt: skip
    return out, lse
