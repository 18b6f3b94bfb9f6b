"""The base of the judge's dispatch modes, which see each operator of PyTorch."""

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """A dispatch mode whose first operator does not import torch._dynamo, which takes a second."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
