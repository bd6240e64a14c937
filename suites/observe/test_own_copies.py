"""Code that looks at a model from within: it pickles or copies the model, traces it, or steps an optimizer in its backward pass."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import linearize

import precheck


class Doubled(nn.Module):
    """Adds what a copy of itself gives."""

    def __init__(self, copied: Any, *, steep: float = 1.0) -> None:
        super().__init__()
        self.net, self.copied, self.steep = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), copied, steep

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        again = self.copied(self.net)
        return self.net(self.steep * x) + again(x).detach()  # type: ignore[no-any-return]


WAYS = {"pickle": lambda net: pickle.loads(pickle.dumps(net)), "deepcopy": copy.deepcopy}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_a_model_that_copies_itself_in_its_forward_is_measured(way: str, precision: str) -> None:
    torch.manual_seed(0)
    model, x = Doubled(WAYS[way]), torch.randn(16, 8)
    assert not precheck.measure(model, x, precision=precision, loss=lambda out: out.float().square().mean()).errors
    assert not model.net._forward_hooks


def test_what_is_pickled_during_a_measurement_runs_afterwards() -> None:
    kept: list[bytes] = []
    model = Doubled(lambda net: kept.append(pickle.dumps(net)) or net)
    precheck.measure(model, torch.randn(16, 8))
    x = torch.randn(2, 8)
    assert torch.equal(pickle.loads(kept[0])(x), model.net(x))


def linearised(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).to(dtype), torch.randn(4, 8, dtype=dtype)
    out, slope = linearize(net, x)
    return out, slope(torch.ones_like(x))


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_that_torch_traces_is_followed(dtype: torch.dtype) -> None:
    """`linearize` traces with tangents that hold whatever their memory held: their numbers are nobody's result."""
    plain = linearised(dtype)
    with precheck.watch() as report:
        watched = linearised(dtype)
    assert not report.errors, report.summary()
    assert all(torch.equal(one, two) for one, two in zip(plain, watched, strict=True))
    assert not report.facts["opaque"]


def test_an_optimizer_that_a_hook_steps_is_refused_by_measure_and_watched() -> None:
    model = nn.Linear(8, 8)
    optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in model.parameters()}
    for each in model.parameters():
        each.register_post_accumulate_grad_hook(lambda weight: optimizers[weight].step())
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(precheck.InputError, match="a hook of a weight steps SGD within the backward pass"):
        precheck.measure(model, torch.randn(4, 8), loss=lambda out: out.float().square().mean())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with precheck.watch() as report, torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(4, 8)).float().square().mean().backward()
    assert not report.errors
