"""Is the norm that we wrote the one that torch has?"""

import torch
from layers import Norm


def test_norm(check_parity):
    torch.manual_seed(0)
    check_parity(torch.nn.RMSNorm(32, eps=1e-6), Norm(32), torch.randn(4, 32), loss=lambda out: out.float().square().mean())
