"""An optimizer's step, and a GPT's whole training step, across precisions: speed, memory and error in one row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from scale import sized_for
from sized import GPT, LENGTH, VOCABULARY, adamw, loss_of
from torch import nn

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW, each": lambda params: torch.optim.AdamW(params, lr=1e-2, foreach=False),
    "AdamW, foreach": lambda params: torch.optim.AdamW(params, lr=1e-2, foreach=True),
    "AdamW, fused": lambda params: torch.optim.AdamW(params, lr=1e-2, fused=True),
    "SGD, momentum": lambda params: torch.optim.SGD(params, lr=50, momentum=0.9),
}


SCALE = 1e-3
"""Of the loss below: a weight w has the gradient 0.002 w, and under either optimizer moves by a hundredth at least, which bfloat16 sees."""


class Weights(nn.Module):
    """Many weights and next to no work: what its step costs is the optimizer's."""

    def __init__(self, tensors: int, size: int) -> None:
        super().__init__()
        self.all = nn.ParameterList(torch.randn(size) for _ in range(tensors))

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        return torch.stack([weight @ weight for weight in self.all]).sum() * factor


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_an_optimizers_step(name: str, gpu_benchmark: Any, device: torch.device) -> None:
    model = Weights(8, sized_for(64, 2**22)).to(device)
    ones = torch.ones((), device=device)
    found = gpu_benchmark(model, ones, loss=lambda out: SCALE * out.float(), optimizer=OPTIMIZERS[name], precisions=["bf16-true", "bf16-master"])
    for row in found.rows:
        assert row.errors == (), str(row)
    # weights, and moments or momentum, at half the bytes; a master's copy costs more than it saves
    assert found["bf16-true"].memory_share < found["bf16-master"].memory_share


def test_a_gpts_training_step(gpu_benchmark: Any, device: torch.device) -> None:
    model = GPT(sized_for(16, 1024), sized_for(1, 8)).to(device)
    ids = torch.randint(0, VOCABULARY, (sized_for(1, 16), LENGTH), device=device)
    precisions = ["bf16-mixed", "bf16-true", "bf16-master", "16-mixed"]
    found = gpu_benchmark(model, ids, loss=loss_of(ids), optimizer=adamw, precisions=precisions)
    for row in found.rows:
        assert row.errors == (), str(row)
    assert found["bf16-true"].memory_share < found["bf16-master"].memory_share
