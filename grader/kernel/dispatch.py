"""What sees each of PyTorch's operators begins here."""

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """A dispatch mode whose first operator does not import torch._dynamo, a second or more."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
