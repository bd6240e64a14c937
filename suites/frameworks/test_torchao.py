"""torchao's optimizers on bfloat16 weights: rounded by chance updates arrive, rounded to nearest they do not, whatever stores the moments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from course import accused, data, line, watched
from torch import nn
from torch.nn.functional import cross_entropy

optim = pytest.importorskip("torchao.optim", reason="needs torchao: pip install -c constraints.txt -e '.[torchao]'")
RATE = 1e-4
"""AdamW's step is about that long: a fortieth of what a norm's weight of 1 sees in bfloat16."""
KINDS = ["_AdamW", "AdamW8bit", "AdamW4bit", "AdamWFp8"]


@pytest.fixture(autouse=True)
def uncompiled() -> Iterator[None]:
    """torchao compiles each step, for many seconds; watched it runs in eager mode, and so it must to be compared bit for bit."""
    with torch.compiler.set_stance("force_eager"):
        yield


class Wide(nn.Sequential):
    """Layers of 4096 weights and more, which torchao stores the moments of in few bits."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(32, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 4))


def trained(kind: str, dtype: torch.dtype = torch.bfloat16, **options: Any) -> nn.Module:
    model = Wide().to(dtype)
    torch.manual_seed(1)  # what rounding by chance draws from
    optimizer = getattr(optim, kind)(model.parameters(), lr=RATE, **options)
    x, y = data()
    for _ in range(4):
        cross_entropy(model(x.to(dtype)).float(), y).backward()
        optimizer.step()  # step
        optimizer.zero_grad()
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_by_chance_is_left_in_peace(kind: str) -> None:
    report = watched(lambda: trained(kind, bf16_stochastic_round=True))
    assert accused(report) == []
    assert report.facts["shadowed"] > 100
    assert report.facts["covered"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_float32_weights_are_left_in_peace(kind: str) -> None:
    assert accused(watched(lambda: trained(kind, torch.float32))) == []


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_to_nearest_loses_updates(kind: str) -> None:
    report = watched(lambda: trained(kind))
    assert accused(report) == [("lost-update", line(trained, "step"))], report.summary()
    assert report.errors[0].module == "2"
