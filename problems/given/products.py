"""Products of tiles in PyTorch."""

import torch


def tile_matmul(a, b, scale=1.0):
    """Return scale * a @ b for two batches of tiles, accumulated and returned in fp32.

    Args:
        a: (batch * heads, rows, inner), fp16, bf16 or fp32, any strides.
        b: (batch * heads, inner, cols), the dtype of a, any strides.
        scale: a factor on the fp32 result.
    """
    if a.is_cuda and a.dtype != torch.float32:
        # Tensor cores multiply 16-bit tiles and add in fp32: keep that fp32 sum as it is.
        product = torch.empty((*a.shape[:2], b.shape[2]), dtype=torch.float32, device=a.device)
        return torch.baddbmm(
            product, a, b, out_dtype=torch.float32, beta=0, alpha=scale, out=product
        )
    a = a.float() if scale == 1.0 else scale * a.float()
    return torch.bmm(a, b.float())
