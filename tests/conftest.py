"""As many test workers run as there are cores: each computes on one."""

import torch

torch.set_num_threads(1)
