"""Names of the dtypes that problem.toml, requests and records use."""

import torch

TORCH_DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "int32": torch.int32,
}
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
# Half the distance from 1 to the next larger number. TF32 keeps 10 bits of an fp32 operand and
# tensor cores cut off the rest, so that its error is up to a whole distance.
UNIT_ROUNDOFF = {"fp16": 2.0**-11, "bf16": 2.0**-8, "fp32": 2.0**-24, "tf32": 2.0**-10}


def as_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """Return an fp32 tensor with all but the 10 leading bits of each fraction cut off."""
    return (tensor.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)
