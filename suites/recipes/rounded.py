"""AdamW on bf16 weights that loses nothing, and the books of what arrives of what AdamW means."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class AdamW16(torch.optim.Optimizer):
    """AdamW without decay, computed in float32, stored in bf16.

    With `chance`, weights and both moments are rounded up or down by chance. Without, what rounding takes from a weight stays
    in a bf16 remainder, as in Kahan's summation, and the moments are float32: in bf16 the second one could not decay, 0.999
    of a number being that number. Both are of Zamirai et al. 2020 (arXiv 2010.06192), but for the moments.
    """

    def __init__(self, parameters: Any, rate: float, *, chance: bool) -> None:
        super().__init__(parameters, {"lr": rate})
        self.chance, self.drawn, self.count = chance, torch.Generator().manual_seed(0), 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.count += 1
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                for name in ("exp_avg", "exp_avg_sq"):
                    state.setdefault(name, torch.zeros_like(weight, dtype=weight.dtype if self.chance else torch.float32))
                wanted = -group["lr"] * self._direction(weight.grad.float(), state)
                if self.chance:
                    self._store(weight, weight.float() + wanted)
                    continue
                wanted += state.setdefault("remainder", torch.zeros_like(weight))
                before = weight.float()
                weight.copy_(before + wanted)
                state["remainder"].copy_(wanted - (weight.float() - before))

    def _direction(self, gradient: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
        first = state["exp_avg"].float().lerp_(gradient, 0.1)
        second = state["exp_avg_sq"].float().mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        self._store(state["exp_avg"], first)
        self._store(state["exp_avg_sq"], second)
        return (first / (1 - 0.9**self.count)) / ((second / (1 - 0.999**self.count)).sqrt() + 1e-8)

    def _store(self, into: torch.Tensor, value: torch.Tensor) -> None:
        if self.chance:  # noise on the sixteen bits that bf16 drops, which carries with the chance that they stand for
            noise = torch.randint(0, 1 << 16, value.shape, dtype=torch.int32, generator=self.drawn)
            value = ((value.view(torch.int32) + noise) & ~0xFFFF).view(torch.float32)
        into.copy_(value)


class Remembered:
    """What AdamW in float64 means to do with each gradient, beside what the weights did.

    EDQ_n = Σ⟨meant, moved⟩ / Σ⟨meant, meant⟩ over all steps and all parameters of a kind: 1 where all arrives, 0 where
    nothing does. Collage (arXiv 2405.03637) divides by |meant| once; twice makes it a share.
    """

    def __init__(self, weights: list[nn.Parameter], rate: float, betas: tuple[float, float], eps: float) -> None:
        self.rate, self.betas, self.eps, self.count = rate, betas, eps, 0
        self.moments = [torch.zeros(2, *weight.shape, dtype=torch.float64) for weight in weights]
        self.sums: dict[str, list[float]] = {}

    def before(self, weights: list[nn.Parameter]) -> list[torch.Tensor] | None:
        """Copies of the weights; None where a gradient is not finite and the step is skipped or spoilt."""
        finite = all(bool(weight.grad.isfinite().all()) for weight in weights if weight.grad is not None)
        return [weight.detach().double() for weight in weights] if finite else None

    def after(self, weights: list[nn.Parameter], before: list[torch.Tensor]) -> None:
        self.count += 1
        for weight, was, moments in zip(weights, before, self.moments, strict=True):
            moved, meant = weight.detach().double() - was, self._meant(weight.grad, moments)
            # A norm's weights begin at one, the only vectors that do; biases begin at zero, where bf16 is as fine as float32.
            kind = "matrix" if weight.dim() == 2 else "norm" if bool((was.abs() > 0.5).all()) else "bias"
            sums = self.sums.setdefault(kind, [0.0, 0.0])
            sums[0] += float((meant * moved).sum())
            sums[1] += float((meant * meant).sum())

    def _meant(self, gradient: Any, moments: torch.Tensor) -> torch.Tensor:
        exact = gradient.detach().double()
        for moment, beta, power in zip(moments, self.betas, (exact, exact * exact), strict=True):
            moment.mul_(beta).add_(power, alpha=1 - beta)
        first, second = (moment / (1 - beta**self.count) for moment, beta in zip(moments, self.betas, strict=True))
        return -self.rate * first / (second.sqrt() + self.eps)

    def edq(self, kind: str) -> float:
        """Of "norm" weights, of a "matrix", or of a "bias"."""
        common, wanted = self.sums.get(kind, (float("nan"), 1.0))
        return common / wanted
