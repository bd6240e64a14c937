"""A module passes a tensor on as it is: under autocast that is a low copy, which float32 does not make. Noise runs have its noise all the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from precheck.analysis.noise_floor import drift
from precheck.measurement import Measurement, job_of
from precheck.precisions import resolve


class Attention(nn.Module):
    """Its softmax answers in float32 under autocast. What it hands to the dropout, which is off, is low; in float32 it is the softmax' own result."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.softmax, self.dropout, self.out = nn.Linear(32, 96), nn.Softmax(-1), nn.Dropout(0.0), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.enter(x).chunk(3, -1)
        scores = query @ key.mT
        weights = self.dropout(self.softmax(scores).type_as(scores))
        return self.out(torch.tanh(weights @ value))


def measured(model: nn.Module) -> Measurement:
    torch.manual_seed(0)
    made = Measurement(job_of(model, torch.randn(8, 48, 32), loss=lambda out: out.square().mean()), resolve("bf16-mixed"), depth="ops")
    made.report()
    return made


@pytest.mark.parametrize("kind", ["output", "gradient"])
def test_noise_runs_know_what_float32_passes_on(kind: str) -> None:
    torch.manual_seed(1)
    made = measured(Attention())
    key = f"{kind}:dropout@1"
    assert made.reference.records[key].shape == (8, 48, 48)
    assert made.noises[0].records[key].shape == (8, 48, 48)
    spread = drift.spreads(made.reference, made.noises)[key] / made.reference.records[key].norm
    low = drift.distance(made.low.records[key].sketch, made.reference.records[key].sketch) / made.reference.records[key].norm
    assert spread == pytest.approx(low, rel=0.5)


def test_what_both_runs_pass_on_has_one_record() -> None:
    """The containers' and the dropout's results are the linear layer's in any format."""
    torch.manual_seed(1)
    made = measured(nn.Sequential(nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.0))))
    outputs = [key for key in made.noises[0].records if key.startswith("output")]
    assert outputs == [key for key in made.low.records if key.startswith("output")] == ["output:0.0@1"]
