"""Numbers that float16 holds as zero, and what divides by them."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, uniform


class Standard(nn.Module):
    """Layer norm as a fused kernel had it: the variance is added to its eps in float32, and narrowed before the root."""

    def __init__(self, narrow: bool) -> None:
        super().__init__()
        self.narrow = narrow

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        off = wide - wide.mean(-1, keepdim=True)
        variance = off.square().mean(-1, keepdim=True) + 1e-12
        if self.narrow:
            return off.to(x.dtype) * torch.rsqrt(variance.to(x.dtype))  # culprit: narrow-variance
        return (off * torch.rsqrt(variance)).to(x.dtype)


def padded(narrow: bool) -> torch.Tensor:
    tokens = uniform(3, 32)
    tokens[1] = 0.25  # a padded token: its variance is zero
    return Standard(narrow)(tokens.half())


def moments(dtype: torch.dtype) -> torch.Tensor:
    """Second moments of a faint image patch's gradients, over their largest: their squares are below 6e-8."""
    x, y = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    patch = (1e-4 * x + 5e-5 * y).half().to(dtype)
    dx, dy = patch[1:, 1:] - patch[:-1, 1:], patch[1:, 1:] - patch[1:, :-1]
    xx, xy, yy = (dx * dx).mean(), (dx * dy).mean(), (dy * dy).mean()  # culprit: faint-patch
    found = torch.stack([xx, xy, yy])
    return found / (found.max() + 1e-10)  # culprit: faint-patch


def correlation(scale: float) -> torch.Tensor:
    """Pearson's coefficient of numbers around 1e-4."""
    a = torch.arange(40) / 40
    x, y = (1e-4 * a).half() * scale, (1e-4 * (a + a.flip(0).square())).half() * scale
    dx, dy = x - x.mean(), y - y.mean()
    shared = (dx * dy).sum()  # culprit: small-correlation
    return shared / (dx.square().sum() * dy.square().sum()).sqrt()  # culprit: small-correlation


def codebook(dtype: torch.dtype) -> torch.Tensor:
    """Laplace smoothing of code counts: 1e-5 of 3000 is subnormal, and times 3000 again nothing is left."""
    counts, sums = torch.tensor([0.0, 800.0, 2200.0]).to(dtype), torch.tensor([0.0, 400.0, 1100.0]).to(dtype)
    total = counts.sum()
    smoothed = (counts + 1e-5) / (total + 3e-5) * total  # culprit: unused-code
    return sums / smoothed


def cubic(wide: bool) -> torch.Tensor:
    """The gradient of a 3-norm divides by the norm's square."""
    x = torch.tensor([1.5e-3, 2.5e-3]).half().requires_grad_()
    size = (x.float() if wide else x).norm(3)  # culprit: cubic-norm
    size.backward()
    return x.grad


BUGS = (
    Bug("narrow-variance", "deepspeedai/DeepSpeed#581", ("underflow", "vanished-constant"), "aten._to_copy.default", lambda: padded(True),
        lambda: padded(False), module="Standard"),
    Bug("faint-patch", "kornia/kornia#4123", ("underflow",), "aten.mul.Tensor", lambda: moments(torch.float16), lambda: moments(torch.float32)),
    Bug("small-correlation", "Lightning-AI/torchmetrics#1922", ("underflow",), "aten.mul.Tensor", lambda: correlation(1.0),
        lambda: correlation(1e4)),
    Bug("unused-code", "ZhikangNiu/encodec-pytorch#8", ("underflow", "vanished-constant"), "aten.div.Tensor", lambda: codebook(torch.float16),
        lambda: codebook(torch.float32)),
    Bug("cubic-norm", "pytorch/pytorch#43211", ("underflow", "gradient-underflow"), "aten.div.Tensor", lambda: cubic(False), lambda: cubic(True),
        phase="backward"),
)  # fmt: skip
