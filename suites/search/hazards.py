"""Models that some input breaks in float16, each beside its mended twin."""

from __future__ import annotations

import torch


class NarrowNorm(torch.nn.Module):
    """RMSNorm whose mean of squares is taken in the format that it is given: 256 squared is beyond float16."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


class WideNorm(NarrowNorm):
    """The same in float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class FeedForward(torch.nn.Module):
    """T5's gated feed-forward: the product of two projections reaches `wo`, whose sums overflow float16 though each value is modest."""

    def __init__(self, width: int = 16, inner: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wi_0, self.wi_1 = (torch.nn.Linear(width, inner, bias=False) for _ in range(2))
        self.wo = torch.nn.Linear(inner, width, bias=False)
        with torch.no_grad():
            for weight in (self.wi_0.weight, self.wi_1.weight, self.wo.weight):
                weight.copy_(torch.randn(weight.shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wo(torch.nn.functional.gelu(self.wi_0(x)) * self.wi_1(x))


class ScaledFeedForward(FeedForward):
    """The same in units `inner` times as large, which the norm behind it does not notice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wo(torch.nn.functional.gelu(self.wi_0(x)) * (self.wi_1(x) / self.wo.in_features))


class BareSoftmax(torch.nn.Module):
    """exp(x) / sum: in float16 exp overflows from 11.1 on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        powers = x.exp()
        return powers / powers.sum(-1, keepdim=True)


class StableSoftmax(torch.nn.Module):
    """With the greatest subtracted first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        powers = (x - x.amax(-1, keepdim=True)).exp()
        return powers / powers.sum(-1, keepdim=True)
