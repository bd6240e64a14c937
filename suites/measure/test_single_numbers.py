"""A result of one number may be unlucky, by two noise runs 1500 floors: so that one that is far off is asked about by eight."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

import precheck
from precheck.analysis.noise_floor import noise

PRECISIONS = ("bf16-true", "bf16-mixed", "16-true", "16-mixed")
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Scored(nn.Module):
    """A classifier that returns its loss alone; `off` is the factor by which the low run has it wrong."""

    def __init__(self, seed: int, score: Loss, off: float = 1.0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.body, self.head = nn.Linear(32, 64), nn.Linear(64, 10)
        self.score, self.off = score, off

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.head(functional.gelu(self.body(x)))
        loss = self.score(logits, labels)
        return loss * self.off if logits.dtype.itemsize == 2 else loss


def entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, labels)


def confidence(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return -logits.softmax(-1).gather(-1, labels[:, None]).log().mean()


def margin(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A mean of both signs, which comes near to zero."""
    return (logits.gather(-1, labels[:, None]) - logits).mean()


def measured(score: Loss, precision: str, *, seed: int = 0, off: float = 1.0) -> precheck.Report:
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(seed))
    return precheck.measure(Scored(seed, score, off), (x, torch.arange(16) % 10), precision=precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("score", [entropy, confidence, margin])
def test_healthy_ones_pass(score: Loss, precision: str) -> None:
    """By Fisher's F one in a million fails by luck."""
    for seed in range(12):
        report = measured(score, precision, seed=seed)
        assert not report.errors, (seed, report.summary())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("off", [0.0, 1.3])
def test_one_that_is_a_third_off_fails(precision: str, off: float) -> None:
    """The floor is about 0.2 % (a rounding in float16 a tenth of that), and 20 of these are allowed."""
    report = measured(entropy, precision, off=off)
    assert "accumulated-drift" in {finding.rule for finding in report.errors}, report.summary()
    assert report.errors[0].limit == pytest.approx(noise.allowed(1, noise.MOST))
