"""Differences that are undone, and functions of weights that become an exponent."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal

LOW = torch.bfloat16
RATES = torch.log(torch.arange(1, 17).float() + 0.37).to(LOW)


def quantised(direct: bool) -> torch.Tensor:
    """Codes of an encoder that has run away from its codebook, by a straight-through estimator: z + (q - z) is rounded at the spacing of z."""
    book, z = normal(64, 16), (30 * normal(32, 16, seed=1)).to(LOW).requires_grad_()
    q = book.to(LOW)[torch.cdist(z.detach().float(), book).argmin(-1)]
    codes = q + (z - z.detach()) if direct else z + (q - z).detach()  # culprit: straight-through
    return (codes @ normal(16, 8, seed=2).to(LOW)).float()


class Mixer(nn.Module):
    """The decay of sixteen heads over a whole sequence. Their rates are logarithms in bfloat16, of which it takes the exponential there as well."""

    def __init__(self, widened: bool) -> None:
        super().__init__()
        self.widened, self.rates = widened, nn.Parameter(RATES.clone())

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        decay = -torch.exp(self.rates.float() if self.widened else self.rates)  # culprit: log-decay
        return torch.exp((decay.float() * steps[:, None]).sum(0))


def decays(widened: bool) -> torch.Tensor:
    """As shares of what they are in float64: what is left of a head's state is told by its decay, however small that is."""
    return Mixer(widened)(torch.full((256,), 2.0**-7)).detach() / torch.exp(-2 * torch.exp(RATES.double()))


BUGS = (
    Bug("straight-through", "", ("cancellation",), "aten.add.Tensor", lambda: quantised(False), lambda: quantised(True)),
    Bug("log-decay", "state-spaces/mamba#923", ("amplified-rounding",), "aten.exp.default", lambda: decays(False),
        lambda: decays(True), module="Mixer"),
)  # fmt: skip
