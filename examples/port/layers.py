"""RMSNorm as torch has it, and as it is often written by hand."""

import torch


class Norm(torch.nn.Module):
    """The same function as torch.nn.RMSNorm(width, eps)."""

    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight
