"""A first look asks weights, after the step, for the Inf and NaN of their gradients, where the optimizer cannot have lost them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import precheck
from precheck.goldens.file import read
from precheck.goldens.lifecycle import refresh
from precheck.measurement import job_of
from precheck.observe.recording.reduce import thinned
from precheck.observe.training import _CARRYING


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def loss(out: torch.Tensor) -> torch.Tensor:
    return out.float().square().mean()


class Wide(nn.Module):
    """Its weight is sampled; one element of its gradient, which is not in the sample, is `planted` in bfloat16."""

    UNSEEN = next(place for place in range(512 * 512) if place not in set(thinned(torch.arange(512 * 512)).tolist()))

    def __init__(self, planted: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.planted, self.weight = planted, nn.Parameter(torch.randn(512, 512) / 23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight * 1.0
        if weight.dtype is torch.bfloat16:
            weight.register_hook(self.wrong)
        return x @ weight

    def wrong(self, gradient: torch.Tensor) -> torch.Tensor:
        where = torch.zeros(512 * 512, dtype=gradient.dtype)
        where[self.UNSEEN] = self.planted
        return gradient + where.view(512, 512)


def mended(parameters: Any) -> torch.optim.Optimizer:
    def clean(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

    optimizer = torch.optim.SGD(parameters, lr=0.1)
    optimizer.register_step_pre_hook(clean)
    return optimizer


STEPPED: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1.0),
    "the sign alone": lambda parameters: torch.optim.Rprop(parameters),
    "a fused kernel": lambda parameters: torch.optim.Adam(parameters, lr=1e-2, fused=True),
    "mended by a hook": mended,
}


@pytest.mark.parametrize("planted", [math.inf, -math.inf, math.nan], ids=str)
@pytest.mark.parametrize("name", STEPPED)
def test_one_element_of_a_gradient_that_is_not_finite_is_found(tmp_path: Path, name: str, planted: float) -> None:
    """By its weight, or by a look at all of the gradient where the step may lose it."""
    x, given = normal(64, 512), {"loss": loss, "optimizer": STEPPED[name]}
    refresh(tmp_path / "wide", job_of(Wide(), x, **given))
    assert next(each for each in read(tmp_path / "wide").records if each.record.kind == "parameter-gradient").record.sampled
    found = [precheck.check(Wide(each), x, golden=tmp_path / "wide", precision="bf16-true", **given).errors for each in (planted, 0.0)]
    spoilt, healthy = ({each.rule for each in errors} & {"overflow", "nan"} for errors in found)
    assert spoilt
    assert not healthy


def arguments(kind: type[torch.optim.Optimizer]) -> set[str]:
    return set(inspect.signature(kind).parameters)


SETTINGS: list[dict[str, Any]] = [
    {}, {"lr": 0.0}, {"maximize": True}, {"weight_decay": 0.1}, {"foreach": True}, {"foreach": False},
    {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"amsgrad": True}, {"betas": (0.0, 0.0)},
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("planted", [math.inf, -math.inf, math.nan], ids=str)
@pytest.mark.parametrize(("kind", "settings"), [(kind, each) for kind in _CARRYING for each in SETTINGS if each.keys() <= arguments(kind)])
def test_what_is_not_finite_in_a_gradient_is_not_in_its_weight(kind: Any, settings: dict[str, Any], planted: float, dtype: torch.dtype) -> None:
    weight = nn.Parameter(normal(100).to(dtype))
    optimizer, weight.grad = kind([weight], **settings), normal(100, seed=1).to(dtype)
    weight.grad[50] = planted
    optimizer.step()
    assert weight.isfinite().logical_not().nonzero().tolist() == [[50]]
